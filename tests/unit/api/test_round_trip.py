"""Encoding and decoding are inverse."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aliquot.api import KINDS, Kind, decode, encode, from_json, to_json
from unit.api.any_object import kind_objects

QUICK = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("kind", tuple(KINDS), ids=lambda kind: kind.name)
@QUICK
@given(data=st.data())
def test_every_kind_comes_back_equal(kind: Kind[Any], data: st.DataObject) -> None:
    """An object that is encoded and decoded again is equal."""
    obj = data.draw(kind_objects(kind.type))

    text = json.dumps(to_json(obj), allow_nan=False)

    assert from_json(json.loads(text)) == obj
    assert decode(kind.type, encode(obj)) == obj


@pytest.mark.parametrize("kind", tuple(KINDS), ids=lambda kind: kind.name)
@QUICK
@given(data=st.data())
def test_writing_again_changes_nothing(kind: Kind[Any], data: st.DataObject) -> None:
    """The encoded form is canonical: decoding and encoding it again gives the same bytes."""
    first = json.dumps(to_json(data.draw(kind_objects(kind.type))))

    assert json.dumps(to_json(from_json(json.loads(first)))) == first
