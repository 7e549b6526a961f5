"""Templates and policies at the edge: what fills in a new workload, and what bounds it. For every client alike.

A workload is filled in once, when it is created. What was given wins; then what the template says; then what policies
have as defaults; what policies impose wins over all. Objects merge field by field. Lists of things that have a name, a
port or a path are joined by it, and `exclude: true` leaves one out; every other list is one value.

Of several policies the closest wins for defaults: the project's, then its department's, then everybody's. For rules
too, except in `compute` and `security`, where the widest wins: a project cannot give itself more than all may have.

When a workload is changed, only rules for fields that changed are asked: one that was there before the policy can
still be stopped.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from itertools import product
from typing import Any

from aliquot import labels, units
from aliquot.api import KINDS, Namespace, Policy, Project, Template, check_name, decode
from aliquot.api.base import Json, encode
from aliquot.api.policy import FieldRule
from aliquot.api.workload import WorkloadSpec
from aliquot.errors import Fault, Invalid, NotFound, OverLimit
from aliquot.store.driver import Document, StoreDriver
from aliquot.store.informer import Informers
from aliquot.store.object_rules import merged

JUPYTER_IMAGE = "jupyter/base-notebook"
# What tells the items of a list apart: the first of these that an item has.
_NAMES = ("container", "resource", "mountPath", "path", "name", "key")
_WAYS_TO_ASK = ("gpu", "gpuMemory", "migProfile")  # of which a workload has one
_OF_A_WAY = (*_WAYS_TO_ASK, "gpuLimit", "gpuMemoryLimit", "gpuDevices", "mps")
_ITS_OWN = ("active", "namePrefix", "subject", "template", "user")  # nobody else's to say
_WIDEST_WINS = ("compute.", "security.")
_MISSING = object()


# --- filling in


def filled(given: Json, values: Json) -> Json:
    """A spec with what it does not say from `values`."""
    values = _without_other_ways(given, values)
    joined: Json = _joined(values, given)
    return joined


def _without_other_ways(given: Json, values: Json) -> Json:
    """Who asks for GPU memory does not also get a template's number of GPUs."""
    own, theirs = given.get("compute"), values.get("compute")
    if not isinstance(own, dict) or not isinstance(theirs, dict):
        return values
    asked = [way for way in _WAYS_TO_ASK if way in own]
    if not asked or asked[0] in theirs:
        return values
    return {**values, "compute": {key: value for key, value in theirs.items() if key not in _OF_A_WAY}}


def _joined(below: Any, above: Any) -> Any:
    """Both, `above` before `below` where they differ."""
    if isinstance(above, dict) and isinstance(below, dict):
        both = {key: _joined(below[key], above[key]) for key in below.keys() & above.keys()}
        # A null takes away what is below, as in a merge patch.
        return {key: value for key, value in {**below, **above, **both}.items() if value is not None}
    if _has_items(above) and _has_items(below):
        named = {_name(item): item for item in above}
        kept = [item for item in below if _name(item) not in named]
        left_out = {_name(item) for item in above if item.get("exclude") is True and _is_in(item, below)}
        return [*kept, *(item for item in above if _name(item) not in left_out)]
    return above


