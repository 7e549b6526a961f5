"""Endpoints besides objects: health, metrics, OpenAPI and whoami."""

from __future__ import annotations

import re

import pytest
from jsonschema_rs import validator_for  # schemathesis brings it

from aliquot import __version__
from aliquot.api import KINDS
from api.accounts import CLUSTER, Accounts
from api.http_client import Api


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
def test_health(api: Api, path: str) -> None:
    """Health checks need no token and return only `ok`."""
    response = api.with_token(None).get(path)
    assert (response.status, response.raw) == (200, b"ok")


def test_metrics_form(api: Api) -> None:
    """Metrics are in Prometheus' text format: each line is a comment or a sample."""
    response = api.get("/metrics")
    assert response.status == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    sample = re.compile(r'^[a-z_]+(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? [-+.0-9eE]+(inf|nan)?$')
    lines = response.raw.decode().splitlines()
    assert [line for line in lines if not line.startswith("# ") and not sample.match(line)] == []


def test_metrics_count_objects(api: Api) -> None:
    """Every kind has a metric with its number of objects."""
    text = api.get("/metrics").raw.decode()
    for kind in KINDS:
        assert f'aliquot_objects{{kind="{kind.name}"}}' in text


def test_metrics_count_requests(api: Api) -> None:
    """Requests are counted by verb, resource and status, without names of objects."""
    api.get("projects/some-name-of-mine").refused(404)
    text = api.get("/metrics").raw.decode()
    assert 'aliquot_http_requests_total{code="404",resource="projects",verb="GET"}' in text
    assert "some-name-of-mine" not in text


def test_metrics_count_watchers(api: Api, namespace_path: str) -> None:
    """Open watches are counted while they are open."""
    with api.watch(f"{namespace_path}/templates"):
        match = re.search(r"^aliquot_http_watchers (\S+)$", api.get("/metrics").raw.decode(), re.MULTILINE)
    assert match is not None
    assert float(match[1]) >= 1


def test_whoami(accounts: Accounts) -> None:
    """whoami returns the caller's user and roles."""
    ann = accounts.grant(accounts.user(), "viewer", CLUSTER)
    document = ann.api.get("whoami").ok()
    assert document["user"] == ann.name
    assert document["roles"] == [{"role": "viewer", "scope": "cluster"}]
    assert document["server"]["version"] == __version__


def test_openapi_is_valid(api: Api) -> None:
    """The OpenAPI document needs no token, and its schemas are valid JSON Schema."""
    document = api.with_token(None).get("/openapi.json").ok()
    assert document["openapi"] == "3.1.0"
    assert document["info"]["version"] == __version__
    for name, schema in document["components"]["schemas"].items():
        validator_for({**schema, "components": document["components"]})
        assert schema.get("description") or name, name


def test_openapi_ids(api: Api) -> None:
    """Operation ids are unique, so that clients can be generated."""
    ids = [
        operation["operationId"]
        for methods in api.get("/openapi.json").ok()["paths"].values()
        for verb, operation in methods.items()
        if verb != "parameters"
    ]
    assert len(ids) == len(set(ids))


def test_openapi_has_every_kind(api: Api) -> None:
    """The OpenAPI document has every kind."""
    paths = api.get("/openapi.json").ok()["paths"]
    for kind in KINDS:
        assert f"/apis/aliquot.dev/v1/{kind.plural}" in paths


def test_every_path_answers(api: Api) -> None:
    """Every path and method of the OpenAPI document is served."""
    for path, methods in api.get("/openapi.json").ok()["paths"].items():
        actual = path.format(namespace="runai", name="not-there")
        for verb in methods.keys() - {"parameters"}:
            body: dict[str, object] | None = {} if verb in ("post", "put", "patch") else None
            response = api.request(verb.upper(), actual, body)
            assert response.status in (200, 400, 404), (verb, path, response.raw)
            if response.status == 404:
                assert "nothing is served" not in response.message


def test_answers_fit_the_description(api: Api) -> None:
    """Objects in lists match their schemas."""
    document = api.get("/openapi.json").ok()
    for kind in KINDS:
        if not kind.is_custom_resource:
            continue
        check = validator_for({**document["components"]["schemas"][kind.name], "components": document["components"]})
        for item in api.get(kind.plural).ok()["items"]:
            check.validate(item)


def test_head(api: Api) -> None:
    """HEAD returns the same as GET, without the body."""
    response = api.request("HEAD", "projects")
    assert (response.status, response.raw) == (200, b"")


def test_head_of_a_watch_ends(api: Api) -> None:
    """A HEAD request for a watch returns at once."""
    assert api.request("HEAD", "projects?watch=true&resourceVersion=1").status == 200
