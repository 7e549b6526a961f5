"""Policy rules: which values they allow, and the message for those they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.admission.workload_policies import effective_policy, violations
from aliquot.api import Json, Metadata, Policy
from aliquot.api.policy import FieldRule, Option, PolicySpec


def policy(name: str = "p", **spec: object) -> Policy:
    return Policy(metadata=Metadata(name=name, namespace="runai"), spec=PolicySpec(**spec))  # type: ignore[arg-type]


def messages(spec: Json, path: str, rule: FieldRule, default: Any = None, old: Json | None = None) -> list[str]:
    values: Any = default
    for key in reversed(path.split(".")):
        values = {key: values}
    effective = effective_policy([policy(rules={path: rule}, defaults=values if default is not None else {})])
    return [fault.text for fault in violations(spec, effective, old)]


OPTIONS = (Option(value="a"), Option(value="b"))
VARIABLE = {"name": "A", "value": "1"}


@pytest.mark.parametrize(
    "path, rule, spec, text",
    [
        ("compute.gpu", FieldRule(max=4), {"compute": {"gpu": 5}}, "must be no greater than 4"),
        ("compute.gpu", FieldRule(max="0.5"), {"compute": {"gpu": 0.6}}, "must be no greater than 0.5"),
        ("compute.gpu", FieldRule(min=1), {"compute": {"gpu": 0.5}}, "must be no less than 1"),
        ("compute.memory", FieldRule(max="64Gi"), {"compute": {"memory": "65Gi"}}, "must be no greater than 64Gi"),
        ("compute.cpu", FieldRule(min=1, step="0.2"), {"compute": {"cpu": 1.3}}, "must be 1 plus a multiple of 0.2"),
        ("image", FieldRule(required=True), {}, "is required"),
        ("image", FieldRule(options=OPTIONS), {"image": "c"}, "must be one of a, b, not c"),
        ("nodePools", FieldRule(options=OPTIONS), {"nodePools": ["a", "c"]}, "must be one of a, b, not c"),
        ("security.runAsUid", FieldRule(can_edit=False), {"security": {"runAsUid": 501}}, "must not be given"),
    ],
)
def test_refused(path: str, rule: FieldRule, spec: Json, text: str) -> None:
    """A value that breaks the rule is refused with the rule in the message."""
    assert messages(spec, path, rule) == [text]


@pytest.mark.parametrize(
    "path, rule, spec",
    [
        ("compute.gpu", FieldRule(min=0, max=4), {"compute": {"gpu": 4}}),
        ("compute.gpu", FieldRule(min=1, max=4), {}),
        ("compute.memory", FieldRule(max="64Gi"), {"compute": {"memory": "64Gi"}}),
        ("compute.cpu", FieldRule(min=1, step="0.2"), {"compute": {"cpu": 1.4}}),
        ("image", FieldRule(required=True, options=OPTIONS), {"image": "b"}),
        ("tty", FieldRule(options=(Option(value="true"),)), {"tty": True}),
    ],
)
def test_allowed(path: str, rule: FieldRule, spec: Json) -> None:
    """A value at the limit of the rule is allowed, and so is an absent value."""
    assert messages(spec, path, rule) == []


def test_a_default_that_may_not_be_changed() -> None:
    """Only the policy's own value is allowed."""
    rule = FieldRule(can_edit=False)
    assert messages({"image": "b"}, "image", rule, "a") == ["must be a, as the policy says"]
    assert messages({"image": "a"}, "image", rule, "a") == []


def test_items_that_may_not_be_added() -> None:
    """Items that the policy does not have are refused."""
    rule = FieldRule(can_add=False)
    more = {"environment": [VARIABLE, {"name": "B", "value": "2"}]}
    assert messages(more, "environment", rule, [VARIABLE]) == ["must not have more than the policy gives: B"]
    assert messages({"environment": [VARIABLE]}, "environment", rule, [VARIABLE]) == []


@pytest.mark.parametrize("given", [[], [{"name": "A", "value": "2"}], [{"name": "A", "exclude": True}]])
def test_locked_items_stay(given: list[Json]) -> None:
    """A locked item can be neither changed nor removed."""
    rule = FieldRule(locked=("A",))
    assert messages({"environment": given}, "environment", rule, [VARIABLE]) == ["must have A as the policy gives it"]


def test_a_project_cannot_raise_compute_limits() -> None:
    """For compute and security the widest policy wins, for other fields the closest."""
    wide = policy(rules={"compute.gpu": FieldRule(max=4), "backoffLimit": FieldRule(max=4)})
    close = policy(rules={"compute.gpu": FieldRule(max=8, min=1), "backoffLimit": FieldRule(max=8)})
    rules = effective_policy([wide, close]).rules
    assert (rules["compute.gpu"].max, rules["compute.gpu"].min, rules["backoffLimit"].max) == (4, 1, 8)


def test_unchanged_fields_are_not_checked() -> None:
    """An update is checked only where it changes a field."""
    old = {"compute": {"gpu": 8}}
    rule = FieldRule(max=4)
    assert messages({**old, "active": False}, "compute.gpu", rule, old=old) == []
    assert messages({"compute": {"gpu": 9}}, "compute.gpu", rule, old=old) == ["must be no greater than 4"]


def test_imposed_values_cannot_be_changed_later() -> None:
    """An update cannot change an imposed value."""
    effective = effective_policy([policy(imposed={"priorityClass": "train"})])
    old = {"priorityClass": "train"}
    faults = list(violations({"priorityClass": "build"}, effective, old))
    assert [(fault.path, fault.text) for fault in faults] == [("priorityClass", "must be train, as the policy says")]
