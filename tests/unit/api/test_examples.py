"""A full example of each kind passes validation and is written as it was read."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.api import KINDS, check_name, from_json, to_json
from unit.api.examples import EXAMPLES


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example['kind']}-{example['metadata']['name']}")
def test_example_comes_back(example: dict[str, Any]) -> None:
    """A full object passes strict validation, and survives encoding and decoding."""
    obj = from_json(example, strict=True)

    assert check_name(KINDS.of(type(obj)), obj.metadata.name)
    assert from_json(to_json(obj), strict=True) == obj
    assert set(to_json(obj)["spec"] if "spec" in example else to_json(obj)) >= set(example.get("spec", example)) - {
        "hostNetwork"  # false is the default
    }


def test_every_kind_has_an_example() -> None:
    """Every kind has an example."""
    assert {example["kind"] for example in EXAMPLES} == {kind.name for kind in KINDS}
