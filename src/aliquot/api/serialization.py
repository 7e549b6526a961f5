"""What every kind of object shares: how it is written down, its metadata, and its way between JSON and Python.

A type is declared once, as a frozen slotted dataclass (`@record`), and used three ways:

    decode   JSON -> object, checked: every fault at once, each with its path (`spec.quota.gpu`)
    encode   object -> JSON, sparse: what equals its default is left out
    schema   JSON Schema, OpenAPI and the custom resources' schemas (see schema.py)

On the wire an object looks as on Kubernetes: camelCase, `metadata.resourceVersion`, RFC 3339 times. Inside it has
integers in base units and seconds. The string under a field is its documentation: `kubectl explain` and the API
reference show it, so it is written for users.

Decoding has two strengths. At the edge (`strict=True`) an unknown field is an error, because it is a typing mistake.
From a store it is ignored, because a newer version or another program wrote it; nothing we write back removes it,
since stores are changed by merge patch (see store.base).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar, dataclass_transform, get_type_hints, runtime_checkable

from pydantic import (
    ConfigDict,
    TypeAdapter,
    ValidationError,
)
from pydantic.alias_generators import to_camel

from aliquot.errors import Fault, Invalid

T = TypeVar("T")


Json = dict[str, Any]


# Wire names that are not the camelCase of the Python name: everywhere, and in metadata.
_UNITS_IN_NAMES = {"memory_mib": "memoryMiB"}


def wire_form(names: Callable[[str], str]) -> ConfigDict:
    # JSON has neither NaN nor infinity, so neither may get in.
    return ConfigDict(alias_generator=names, extra="ignore", allow_inf_nan=False)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def record(cls: type[T]) -> type[T]:
    """A frozen, slotted dataclass with a camelCase wire form."""
    cls.__pydantic_config__ = wire_form(wire_name)  # type: ignore[attr-defined]  # read by pydantic
    return dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(cls)


def wire_name(name: str) -> str:
    return _UNITS_IN_NAMES.get(name) or to_camel(name)


_CAPITALS = {
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


def _kube_name(name: str) -> str:
    return _CAPITALS.get(name) or to_camel(name)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def kubernetes_record(cls: type[T]) -> type[T]:
    """A `record` with Kubernetes' field names."""
    made = record(cls)
    made.__pydantic_config__ = wire_form(_kube_name)  # type: ignore[attr-defined]  # read by pydantic
    return made


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def adapter(cls: type[T]) -> TypeAdapter[T]:
    """The validator of one type. Built on first use: it costs milliseconds, and `--help` needs none."""
    found = _ADAPTERS.get(cls)
    if found is None:
        found = _ADAPTERS[cls] = TypeAdapter(cls)
    return found


def decode(cls: type[T], data: Mapping[str, Any], *, strict: bool = False, what: str = "") -> T:
    """The object that JSON describes; `Invalid` with every fault otherwise.

    `strict` also refuses unknown fields, and asks the type's method `faults`, where it has one, for rules that span
    fields. From a store neither is asked: a rule that is added later must not make stored objects unreadable.
    """
    if not isinstance(data, Mapping):
        raise Invalid.because(what or cls.__name__.lower(), [Fault("", "must be an object")])
    body = {key: value for key, value in data.items() if key not in ("apiVersion", "kind")}
    try:
        made = adapter(cls).validate_python(body, extra="forbid" if strict else "ignore")
    except ValidationError as exc:
        raise Invalid.because(what or cls.__name__.lower(), faults_of(exc)) from None
    # What cannot even be written is not looked at further: rules need not be ready for it.
    faults = (
        (list(_unwritable(body)) or list(made.faults() if isinstance(made, HasCrossFieldRules) else ()))
        if strict
        else ()
    )
    if faults:
        raise Invalid.because(what or cls.__name__.lower(), faults)
    return made


MAX_DEPTH = 100  # nothing sensible comes near; pydantic stops writing at 255


def _unwritable(body: Json) -> Iterator[Fault]:
    """What JSON can spell and free parts let in, but no file, database or other program takes."""
    waiting: list[tuple[tuple[int | str, ...], Any]] = [((), body)]  # no recursion: free parts may be deep
    while waiting:
        place, value = waiting.pop()
        if len(place) > MAX_DEPTH:
            yield Fault(_path(place[:5]), f"must not be nested deeper than {MAX_DEPTH} levels")
        elif isinstance(value, str):
            if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
                yield Fault(_path(place), "must be text without half characters (lone surrogates)")
        elif isinstance(value, Mapping):
            waiting += [((*place, str(key)), part) for key, part in value.items()]
            waiting += [((*place, str(key)), key) for key in value]
        elif isinstance(value, (list, tuple)):
            waiting += [((*place, index), part) for index, part in enumerate(value)]


@runtime_checkable
class HasCrossFieldRules(Protocol):
    """A type with rules that span fields."""

    def faults(self) -> Iterable[Fault]: ...


def encode(obj: Any) -> Json:
    """Sparse JSON of an object, without `apiVersion` and `kind`.

    Paths in the type's `ALWAYS` are written even when they have their default, because people select by them.
    """
    out: Json = adapter(type(obj)).dump_python(obj, mode="json", by_alias=True, exclude_defaults=True)
    for path in getattr(type(obj), "ALWAYS", ()):
        part, value = out, obj
        *above, last = path.split(".")
        for name in above:
            part, value = part.setdefault(name, {}), getattr(value, name)
        part.setdefault(last, getattr(value, last))
    return out


def faults_of(exc: ValidationError) -> list[Fault]:
    """Pydantic's errors in our words."""
    faults: dict[str, Fault] = {}
    for error in exc.errors(include_url=False, include_input=True):
        fault = Fault(_path(error["loc"]), _wording(error))
        faults.setdefault(fault.path, fault)  # a union reports each branch; the first says enough
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


def _wording(error: Any) -> str:
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
    """Field name -> its annotated type."""
    return get_type_hints(cls, include_extras=True)
