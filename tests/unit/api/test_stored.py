"""Every object of our kinds that passes the Kubernetes schema can be decoded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from aliquot.api import KINDS, Json, Kind, from_json
from aliquot.api.crds import structural_schema

TIMES = st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.123456789+02:00", "1000-01-01t00:00:00z"])


def allowed(schema: Json) -> st.SearchStrategy[Any]:
    """Values that a structural schema accepts."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "x-kubernetes-int-or-string" in schema:
        return st.integers(schema.get("minimum", -5), 10**9) | _matching(schema, longest=6)
    return {"object": _object, "array": _array, "string": _text, "number": _number, "integer": _integer}.get(
        schema["type"], lambda _: st.booleans()
    )(schema)


def _object(schema: Json) -> st.SearchStrategy[Any]:
    if "x-kubernetes-preserve-unknown-fields" in schema:
        return st.just({"a": [1, {"b": None}]})
    if "properties" not in schema:
        return st.dictionaries(st.text(max_size=5), allowed(schema["additionalProperties"]), max_size=2)
    needed = schema.get("required", ())
    parts = {name: allowed(part) for name, part in schema["properties"].items()}
    return st.fixed_dictionaries(
        {name: part for name, part in parts.items() if name in needed},
        optional={name: part for name, part in parts.items() if name not in needed},
    )


def _array(schema: Json) -> st.SearchStrategy[Any]:
    return st.lists(allowed(schema["items"]), max_size=2)


def _text(schema: Json) -> st.SearchStrategy[Any]:
    if schema.get("format") == "date-time":
        return TIMES
    if "pattern" in schema:
        return _matching(schema, longest=schema.get("maxLength", 100))
    return st.text(min_size=schema.get("minLength", 0), max_size=8)


def _matching(schema: Json, longest: int) -> st.SearchStrategy[str]:
    # A pattern cannot exclude amounts beyond 64 bits; short texts stay below.
    return st.from_regex(str(schema["pattern"]), fullmatch=True).filter(
        lambda text: len(text) <= longest and not set("PE") & set(text if longest == 6 else "")
    )


def _integer(schema: Json) -> st.SearchStrategy[Any]:
    return st.integers(schema.get("minimum", -(2**31)), schema.get("maximum", 2**62))


def _number(schema: Json) -> st.SearchStrategy[Any]:
    if len(schema.get("x-kubernetes-validations", ())) == 2:
        return st.integers(0, 64) | st.integers(0, 1000).map(lambda milli: milli / 1000)
    least = schema.get("minimum", -10) * 4 + (1 if schema.get("exclusiveMinimum") else 0)
    return st.integers(int(least), int(schema.get("maximum", 1000) * 4)).map(lambda quarters: quarters / 4)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.is_custom_resource], ids=lambda kind: kind.name)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_objects_that_kubernetes_accepts_can_be_read(kind: Kind[Any], data: st.DataObject) -> None:
    """An object that kubectl wrote and that passes the schema never breaks a controller."""
    parts = structural_schema(kind)["properties"]
    spec, status = data.draw(allowed(parts["spec"])), data.draw(allowed(parts["status"]))
    assume("default" not in spec.get("pools", ()))  # excluded by a CEL rule, not by the structure of the schema

    obj = from_json(
        {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {"name": "x"}, "spec": spec, "status": status}
    )

    assert obj.metadata.name == "x"
