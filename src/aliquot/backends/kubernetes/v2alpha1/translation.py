"""One object of `run.ai/v2alpha1` as the spec of a workload. Pure, and it tells everything at once.

spec       what the workload's spec should be, in JSON
faults     what is wrong: no workload is made, or the one there is stays as it is
left_out   what does nothing here, and what to write instead; the workload is made without it
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
    template_only: bool = False  # it is there for others to refer to
    # Where in theirs a part of ours comes from.
    _origins: dict[str, str] = field(default_factory=dict)

    def came_from(self, path: str, origin: str) -> None:
        self._origins[path] = origin

    def put(self, path: str, value: Any, origin: str) -> None:
        *above, last = path.split(".")
        part = self.spec
        for name in above:
            part = part.setdefault(name, {})
        part[last] = value
        self.came_from(path, origin)

    def origin(self, path: str) -> str:
        """The path in theirs of a path in a workload."""
        inner = path.removeprefix("spec.")
        for ours in sorted(self._origins, key=len, reverse=True):
            if inner == ours or inner.startswith((f"{ours}.", f"{ours}[")):
                return self._origins[ours] + inner[len(ours) :]
        return path


def translate(kind: str, name: str, spec: Any) -> Translation:
    made = Translation()
    made.put("type", TYPES[kind], "kind")
    if not isinstance(spec, dict):
        made.faults.append(Fault("spec", "is required"))
        return made
    for word, given in spec.items():
        if word in SPECIAL or given is None:
            continue
        if word in FIELDS:
            _one(made, word, given, FIELDS[word])
        elif word in ITEMS:
            _several(made, word, given, ITEMS[word])
        else:
            made.left_out.append(Fault(f"spec.{word}", REFUSED.get(word, UNKNOWN)))
    _special(made, name, spec)
    _devices(made)
    if not made.faults:
        _check(made, name)
    return made


def _one(made: Translation, word: str, given: Any, known: Field) -> None:
    path = f"spec.{word}.value"
    if not isinstance(given, dict) or set(given) - {"value"}:
        made.faults.append(Fault(f"spec.{word}", f"must be {{value: ...}}, not {_shown(given)}"))
    elif given.get("value") is not None:
        try:
            made.put(known.path, known.read(given["value"]), path)
        except ValueError as exc:
            made.faults.append(Fault(path, str(exc)))


def _several(made: Translation, word: str, given: Any, known: Items) -> None:
    items = given.get("items") if isinstance(given, dict) and not set(given) - {"items"} else None
    if not isinstance(items, dict):
        made.faults.append(Fault(f"spec.{word}", f"must be {{items: {{NAME: {{value: ...}}}}}}, not {_shown(given)}"))
        return
    found: dict[str, Any] = {}
    for name, item in items.items():
        path = f"spec.{word}.items.{name}"
        if not isinstance(item, dict) or "value" not in item or set(item) - {"value"}:
            made.faults.append(Fault(path, f"must be {{value: ...}}, not {_shown(item)}"))
            continue
        try:
            found[name] = known.read(name, item["value"])
        except ValueError as exc:
            made.faults.append(Fault(f"{path}.value", str(exc)))
    made.put(known.path, found if known.named else list(found.values()), f"spec.{word}.items")
    for index, name in enumerate(found):
        made.came_from(f"{known.path}[{index}]", f"spec.{word}.items.{name}.value")


def _special(made: Translation, name: str, spec: Json) -> None:
    called = _plain(spec.get("name"))
    if called not in (None, "", name):
        text = f"is not used: the workload is called {name}, as this object is; call both the same"
        made.left_out.append(Fault("spec.name.value", text))
    if base := _plain(spec.get("baseWorkload")):
        made.put("template", str(base), "spec.baseWorkload")
    usage = _plain(spec.get("usage"))
    made.template_only = usage == "Template"
    if usage not in (None, "Submit", "Template"):
        made.faults.append(Fault("spec.usage", f"must be Submit or Template, not {usage!r}"))
    key = _plain(spec.get("podAffinityTopology"))
    if key:
        rule = _plain(spec.get("podAffinitySchedulingRule")) or "Required"
        made.put(f"topology.{str(rule).lower()}", str(key), "spec.podAffinitySchedulingRule.value")
    elif _plain(spec.get("podAffinity")):
        made.left_out.append(Fault("spec.podAffinity", "does nothing without podAffinityTopology: give a node label"))


def _devices(made: Translation) -> None:
    """`gpuDevices` alone is a number of whole GPUs; with a part of one it says on how many."""
    compute = made.spec.get("compute", {})
    if "gpuDevices" in compute and not {"gpu", "gpuMemory", "migProfile"} & set(compute):
        made.put("compute.gpu", compute.pop("gpuDevices"), "spec.gpuDevices.value")


def _check(made: Translation, name: str) -> None:
    """The workload's own checks, told in their paths; what passes is spelled as workloads are stored."""
    try:
        check_name(KINDS.of(Workload), name)
        typed = decode(Workload, {"metadata": {"name": name}, "spec": made.spec}, strict=True)
        made.spec = encode(typed)["spec"]
    except Invalid as exc:
        made.faults += [Fault(made.origin(fault.path), fault.text) for fault in exc.faults]


def _plain(given: Any) -> Any:
    """Some fields are written both as text and as `{value: text}`."""
    return given.get("value") if isinstance(given, dict) else given


def _shown(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 60 else f"{text[:57]}..."
