"""Files with objects: read, and checked whole before anything is sent.

    Source     a text and where it came from
    Manifest   one object in it, known by file and position
    read       files -> manifests; syntax errors with line and column
    check      every fault of every manifest at once, each with file, document and field path

A file holds JSON, YAML, several YAML documents, or a `List`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from aliquot.api import KINDS, Json, decode
from aliquot.errors import Fault, Invalid, PlatformError
from aliquot.store.driver import MAX_DOCUMENT, AnyKind, Document
from aliquot.store.object_rules import check_name_and_namespace

_SUFFIXES = (".yaml", ".yml", ".json")
# Room for sixteen of the largest objects; more is a mistake such as a database dump.
_LARGEST_FILE = 16 * MAX_DOCUMENT
# Values in one file. YAML aliases can spell more than memory holds in a few lines.
_MOST_VALUES = 500_000
# Given by the store: read from a file made by `get -o yaml`, and not sent back.
_STORES = (
    "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
    "deletionGracePeriodSeconds", "managedFields", "selfLink",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Source:
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Manifest:
    source: str
    index: int  # counts from 1
    data: Any
    item: int = 0  # its place in a List, from 1; 0 when it stands alone

    @property
    def place(self) -> str:
        item = f", item {self.item}" if self.item else ""
        return f"{self.source}: document {self.index}{item}"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # the C one where it is built
    """YAML as JSON has it: times stay text, and a key that stands twice is an error."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key, _ in node.value:
        name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)
        if name in seen and key.tag != "tag:yaml.org,2002:merge":
            raise yaml.MarkedYAMLError(problem=f"key {key.value!r} stands twice", problem_mark=key.start_mark)
        seen.add(name)
    loader.flatten_mapping(node)
    return {
        loader.construct_object(key, deep=True): loader.construct_object(value, deep=True) for key, value in node.value
    }


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def read_sources(paths: Sequence[str], largest: int = _LARGEST_FILE) -> list[Source]:
    """The texts that `-f` names: files, folders (their files by name), and `-` for stdin."""
    return [source for path in paths for source in _sources(path, largest)]


def _sources(path: str, largest: int) -> Iterator[Source]:
    if path == "-":
        try:
            yield Source("stdin", _limited(sys.stdin.read(largest + 1), "stdin", largest))
        except UnicodeDecodeError as exc:
            raise Invalid(f"stdin: not UTF-8 text (byte {exc.start})") from None
        return
    found = Path(path)
    if not found.is_dir():
        yield _file(found, largest)
        return
    files = sorted(each for each in found.iterdir() if each.suffix in _SUFFIXES and each.is_file())
    if not files:
        raise Invalid(f"{path}: no {', '.join(_SUFFIXES)} files in this folder")
    yield from (_file(each, largest) for each in files)


def _file(path: Path, largest: int) -> Source:
    try:
        with path.open(encoding="utf-8") as opened:
            return Source(str(path), _limited(opened.read(largest + 1), str(path), largest))
    except UnicodeDecodeError as exc:
        raise Invalid(f"{path}: not UTF-8 text (byte {exc.start})") from None
    except OSError as exc:
        raise Invalid(f"cannot read {path}: {exc.strerror}") from exc


def _limited(text: str, name: str, largest: int) -> str:
    if len(text) > largest:
        raise Invalid(f"{name}: larger than {largest >> 20} MiB", hint="split it")
    return text


def parse_manifests(source: Source) -> list[Manifest]:
    """The objects in a text, lists opened; empty documents do not count as objects, but keep their number."""
    found = []
    for index, data in enumerate(parse_documents(source), start=1):
        if data is None:
            continue
        items = data.get("items") if isinstance(data, dict) and str(data.get("kind", "")).endswith("List") else None
        if isinstance(items, list):
            found += [Manifest(source.name, index, each, item) for item, each in enumerate(items, start=1)]
        else:
            found.append(Manifest(source.name, index, data))
    return found


