"""Workload policies: the policies that apply to a workload combine into one, which sets defaults and checks rules.

Defaults come from the closest policy: the project's, then the department's, then the cluster's. So do rules, except
under `compute` and `security`, where the cluster's policy wins: a project cannot allow itself more than the cluster
does. Values that a policy imposes win over the submission.

On update, only the rules of changed fields are checked, so that a workload which is older than a policy can still be
stopped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from typing import Any

from aliquot import units
from aliquot.admission.field_paths import nested, value_at
from aliquot.admission.workload_defaults import changed_paths, item_key, merge, with_defaults
from aliquot.api import Json, Policy, decode, encode
from aliquot.api.policy import FieldRule
from aliquot.api.workload import WorkloadSpec
from aliquot.errors import Fault, Invalid
from aliquot.store.object_rules import merged

# Fields that templates and policies cannot set.
_SUBMISSION_ONLY = ("active", "namePrefix", "subject", "template", "user")
# Rules under these fields come from the widest policy that has one.
WIDEST_POLICY_WINS = ("compute.", "security.")


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """All policies that apply to a workload, combined."""

    defaults: Json
    imposed: Json
    rules: Mapping[str, FieldRule]
    names: tuple[str, ...] = ()


NO_POLICY = EffectivePolicy({}, {}, {})


def effective_policy(policies: Iterable[Policy]) -> EffectivePolicy:
    """The combination of policies that are ordered from the widest to the closest."""
    combined = NO_POLICY
    for policy in policies:
        spec, meta = policy.spec, policy.metadata
        rules = dict(combined.rules)
        for path, rule in spec.rules.items():
            wider = rules.get(path, FieldRule())
            rules[path] = _override(wider, rule) if path.startswith(WIDEST_POLICY_WINS) else _override(rule, wider)
        combined = EffectivePolicy(
            with_defaults(_canonical(spec.defaults), combined.defaults),
            merge(combined.imposed, _canonical(spec.imposed)),
            rules,
            (*combined.names, f"{meta.namespace}/{meta.name}"),
        )
    return combined


def _override(winner: FieldRule, other: FieldRule) -> FieldRule:
    """A rule with each part from the winner, or from the other where the winner does not have it."""
    parts = {field.name: getattr(winner, field.name) for field in fields(FieldRule)}
    return replace(other, **{name: value for name, value in parts.items() if value not in (None, ())})


def _canonical(values: Mapping[str, Any]) -> Json:
    """Values in the form in which workloads are stored, so that the two can be compared."""
    try:
        return settable_by_others(encode(decode(WorkloadSpec, values)))
    except Invalid:
        # The policy was written past our validation. The workload's own validation will name the field.
        return settable_by_others(values)


def settable_by_others(values: Mapping[str, Any]) -> Json:
    """Without the fields that only the submission itself may set."""
    return {key: value for key, value in values.items() if key not in _SUBMISSION_ONLY}


def apply_policy(spec: Json, policy: EffectivePolicy) -> Json:
    """The spec with the policy's defaults and imposed values."""
    spec = with_defaults(spec, policy.defaults)
    for path, rule in policy.rules.items():
        source = rule.default_from
        if source is None or value_at(spec, path.split(".")) is not None:
            continue
        number = _number(value_at(spec, source.field.split(".")))
        if number is not None:
            value = number * Decimal(str(source.factor))
            spec = merged(spec, nested(path, int(value) if value == int(value) else float(value)))
    result: Json = merge(spec, policy.imposed)
    return result


def violations(spec: Json, policy: EffectivePolicy, old: Json | None = None) -> Iterator[Fault]:
    """The rules that a workload's spec breaks; on update (`old` is given) only those of changed fields."""
    for path, rule in policy.rules.items():
        keys = path.split(".")
        value = value_at(spec, keys)
        if old is None or value_at(old, keys) != value:
            default = value_at(policy.defaults, keys)
            yield from (Fault(path, text) for text in _rule_violations(rule, value, default))
    if old is not None:
        for path in changed_paths(merge(spec, policy.imposed), spec):
            keys = path.split(".")
            if value_at(old, keys) != value_at(spec, keys):
                yield Fault(path, f"must be {_shown(value_at(policy.imposed, keys))}, as the policy says")


def _rule_violations(rule: FieldRule, value: Any, default: Any) -> Iterator[str]:
    if value in (None, "", [], {}):
        if rule.required:
            yield "is required"
        elif rule.can_edit is False and default is not None:
            yield f"must be {_shown(default)}, as the policy says"
        yield from _item_violations(rule, [], default)
        return
    if rule.can_edit is False and value != default:
        yield "must not be given" if default is None else f"must be {_shown(default)}, as the policy says"
    yield from _number_violations(rule, _number(value))
    options = [option.value for option in rule.options]
    for item in value if isinstance(value, list) else [value]:
        if options and _option_text(item) not in options:
            yield f"must be one of {', '.join(options)}, not {_shown(item)}"
    yield from _item_violations(rule, value, default)


def _number_violations(rule: FieldRule, number: Decimal | None) -> Iterator[str]:
    if number is None:
        return
    least, most, step = _number(rule.min), _number(rule.max), _number(rule.step)
    if least is not None and number < least:
        yield f"must be no less than {rule.min}"
    if most is not None and number > most:
        yield f"must be no greater than {rule.max}"
    if step and (number - (least or 0)) % step:
        yield f"must be {rule.min or 0} plus a multiple of {rule.step}"


def _item_violations(rule: FieldRule, value: Any, default: Any) -> Iterator[str]:
    items, default_items = _items_by_key(value), _items_by_key(default)
    added = sorted(items.keys() - default_items.keys())
    if rule.can_add is False and added:
        yield f"must not have more than the policy gives: {', '.join(added)}"
    for name in rule.locked:
        if name in default_items and items.get(name) != default_items[name]:
            yield f"must have {name} as the policy gives it"


def _items_by_key(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    return {item_key(item): item for item in value} if isinstance(value, list) else {}


def _number(value: Any) -> Decimal | None:
    try:
        return None if value is None or isinstance(value, (bool, list, dict)) else units.exact(value)
    except ValueError:
        return None


def _option_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