def _has_items(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _name(item: Any) -> str:
    if not isinstance(item, dict):
        return str(item)
    return next((str(item[key]) for key in _NAMES if item.get(key)), json.dumps(item, sort_keys=True))


def _is_in(item: Json, items: Sequence[Json]) -> bool:
    return _name(item) in map(_name, items)


def _notebook() -> Json:
    """What `jupyter: true` means where nothing else is said: an image, its program, a port, and a token."""
    return {
        "image": JUPYTER_IMAGE,
        "command": ["start-notebook.sh"],
        "ports": [{"container": 8888}],
        "serviceType": "portforward",
        "environment": [{"name": "JUPYTER_TOKEN", "value": secrets.token_hex(16)}],
    }


def added(before: Any, after: Any, path: str = "") -> list[str]:
    """Paths of the fields that filling in gave other values."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            found
            for key in after
            for found in added(before.get(key, _MISSING), after[key], f"{path}.{key}".removeprefix("."))
        ]
    if before is _MISSING and isinstance(after, dict):
        return added({}, after, path)
    return [] if before == after else [path]


# --- policies


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the policies that hold for a workload say together."""

    defaults: Json
    imposed: Json
    rules: Mapping[str, FieldRule]
    names: tuple[str, ...] = ()


def bounds(policies: Iterable[Policy]) -> Bounds:
    """From the widest to the closest."""
    found = Bounds({}, {}, {})
    for policy in policies:
        spec, place = policy.spec, policy.metadata
        combined = dict(found.rules)
        for path, rule in spec.rules.items():
            wide = path.startswith(_WIDEST_WINS)
            earlier = combined.get(path, FieldRule())
            combined[path] = _over(earlier, rule) if wide else _over(rule, earlier)
        found = Bounds(
            filled(_plain(spec.defaults), found.defaults),
            _joined(found.imposed, _plain(spec.imposed)),
            combined,
            (*found.names, f"{place.namespace}/{place.name}"),
        )
    return found


def _over(first: FieldRule, second: FieldRule) -> FieldRule:
    """Each part of a rule from the first that has it."""
    parts = {field.name: getattr(first, field.name) for field in fields(FieldRule)}
    return replace(second, **{name: value for name, value in parts.items() if value not in (None, ())})


def _plain(values: Mapping[str, Any]) -> Json:
    """In the form that workloads are stored in, so that the two can be compared."""
    try:
        return _offered(encode(decode(WorkloadSpec, values)))
    except Invalid:
        return _offered(values)  # written past our checks; the workload's own check will name the field


def _offered(values: Mapping[str, Any]) -> Json:
    return {key: value for key, value in values.items() if key not in _ITS_OWN}


def with_bounds(spec: Json, found: Bounds) -> Json:
    spec = filled(spec, found.defaults)
    for path, rule in found.rules.items():
        source = rule.default_from
        if source is None or at(spec, path) is not None:
            continue
        number = _number(at(spec, source.field))
        if number is not None:
            value = number * Decimal(str(source.factor))
            spec = merged(spec, _nested(path, int(value) if value == int(value) else float(value)))
    result: Json = _joined(spec, found.imposed)
    return result


def violations(spec: Json, found: Bounds, old: Json | None = None) -> Iterator[Fault]:
    """What a workload's spec may not say; of a changed one only where it changed."""
    for path, rule in found.rules.items():
        value = at(spec, path)
        if old is None or at(old, path) != value:
            yield from (Fault(path, text) for text in _against(rule, value, at(found.defaults, path)))
    if old is not None:
        for path in added(_joined(spec, found.imposed), spec):
            if at(old, path) != at(spec, path):
                yield Fault(path, f"must be {_shown(at(found.imposed, path))}, as the policy says")


def _against(rule: FieldRule, value: Any, default: Any) -> Iterator[str]:
    if value in (None, "", [], {}):
        if rule.required:
            yield "is required"
        elif rule.can_edit is False and default is not None:
            yield f"must be {_shown(default)}, as the policy says"
        yield from _against_items(rule, [], default)
        return
    if rule.can_edit is False and value != default:
        yield "must not be given" if default is None else f"must be {_shown(default)}, as the policy says"
    yield from _against_number(rule, _number(value))
    options = [option.value for option in rule.options]
    for one in value if isinstance(value, list) else [value]:
        if options and _word(one) not in options:
            yield f"must be one of {', '.join(options)}, not {_shown(one)}"
    yield from _against_items(rule, value, default)


def _against_number(rule: FieldRule, number: Decimal | None) -> Iterator[str]:
    if number is None:
        return
    least, most, step = _number(rule.min), _number(rule.max), _number(rule.step)
    if least is not None and number < least:
        yield f"must be no less than {rule.min}"
    if most is not None and number > most:
        yield f"must be no greater than {rule.max}"
    if step and (number - (least or 0)) % step:
        yield f"must be {rule.min or 0} plus a multiple of {rule.step}"


def _against_items(rule: FieldRule, value: Any, default: Any) -> Iterator[str]:
    own, theirs = _items(value), _items(default)
    more = sorted(own.keys() - theirs.keys())
    if rule.can_add is False and more:
        yield f"must not have more than the policy gives: {', '.join(more)}"
    for name in rule.locked:
        if name in theirs and own.get(name) != theirs[name]:
            yield f"must have {name} as the policy gives it"


def _items(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    return {_name(item): item for item in value} if isinstance(value, list) else {}


def at(spec: Any, path: str) -> Any:
    for key in path.split("."):
        spec = spec.get(key) if isinstance(spec, dict) else None
    return spec


def _nested(path: str, value: Any) -> Json:
    for key in reversed(path.split(".")):
        value = {key: value}
    found: Json = value
    return found


def _number(value: Any) -> Decimal | None:
    try:
        return None if value is None or isinstance(value, (bool, list, dict)) else units.exact(value)
    except ValueError:
        return None


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# --- for one server


class Presets:
    """The templates and policies that a server knows, over its informers' tables."""

    def __init__(self, driver: StoreDriver, informers: Informers) -> None:
        self._driver = driver
        self._templates = informers.of(Template)
        self._policies = informers.of(Policy)
        self._projects = informers.of(Project)
        self._namespaces = informers.of(Namespace)

    async def filled(self, data: Json, namespace: str) -> Json:
        """A new workload with everything it was not given; what is not even an object is left to the checks."""
        given, metadata = data.get("spec") or {}, data.get("metadata")
        if not isinstance(given, dict) or not isinstance(metadata, dict):
            return data
        spec, sources = dict(given), []
        template = await self._template(given, namespace)
        if template is not None:
            before, spec = spec, filled(spec, _offered(encode(template.spec.values)))
            spec["template"] = template.metadata.name
            sources.append(_source("template", template.metadata.namespace, template.metadata.name, before, spec))
        found = self._bounds(spec, namespace)
        before, spec = spec, with_bounds(spec, found)
        if added(before, spec):
            sources.append(_source("policy", "", " and ".join(found.names), before, spec))
        if spec.get("jupyter") is True:
            spec = filled(spec, _notebook())
        if sources:
            marks = metadata.get("annotations") or {}
            if isinstance(marks, dict):
                metadata = {**metadata, "annotations": {**marks, labels.FILLED_BY: "; ".join(sources)}}
        return {**data, "metadata": metadata, "spec": spec}

    def check(self, document: Document, old: Document | None = None) -> None:
        """`OverLimit` says what policies forbid."""
        spec, before = document.data.get("spec") or {}, (old.data.get("spec") or {}) if old else None
        if before == spec:
            return
        faults = list(violations(spec, self._bounds(spec, document.namespace), before))
        if faults:
            text = "; ".join(f"{_short(fault.path)}: {fault.text}" for fault in faults)
            raise OverLimit(text, faults=[Fault(f"spec.{fault.path}", fault.text) for fault in faults])
        if old is None and not spec.get("image"):
            fault = Fault("spec.image", "is required: give one, or a template that has one")
            raise Invalid.because("workload", [fault])

    async def _template(self, given: Json, namespace: str) -> Template | None:
        """The one that is named, or else the default one; the project's own before everybody's."""
        name, places = given.get("template"), (namespace, labels.SYSTEM_NAMESPACE)
        if isinstance(name, str) and name:
            # No object has a name like batch_ops, but people type it.
            spellings = dict.fromkeys((name, name.replace("_", "-").lower()))
            for place, spelling in product(places, spellings):
                found = self._templates.get(spelling, place) or await self._look_up(spelling, place)
                if found is not None:
                    return found
            fault = Fault("spec.template", f"template {name!r} does not exist")
            raise Invalid.because("workload", [fault], hint="`runai list templates` shows those there are")
        ordered = sorted(self._templates, key=lambda each: each.metadata.name)
        for place in places:
            for template in ordered:
                own = template.metadata.namespace == place and template.spec.default
                type_ = given.get("type") or template.spec.values.type
                if own and type_ in (template.spec.types or (type_,)):
                    return template
        return None

    async def _look_up(self, name: str, namespace: str) -> Template | None:
        """One that was made a moment ago may not be in the table yet."""
        kind = KINDS.of(Template)
        try:
            return decode(Template, (await self._driver.get(kind, check_name(kind, name), namespace)).data)
        except (NotFound, Invalid):
            return None

    def _bounds(self, spec: Json, namespace: str) -> Bounds:
        if not len(self._policies):
            return _UNBOUND
        space = self._namespaces.get(namespace)
        project = self._projects.get(labels.project_of(space.metadata.labels)) if space else None
        department = (project.spec.department or labels.DEFAULT_DEPARTMENT) if project else ""
        ranked = []
        for policy in self._policies:
            rank = _rank(policy, namespace, department)
            if rank is not None and _is_about(policy, spec):
                ranked.append((rank, policy.metadata.name, policy))
        # Of two of one rank the first by name counts as the wider.
        return bounds(policy for _, _, policy in sorted(ranked, key=lambda each: each[:2])) if ranked else _UNBOUND


_UNBOUND = Bounds({}, {}, {})


def _rank(policy: Policy, namespace: str, department: str) -> int | None:
    """0 for everybody's, 1 for the department's, 2 for the project's; None for others'."""
    if policy.metadata.namespace == labels.SYSTEM_NAMESPACE:
        if policy.spec.department is None:
            return 0
        return 1 if policy.spec.department == department else None
    return 2 if policy.metadata.namespace == namespace else None


def _is_about(policy: Policy, spec: Json) -> bool:
    types, distributed = policy.spec.types, policy.spec.distributed
    if types and spec.get("type", "training") not in types:
        return False
    return distributed is None or distributed == bool(spec.get("distributed"))


def _source(kind: str, namespace: str, name: str, before: Json, after: Json) -> str:
    filled_in = ", ".join(sorted(path for path in added(before, after) if path != "template"))
    return f"{kind} {f'{namespace}/' if namespace else ''}{name}" + (f" ({filled_in})" if filled_in else "")


def _short(path: str) -> str:
    """As users of the command line know the field: `gpu`, not `compute.gpu`."""
    return next((path.removeprefix(part) for part in _WIDEST_WINS if path.startswith(part)), path)
