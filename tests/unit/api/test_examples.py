"""A full example of each kind passes the edge and is written as it was read."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.api import KINDS, check_name, from_json, to_json
from unit.api.examples import EXAMPLES


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example['kind']}-{example['metadata']['name']}")
def test_example_comes_back(example: dict[str, Any]) -> None:
    """A full object passes every check, and what is written means the same as what was read."""
    made = from_json(example, strict=True)

    assert check_name(KINDS.of(type(made)), made.metadata.name)
    assert from_json(to_json(made), strict=True) == made
    assert set(to_json(made)["spec"] if "spec" in example else to_json(made)) >= set(example.get("spec", example)) - {
        "hostNetwork"  # false is what it is when nobody says anything
    }


def test_every_kind_has_an_example() -> None:
    """No kind is forgotten."""
    assert {example["kind"] for example in EXAMPLES} == {kind.name for kind in KINDS}
