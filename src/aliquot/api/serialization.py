"""Serialization of API types: between JSON and Python, with validation.

A type is declared once, as a frozen slotted dataclass (`@record`), and used three ways:

    decode   JSON -> object, validated: every fault at once, each with its path (`spec.quota.gpu`)
    encode   object -> JSON, sparse: fields that equal their default are left out
    schema   JSON Schema, OpenAPI and the schemas of custom resources (see schema.py and crds.py)

On the wire, objects have the shape of Kubernetes' objects: camelCase, `metadata.resourceVersion`, RFC 3339 times. In
Python they have integers in base units and seconds. The string under a field is its documentation, which
`kubectl explain` and the API reference show, so it is written for users.

Decoding is strict or lenient. From a client (`strict=True`) an unknown field is an error, because it is a typing
mistake. From a store it is ignored, because a newer version or another program wrote it. What we write back does not
remove it, because stores apply merge patches (see store/driver.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar, dataclass_transform, get_type_hints, runtime_checkable

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from aliquot.errors import Fault, Invalid

T = TypeVar("T")
Json = dict[str, Any]

# Wire names that are not the camelCase of the Python name: in our own types, and in Kubernetes' types.
_NAMES_WITH_UNITS = {"memory_mib": "memoryMiB"}
_KUBERNETES_NAMES = {
    "pod_ip": "podIP",
    "host_ip": "hostIP",
    "cluster_ip": "clusterIP",
    "host_ipc": "hostIPC",
    "host_pid": "hostPID",
    "container_id": "containerID",
    "image_id": "imageID",
    "machine_id": "machineID",
    "system_uuid": "systemUUID",
    "boot_id": "bootID",
    "provider_id": "providerID",
}


def wire_config(wire_name: Callable[[str], str]) -> ConfigDict:
    """Pydantic's settings for a type whose wire names a function gives."""
    # JSON has neither NaN nor infinity, so both are refused.
    return ConfigDict(alias_generator=wire_name, extra="ignore", allow_inf_nan=False)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def record(cls: type[T]) -> type[T]:
    """Makes a class a frozen, slotted dataclass with camelCase wire names."""
    cls.__pydantic_config__ = wire_config(wire_name)  # type: ignore[attr-defined]  # read by pydantic
    return dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(cls)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def kubernetes_record(cls: type[T]) -> type[T]:
    """A `record` with Kubernetes' wire names, such as podIP."""
    recorded = record(cls)
    recorded.__pydantic_config__ = wire_config(_kubernetes_wire_name)  # type: ignore[attr-defined]  # read by pydantic
    return recorded


def wire_name(name: str) -> str:
    """The wire name of a field of a `record`."""
    return _NAMES_WITH_UNITS.get(name) or to_camel(name)


def _kubernetes_wire_name(name: str) -> str:
    return _KUBERNETES_NAMES.get(name) or to_camel(name)


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def adapter(cls: type[T]) -> TypeAdapter[T]:
    """The validator of a type. It is built on first use, because that takes milliseconds and `--help` needs none."""
    cached = _ADAPTERS.get(cls)
    if cached is None:
        cached = _ADAPTERS[cls] = TypeAdapter(cls)
    return cached


def decode(cls: type[T], data: Mapping[str, Any], *, strict: bool = False, what: str = "") -> T:
    """The object that JSON describes; `Invalid` with every fault otherwise.

    `strict` also refuses unknown fields, and checks rules that span fields (the type's method `faults`). Objects from
    a store are not decoded strictly: a rule that is added later must not make stored objects unreadable.
    """
    if not isinstance(data, Mapping):
        raise Invalid.because(what or cls.__name__.lower(), [Fault("", "must be an object")])
    fields = {key: value for key, value in data.items() if key not in ("apiVersion", "kind")}
    try:
        decoded = adapter(cls).validate_python(fields, extra="forbid" if strict else "ignore")
    except ValidationError as exc:
        raise Invalid.because(what or cls.__name__.lower(), faults_of(exc)) from None
    faults: list[Fault] = []
    if strict:
        # Rules that span fields need not handle what cannot be stored.
        faults = list(_unstorable(fields)) or list(decoded.faults() if isinstance(decoded, HasCrossFieldRules) else ())
    if faults:
        raise Invalid.because(what or cls.__name__.lower(), faults)
    return decoded


