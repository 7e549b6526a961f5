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
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Protocol, TypeVar, dataclass_transform, get_type_hints, runtime_checkable

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel

from aliquot import units
from aliquot.errors import Fault, Invalid

T = TypeVar("T")
Json = dict[str, Any]

# Wire names that are not the camelCase of the Python name: everywhere, and in metadata.
_UNITS_IN_NAMES = {"memory_mib": "memoryMiB"}
_METADATA_NAMES = {
    "version": "resourceVersion",
    "created": "creationTimestamp",
    "deleted": "deletionTimestamp",
    "grace_seconds": "deletionGracePeriodSeconds",
    "owners": "ownerReferences",
}


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


def _metadata_name(name: str) -> str:
    return _METADATA_NAMES.get(name) or to_camel(name)


def _as_milli(value: object) -> int:
    return units.milli(value)


def _as_bytes(value: object) -> int:
    return units.quantity(value)


def _as_duration(value: object) -> int:
    return units.duration(value)


def _as_time(value: object) -> float:
    return units.timestamp(value)


# `x-crd` is what only the custom resources' schemas say (see schema.py). Kubernetes' own `multipleOf` refuses 4.004
# and 0, so the rule is spelled out, with room for binary fractions.
_OFF = "self * 1000.0 - double(int(self * 1000.0 + 0.5))"
THREE_DECIMALS = {"rule": f"{_OFF} < 0.00001 && {_OFF} > -0.00001", "message": "must have at most three decimals"}

# A number of GPUs or cores; thousandths inside.
Milli = Annotated[
    int,
    BeforeValidator(_as_milli),
    PlainSerializer(units.whole_units, return_type=int | float),
    WithJsonSchema({"type": "number", "minimum": 0, "x-crd": {"x-kubernetes-validations": [THREE_DECIMALS]}}),
]
# An amount of memory; bytes inside.
Bytes = Annotated[
    int,
    BeforeValidator(_as_bytes),
    PlainSerializer(units.quantity_text, return_type=str),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "minimum": 0,
            "pattern": r"^([0-9]+(\.[0-9]+)?|\.[0-9]+)(k|[KMGTPE]i?)?B?$",
        }
    ),
]
# A length of time; seconds inside. Reads "5m", writes seconds.
Duration = Annotated[
    int,
    BeforeValidator(_as_duration),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "minimum": 0,
            "pattern": r"^[0-9]+[smhd]?$",
        }
    ),
]
# A moment; seconds since 1970 inside.
Time = Annotated[
    float,
    BeforeValidator(_as_time),
    PlainSerializer(units.timestamp_text, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
_INT64 = 2**63 - 1  # what Go, SQLite and most readers of JSON stop at
Count = Annotated[int, Field(ge=0, le=_INT64)]
Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
Int32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Field(ge=-_INT64, le=_INT64)]
# RFC 1123 label, as names of pods, projects and services must be.
Label = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
Text = Annotated[str, Field(max_length=4096)]
# Text that many objects have in common (a namespace, an image, a reason): kept in memory once.
Word = Annotated[str, AfterValidator(sys.intern)]
Strings = tuple[Word, ...]
Labels = Mapping[Word, str]


class _Nothing(dict[str, Any]):
    """An empty mapping that stays empty. It has a hash, because pydantic copies defaults that have none."""

    def __hash__(self) -> int:  # type: ignore[override]  # dict has none
        return 0

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("shared by all records: make a new mapping")

    def __reduce__(self) -> Any:
        return _nothing, ()


# One shared empty mapping for every field that has none: an object costs what it says, not what it could say.
NOTHING: Any = _Nothing()


def _nothing() -> Any:
    return NOTHING


@record
class Owner:
    """The object this one belongs to, and goes with."""

    api_version: Word
    kind: Word
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


@record
class Metadata:
    """Name, place, version and marks of an object."""

    name: str
    """Unique within the namespace for its kind."""
    namespace: Word = ""
    """Where the object lives; empty for kinds that span the cluster. A project's is `runai-<project>`."""
    uid: str = ""
    """Given by the store; differs after delete and create."""
    version: str = ""
    """Given by the store on every change. Opaque: compare for equality only."""
    generation: Int64 = 0
    """Counts changes of the spec."""
    created: Time | None = None
    """When the object was created."""
    deleted: Time | None = None
    """When the object is due to be gone; set by a delete that has to wait for finalizers or grace."""
    grace_seconds: Int64 | None = None
    """How long the object may take to stop."""
    labels: Labels = NOTHING
    """Short marks to select by."""
    annotations: Labels = NOTHING
    """Free notes of people and programs."""
    finalizers: Strings = ()
    """Who must finish before the object may go."""
    owners: tuple[Owner, ...] = ()
    """Objects this one goes with."""


Metadata.__pydantic_config__ = wire_form(_metadata_name)  # type: ignore[attr-defined]  # read by pydantic


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
    faults = (list(_unwritable(body)) or list(made.faults() if isinstance(made, Ruled) else ())) if strict else ()
    if faults:
        raise Invalid.because(what or cls.__name__.lower(), faults)
    return made


DEEPEST = 100  # nothing sensible comes near; pydantic stops writing at 255


def _unwritable(body: Json) -> Iterator[Fault]:
    """What JSON can spell and free parts let in, but no file, database or other program takes."""
    waiting: list[tuple[tuple[int | str, ...], Any]] = [((), body)]  # no recursion: free parts may be deep
    while waiting:
        place, value = waiting.pop()
        if len(place) > DEEPEST:
            yield Fault(_path(place[:5]), f"must not be nested deeper than {DEEPEST} levels")
        elif isinstance(value, str):
            if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
                yield Fault(_path(place), "must be text without half characters (lone surrogates)")
        elif isinstance(value, Mapping):
            waiting += [((*place, str(key)), part) for key, part in value.items()]
            waiting += [((*place, str(key)), key) for key in value]
        elif isinstance(value, (list, tuple)):
            waiting += [((*place, index), part) for index, part in enumerate(value)]


@runtime_checkable
class Ruled(Protocol):
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


def field_types(cls: type) -> dict[str, Any]:
    """Field name -> its annotated type."""
    return get_type_hints(cls, include_extras=True)
