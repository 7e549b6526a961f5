"""Which pods a PodDisruptionBudget selects."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.backends.kubernetes.disruption_budgets import terms_of

LABELS = {"app": "web", "tier": "front"}


@pytest.mark.parametrize(
    "selector, selects",
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"app": "web"}}, True),
        ({"matchLabels": {"app": "web", "tier": "back"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "web"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}, False),
        ({"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}, True),
        ({"matchExpressions": [{"key": "zone", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}, True),
    ],
)
def test_selectors(selector: dict[str, Any] | None, selects: bool) -> None:
    """As in Kubernetes: an empty selector matches every pod, a missing one matches none."""
    terms = terms_of(selector)
    assert (terms is not None and all(term.matches(LABELS) for term in terms)) is selects