MAX_DEPTH = 100  # far more than any object needs; pydantic stops encoding at 255


def _unstorable(fields: Json) -> Iterator[Fault]:
    """Values that JSON and untyped fields allow, but that no file, database or other program accepts."""
    # A list instead of recursion: untyped fields may be nested deeply.
    pending: list[tuple[tuple[int | str, ...], Any]] = [((), fields)]
    while pending:
        location, value = pending.pop()
        if len(location) > MAX_DEPTH:
            yield Fault(_path(location[:5]), f"must not be nested deeper than {MAX_DEPTH} levels")
        elif isinstance(value, str):
            if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
                yield Fault(_path(location), "must be text without half characters (lone surrogates)")
        elif isinstance(value, Mapping):
            pending += [((*location, str(key)), part) for key, part in value.items()]
            pending += [((*location, str(key)), key) for key in value]
        elif isinstance(value, (list, tuple)):
            pending += [((*location, index), part) for index, part in enumerate(value)]


@runtime_checkable
class HasCrossFieldRules(Protocol):
    """A type with rules that span fields."""

    def faults(self) -> Iterable[Fault]: ...


def encode(obj: Any) -> Json:
    """Sparse JSON of an object, without `apiVersion` and `kind`.

    Paths in the type's `ALWAYS` are written even when they have their default, because users select by them.
    """
    out: Json = adapter(type(obj)).dump_python(obj, mode="json", by_alias=True, exclude_defaults=True)
    for path in getattr(type(obj), "ALWAYS", ()):
        part, value = out, obj
        *parents, last = path.split(".")
        for name in parents:
            part, value = part.setdefault(name, {}), getattr(value, name)
        part.setdefault(last, getattr(value, last))
    return out


def faults_of(exc: ValidationError) -> list[Fault]:
    """Pydantic's errors as faults, one for each path."""
    faults: dict[str, Fault] = {}
    for error in exc.errors(include_url=False, include_input=True):
        fault = Fault(_path(error["loc"]), _message(error))
        faults.setdefault(fault.path, fault)  # a union reports each of its members; the first is enough
    return list(faults.values())


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier():
            path += f".{part}"
        else:
            path += f"[{part!r}]"
    return path.removeprefix(".")


UNKNOWN_FIELD = "unknown field"


def _message(error: Any) -> str:
    context = error.get("ctx", {})
    given = error.get("input")
    shown = "" if isinstance(given, (dict, list)) or len(repr(given)) > 60 else f", not {given!r}"
    match error["type"]:
        case "missing" | "missing_keyword_only_argument" | "missing_argument":
            return "is required"
        case "unexpected_keyword_argument" | "extra_forbidden" | "no_such_attribute":
            return UNKNOWN_FIELD
        case "value_error":
            return str(context.get("error", error["msg"]))
        case "literal_error" | "enum":
            return f"must be one of {context['expected'].replace(' or ', ', ')}{shown}".replace("'", "")
        case "string_pattern_mismatch":
            return f"must match {context['pattern']}{shown}"
        case "string_too_long":
            return f"must have at most {context['max_length']} characters"
        case "string_too_short":
            return f"must have at least {context['min_length']} characters"
        case "greater_than_equal":
            return f"must be at least {context['ge']:g}{shown}"
        case "less_than_equal":
            return f"must be at most {context['le']:g}{shown}"
        case "dataclass_type" | "dict_type" | "mapping_type" | "model_type":
            return f"must be an object{shown}"
        case "tuple_type" | "list_type":
            return f"must be a list{shown}"
        case "int_parsing" | "int_type" | "int_from_float":
            return f"must be a whole number{shown}"
        case "float_parsing" | "float_type":
            return f"must be a number{shown}"
        case "bool_parsing" | "bool_type":
            return f"must be true or false{shown}"
        case "string_type":
            return f"must be text{shown}"
        case "finite_number":
            return f"must be a finite number{shown}"
        case "greater_than":
            return f"must be more than {context['gt']:g}{shown}"
        case _:
            return str(error["msg"]).lower()


def type_hints_of(cls: type) -> dict[str, Any]:
    """The annotated type of each field."""
    return get_type_hints(cls, include_extras=True)
