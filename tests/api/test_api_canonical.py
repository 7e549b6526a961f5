"""Canonical form: however an object is written, it is stored and returned in the same form."""

from __future__ import annotations

from typing import Any

import pytest

from api.http_client import Api, Json, named, unique

FORMS: list[tuple[Json, Json]] = [
    ({"quota": {"gpu": 2.0}}, {"quota": {"gpu": 2}}),
    ({"quota": {"gpu": "2"}}, {"quota": {"gpu": 2}}),
    ({"quota": {"gpu": "0.5"}}, {"quota": {"gpu": 0.5}}),
    ({"quota": {"cpu": "500m"}}, {"quota": {"cpu": 0.5}}),
    ({"quota": {"memory": 1073741824}}, {"quota": {"memory": "1Gi"}}),
    ({"quota": {"memory": "1024Mi"}}, {"quota": {"memory": "1Gi"}}),
    ({"reclaimMinRuntime": "1h"}, {"reclaimMinRuntime": 3600}),
    ({"overQuotaWeight": 2}, {"overQuotaWeight": {"gpu": 2, "cpu": 2, "memory": 2}}),
]


@pytest.mark.parametrize("written, shown", FORMS)
def test_amounts(api: Api, written: Json, shown: Json) -> None:
    """Amounts are returned in one spelling."""
    assert api.post("departments", named(unique(), written)).ok(201)["spec"] == shown


@pytest.mark.parametrize("written, shown", FORMS)
def test_amounts_in_a_patch(api: Api, written: Json, shown: Json) -> None:
    """Amounts in a patch are stored in the same form."""
    name = unique()
    api.post("departments", named(name)).ok(201)
    assert api.patch(f"departments/{name}", {"spec": written}).ok()["spec"] == shown


@pytest.mark.parametrize("spec", [{"overQuota": True}, {"description": ""}, {"quota": {"gpu": 0}}, {"pools": {}}, {}])
def test_defaults_are_left_out(api: Api, spec: Json) -> None:
    """A field with its default value is not stored."""
    assert not api.post("departments", named(unique(), spec)).ok(201).get("spec")


def test_default_by_patch(api: Api) -> None:
    """A field that is patched to its default is removed."""
    name = unique()
    api.post("departments", named(name, {"overQuota": False, "description": "x"})).ok(201)
    assert api.patch(f"departments/{name}", {"spec": {"overQuota": True}}).ok()["spec"] == {"description": "x"}


def test_null_removes(api: Api) -> None:
    """Null in a patch removes the field."""
    name = unique()
    api.post("departments", named(name, {"priority": 5, "description": "x"})).ok(201)
    assert api.patch(f"departments/{name}", {"spec": {"priority": None}}).ok()["spec"] == {"description": "x"}


def test_same_spelled_otherwise(api: Api) -> None:
    """Writing the same amount in another spelling changes nothing."""
    name = unique()
    created = api.post("departments", named(name, {"quota": {"memory": "1Gi"}})).ok(201)
    after = api.patch(f"departments/{name}", {"spec": {"quota": {"memory": "1024Mi"}}}).ok()
    assert after["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]


@pytest.mark.parametrize("extra", [{"managedFields": []}, {"selfLink": "/x"}, {"uid": "x"}, {"generation": 7}])
def test_foreign_metadata(api: Api, extra: dict[str, Any]) -> None:
    """Metadata that other clients send is accepted and not stored."""
    created = api.post("departments", named(unique(), **extra)).ok(201)
    for key, value in extra.items():
        assert created["metadata"].get(key) != value


def test_envelope_may_be_left_out(api: Api) -> None:
    """apiVersion and kind may be left out of a request; the response has them."""
    created = api.post("departments", named(unique())).ok(201)
    assert (created["apiVersion"], created["kind"]) == ("aliquot.dev/v1", "Department")


def test_text_of_every_script(api: Api) -> None:
    """Text comes back as it was sent."""
    text = 'naïve 日本語 😀 \\ " \n\t\u2028'
    assert api.post("departments", named(unique(), {"description": text})).ok(201)["spec"]["description"] == text
