"""Pages beside the objects: health, figures, the description of the API, and who am I."""

from __future__ import annotations

import re

import pytest
from jsonschema_rs import validator_for  # schemathesis brings it

from aliquot import __version__
from aliquot.api import KINDS
from api.people import CLUSTER, Office
from api.wire import Api


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
def test_health(api: Api, path: str) -> None:
    """Health needs no token and tells nothing but that."""
    answer = api.bearing(None).get(path)
    assert (answer.status, answer.raw) == (200, b"ok")


def test_metrics_form(api: Api) -> None:
    """Figures come in the form Prometheus reads: each line a comment or a sample."""
    answer = api.get("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    sample = re.compile(r'^[a-z_]+(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? [-+.0-9eE]+(inf|nan)?$')
    lines = answer.raw.decode().splitlines()
    assert [line for line in lines if not line.startswith("# ") and not sample.match(line)] == []


def test_metrics_count_objects(api: Api) -> None:
    """There is a figure for each kind of object."""
    text = api.get("/metrics").raw.decode()
    for kind in KINDS:
        assert f'aliquot_objects{{kind="{kind.name}"}}' in text


def test_metrics_count_requests(api: Api) -> None:
    """Answers are counted by verb, kind and status; names of objects are not in it."""
    api.get("projects/some-name-of-mine").refused(404)
    text = api.get("/metrics").raw.decode()
    assert 'aliquot_http_requests_total{code="404",resource="projects",verb="GET"}' in text
    assert "some-name-of-mine" not in text


def test_metrics_count_watchers(api: Api, here: str) -> None:
    """Open watches are counted while they are open."""
    with api.watch(f"{here}/templates"):
        found = re.search(r"^aliquot_http_watchers (\S+)$", api.get("/metrics").raw.decode(), re.MULTILINE)
    assert found is not None
    assert float(found[1]) >= 1


def test_whoami(office: Office) -> None:
    """Everybody can ask who he is and what he was granted."""
    ann = office.grant(office.person(), "viewer", CLUSTER)
    said = ann.api.get("whoami").ok()
    assert said["user"] == ann.name
    assert said["roles"] == [{"role": "viewer", "scope": "cluster"}]
    assert said["server"]["version"] == __version__


def test_openapi_is_valid(api: Api) -> None:
    """The description needs no token and is OpenAPI 3.1 whose schemas are JSON Schema."""
    said = api.bearing(None).get("/openapi.json").ok()
    assert said["openapi"] == "3.1.0"
    assert said["info"]["version"] == __version__
    for name, schema in said["components"]["schemas"].items():
        validator_for({**schema, "components": said["components"]})
        assert schema.get("description") or name, name


def test_openapi_ids(api: Api) -> None:
    """Each operation has a name of its own, so that clients can be generated."""
    ids = [
        operation["operationId"]
        for methods in api.get("/openapi.json").ok()["paths"].values()
        for verb, operation in methods.items()
        if verb != "parameters"
    ]
    assert len(ids) == len(set(ids))


def test_openapi_has_every_kind(api: Api) -> None:
    """No kind is forgotten."""
    paths = api.get("/openapi.json").ok()["paths"]
    for kind in KINDS:
        assert f"/apis/aliquot.dev/v1/{kind.plural}" in paths


def test_every_path_answers(api: Api) -> None:
    """What is described is there: no address is unknown, and no verb."""
    for path, methods in api.get("/openapi.json").ok()["paths"].items():
        there = path.format(namespace="runai", name="not-there")
        for verb in methods.keys() - {"parameters"}:
            body = {} if verb in ("post", "put", "patch") else None
            answer = api.ask(verb.upper(), there, body)
            assert answer.status in (200, 400, 404), (verb, path, answer.raw)
            if answer.status == 404:
                assert "nothing is served" not in answer.message


def test_answers_fit_the_description(api: Api) -> None:
    """Lists of every kind have the described shape."""
    said = api.get("/openapi.json").ok()
    for kind in KINDS:
        if not kind.is_custom_resource:
            continue
        check = validator_for({**said["components"]["schemas"][kind.name], "components": said["components"]})
        for item in api.get(kind.plural).ok()["items"]:
            check.validate(item)


def test_head(api: Api) -> None:
    """HEAD answers like GET, without the body."""
    answer = api.ask("HEAD", "projects")
    assert (answer.status, answer.raw) == (200, b"")


def test_head_of_a_watch_ends(api: Api) -> None:
    """A HEAD of a watch is no watch."""
    assert api.ask("HEAD", "projects?watch=true&resourceVersion=1").status == 200