def parse_documents(source: Source) -> list[Any]:
    """The documents of a text, whatever they are about."""
    text = source.text.lstrip("\ufeff")
    looks_json = source.name.endswith(".json") or text.lstrip()[:1] in ("{", "[")
    if looks_json:
        try:
            return [json.loads(text, object_pairs_hook=_pairs)]
        except RecursionError:
            raise Invalid(f"{source.name}: nested too deeply") from None
        except json.JSONDecodeError as exc:
            if source.name.endswith(".json"):
                raise Invalid(f"{source.name}: line {exc.lineno}, column {exc.colno}: {exc.msg}") from None
        except ValueError as exc:  # a number of thousands of digits
            raise Invalid(f"{source.name}: {exc}") from None
    try:
        return list(yaml.load_all(text, Loader=_Loader))  # derived from the safe loader
    except RecursionError:
        raise Invalid(f"{source.name}: nested too deeply") from None
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise Invalid(f"{source.name}: {where}{exc.problem or exc.context}") from None
    except yaml.reader.ReaderError as exc:
        line = text.count("\n", 0, exc.position) + 1
        raise Invalid(f"{source.name}: line {line}: {exc.reason}") from None
    except ValueError as exc:  # a scalar that fits its pattern and is none all the same, such as 0o9
        raise Invalid(f"{source.name}: {exc}") from None


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        twice = next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))
        raise Invalid(f"key {twice!r} stands twice")
    return data


@dataclass(frozen=True, slots=True)
class ValidManifest:
    """A manifest that can be sent."""

    kind: AnyKind
    document: Document


def validate_all(manifests: Iterable[Manifest], default_namespace: str = "") -> list[ValidManifest]:
    """Every manifest as an object to send; `Invalid` with the faults of all of them otherwise."""
    checked: list[ValidManifest] = []
    faults: list[Fault] = []
    for manifest in manifests:
        try:
            checked.append(validate(manifest, default_namespace))
        except PlatformError as exc:
            found = exc.faults or [Fault("", exc.message)]
            faults += [Fault(f"{manifest.place}: {fault.path}".removesuffix(": "), fault.text) for fault in found]
    if faults:
        raise Invalid("; ".join(map(str, faults)), faults=faults, hint="nothing was applied")
    return checked


def validate(manifest: Manifest, default_namespace: str = "") -> ValidManifest:
    data = manifest.data
    if not isinstance(data, dict):
        raise Invalid("must be an object with apiVersion, kind and metadata")
    _check_plain(data)
    missing = [Fault(name, "is required") for name in ("apiVersion", "kind") if not data.get(name)]
    if missing:
        raise Invalid.because("manifest", missing)
    kind = KINDS.declared(data["apiVersion"], data["kind"])
    metadata = data.get("metadata")
    if not isinstance(metadata, dict):
        raise Invalid.because(
            kind.singular, [Fault("metadata", "is required" if metadata is None else "must be an object")]
        )
    sent = {key: value for key, value in metadata.items() if key not in _STORES}
    if kind.namespaced and not sent.get("namespace") and default_namespace:
        sent["namespace"] = default_namespace
    body = {
        key: value for key, value in data.items() if key != "status" or not kind.has_status or kind.status_on_create
    }
    whole: Json = {**body, "metadata": sent}
    _check_fields(kind, whole)
    return ValidManifest(kind, Document(whole))


def _check_fields(kind: AnyKind, data: Json) -> None:
    """What the type says and what the place says, together: one round of corrections instead of two."""
    faults: list[Fault] = []
    for look in (
        lambda: decode(kind.type, data, strict=kind.is_custom_resource),
        lambda: check_name_and_namespace(kind, data["metadata"]),
    ):
        try:
            look()
        except Invalid as exc:
            known = {fault.path for fault in faults}
            faults += [fault for fault in exc.faults if fault.path not in known]
    if faults:
        raise Invalid.because(kind.singular, faults)


def _check_plain(data: Json) -> None:
    """Only what JSON can say, and not too much of it; aliases in a circle end here too."""
    waiting: list[tuple[str, Any]] = [("", data)]
    count = 0
    while waiting:
        path, value = waiting.pop()
        count += 1
        if count > _MOST_VALUES:
            raise Invalid(f"more than {_MOST_VALUES} values")
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise Invalid.because("manifest", [Fault(path, f"key {key!r} must be text: put it in quotes")])
            waiting += [(f"{path}.{key}".lstrip("."), each) for key, each in value.items()]
        elif isinstance(value, list):
            waiting += [(f"{path}[{index}]", each) for index, each in enumerate(value)]
        elif isinstance(value, float) and not math.isfinite(value):
            raise Invalid.because("manifest", [Fault(path, f"must be a number, not {value}")])
        elif value is not None and not isinstance(value, (str, int, float)):
            raise Invalid.because(
                "manifest", [Fault(path, f"must be text, a number, a list or an object, not {value!r}")]
            )
