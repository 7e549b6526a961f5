"""Translates an object of `run.ai/v2alpha1` into the spec of a Workload. Pure; reports all faults at once.

spec       the Workload's spec, as JSON
faults     what is invalid: no workload is created, and an existing one stays as it is
left_out   fields without effect, and what to write instead; the workload is created without them
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aliquot.api import KINDS, Json, Workload, check_name, decode, encode
from aliquot.backends.kubernetes.v2alpha1.fields import FIELDS, ITEMS, REFUSED, SPECIAL, UNKNOWN, Field, Items
from aliquot.errors import Fault, Invalid

TYPES = {"TrainingWorkload": "training", "InteractiveWorkload": "interactive"}


@dataclass(slots=True)
class Translation:
    spec: Json = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    left_out: list[Fault] = field(default_factory=list)
    template_only: bool = False  # other objects refer to it; it is not run itself
    # Path in the Workload's spec -> path in the Run:ai object.
    _origins: dict[str, str] = field(default_factory=dict)

    def set_origin(self, path: str, origin: str) -> None:
        self._origins[path] = origin

    def set_value(self, path: str, value: Any, origin: str) -> None:
        *parents, last = path.split(".")
        target = self.spec
        for name in parents:
            target = target.setdefault(name, {})
        target[last] = value
        self.set_origin(path, origin)

    def origin(self, path: str) -> str:
        """The path in the Run:ai object that a path in the Workload came from."""
        inner = path.removeprefix("spec.")
        for known in sorted(self._origins, key=len, reverse=True):
            if inner == known or inner.startswith((f"{known}.", f"{known}[")):
                return self._origins[known] + inner[len(known) :]
        return path


def translate(kind: str, name: str, spec: Any) -> Translation:
    result = Translation()
    result.set_value("type", TYPES[kind], "kind")
    if not isinstance(spec, dict):
        result.faults.append(Fault("spec", "is required"))
        return result
    for field_name, raw in spec.items():
        if field_name in SPECIAL or raw is None:
            continue
        if field_name in FIELDS:
            _translate_field(result, field_name, raw, FIELDS[field_name])
        elif field_name in ITEMS:
            _translate_items(result, field_name, raw, ITEMS[field_name])
        else:
            result.left_out.append(Fault(f"spec.{field_name}", REFUSED.get(field_name, UNKNOWN)))
    _translate_special(result, name, spec)
    _translate_device_count(result)
    if not result.faults:
        _check(result, name)
    return result


def _translate_field(result: Translation, field_name: str, raw: Any, target: Field) -> None:
    path = f"spec.{field_name}.value"
    if not isinstance(raw, dict) or set(raw) - {"value"}:
        result.faults.append(Fault(f"spec.{field_name}", f"must be {{value: ...}}, not {_abbreviated(raw)}"))
    elif raw.get("value") is not None:
        try:
            result.set_value(target.path, target.parse(raw["value"]), path)
        except ValueError as exc:
            result.faults.append(Fault(path, str(exc)))


def _translate_items(result: Translation, field_name: str, raw: Any, target: Items) -> None:
    items = raw.get("items") if isinstance(raw, dict) and not set(raw) - {"items"} else None
    if not isinstance(items, dict):
        result.faults.append(
            Fault(f"spec.{field_name}", f"must be {{items: {{NAME: {{value: ...}}}}}}, not {_abbreviated(raw)}")
        )
        return
    values: dict[str, Any] = {}
    for name, item in items.items():
        path = f"spec.{field_name}.items.{name}"
        if not isinstance(item, dict) or "value" not in item or set(item) - {"value"}:
            result.faults.append(Fault(path, f"must be {{value: ...}}, not {_abbreviated(item)}"))
            continue
        try:
            values[name] = target.parse(name, item["value"])
        except ValueError as exc:
            result.faults.append(Fault(f"{path}.value", str(exc)))
    result.set_value(target.path, values if target.is_mapping else list(values.values()), f"spec.{field_name}.items")
    for index, name in enumerate(values):
        result.set_origin(f"{target.path}[{index}]", f"spec.{field_name}.items.{name}.value")


def _translate_special(result: Translation, name: str, spec: Json) -> None:
    given_name = _plain(spec.get("name"))
    if given_name not in (None, "", name):
        text = f"is ignored: the workload is named {name}, like this object; use the same name"
        result.left_out.append(Fault("spec.name.value", text))
    if base := _plain(spec.get("baseWorkload")):
        result.set_value("template", str(base), "spec.baseWorkload")
    usage = _plain(spec.get("usage"))
    result.template_only = usage == "Template"
    if usage not in (None, "Submit", "Template"):
        result.faults.append(Fault("spec.usage", f"must be Submit or Template, not {usage!r}"))
    key = _plain(spec.get("podAffinityTopology"))
    if key:
        rule = _plain(spec.get("podAffinitySchedulingRule")) or "Required"
        result.set_value(f"topology.{str(rule).lower()}", str(key), "spec.podAffinitySchedulingRule.value")
    elif _plain(spec.get("podAffinity")):
        result.left_out.append(
            Fault("spec.podAffinity", "has no effect without podAffinityTopology: set it to a node label")
        )


def _translate_device_count(result: Translation) -> None:
    """`gpuDevices` alone is a number of whole GPUs; with a fraction it says of how many GPUs."""
    compute = result.spec.get("compute", {})
    if "gpuDevices" in compute and not {"gpu", "gpuMemory", "migProfile"} & set(compute):
        result.set_value("compute.gpu", compute.pop("gpuDevices"), "spec.gpuDevices.value")


def _check(result: Translation, name: str) -> None:
    """Runs the Workload's own checks, with the paths of the Run:ai object; stores the spec in its normal form."""
    try:
        check_name(KINDS.of(Workload), name)
        typed = decode(Workload, {"metadata": {"name": name}, "spec": result.spec}, strict=True)
        result.spec = encode(typed)["spec"]
    except Invalid as exc:
        result.faults += [Fault(result.origin(fault.path), fault.text) for fault in exc.faults]


def _plain(raw: Any) -> Any:
    """Some fields are written as text or as `{value: text}`."""
    return raw.get("value") if isinstance(raw, dict) else raw


def _abbreviated(raw: Any) -> str:
    text = repr(raw)
    return text if len(text) <= 60 else f"{text[:57]}..."
