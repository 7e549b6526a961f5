"""Which pods a disruption budget is about."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.backends.kubernetes.disruption_budgets import terms_of

MARKS = {"app": "web", "tier": "front"}


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
    """As Kubernetes reads them: an empty selector is about every pod, a missing one about none."""
    terms = terms_of(selector)
    assert (terms is not None and all(term.matches(MARKS) for term in terms)) is selects
