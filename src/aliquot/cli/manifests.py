"""Files with objects: parsing and validation.

    Source           a text and the file it came from
    Manifest         one object of a source, with its position
    parse_manifests  source -> manifests; syntax errors name line and column
    validate_all     the faults of all manifests at once, each with file, document and field path

A file contains JSON, YAML, several YAML documents, or a `List`.
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
# Sixteen of the largest objects fit; a larger file is a mistake such as a database dump.
_MAX_FILE_SIZE = 16 * MAX_DOCUMENT
# Values in one object. A few lines of YAML aliases can expand to more than memory holds.
_MAX_VALUES = 500_000
# Written by the server. Files made with `get -o yaml` contain them; they are not sent back.
_SERVER_FIELDS = (
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
    item: int = 0  # its position in a List, from 1; 0 outside of a List

    @property
    def position(self) -> str:
        item = f", item {self.item}" if self.item else ""
        return f"{self.source}: document {self.index}{item}"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # the C one where it is built
    """YAML with the values of JSON: times stay text, and a duplicate key is an error."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key, _ in node.value:
        name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)
        if name in seen and key.tag != "tag:yaml.org,2002:merge":
            raise yaml.MarkedYAMLError(problem=f"key {key.value!r} appears twice", problem_mark=key.start_mark)
        seen.add(name)
    loader.flatten_mapping(node)
    return {
        loader.construct_object(key, deep=True): loader.construct_object(value, deep=True) for key, value in node.value
    }


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def read_sources(paths: Sequence[str], max_size: int = _MAX_FILE_SIZE) -> list[Source]:
    """The texts that `-f` names: files, folders (their files sorted by name), and `-` for stdin."""
    return [source for path in paths for source in _sources(path, max_size)]


def _sources(path: str, max_size: int) -> Iterator[Source]:
    if path == "-":
        try:
            yield Source("stdin", _limited(sys.stdin.read(max_size + 1), "stdin", max_size))
        except UnicodeDecodeError as exc:
            raise Invalid(f"stdin: not UTF-8 text (byte {exc.start})") from None
        return
    folder = Path(path)
    if not folder.is_dir():
        yield _file(folder, max_size)
        return
    files = sorted(each for each in folder.iterdir() if each.suffix in _SUFFIXES and each.is_file())
    if not files:
        raise Invalid(f"{path}: no {', '.join(_SUFFIXES)} files in this folder")
    yield from (_file(each, max_size) for each in files)


def _file(path: Path, max_size: int) -> Source:
    try:
        with path.open(encoding="utf-8") as opened:
            return Source(str(path), _limited(opened.read(max_size + 1), str(path), max_size))
    except UnicodeDecodeError as exc:
        raise Invalid(f"{path}: not UTF-8 text (byte {exc.start})") from None
    except OSError as exc:
        raise Invalid(f"cannot read {path}: {exc.strerror}") from exc


def _limited(text: str, name: str, max_size: int) -> str:
    if len(text) > max_size:
        raise Invalid(f"{name}: larger than {max_size >> 20} MiB", hint="split it")
    return text


def parse_manifests(source: Source) -> list[Manifest]:
    """The objects of a text; a List gives its items. Empty documents are skipped, but count in the position."""
    manifests = []
    for index, data in enumerate(parse_documents(source), start=1):
        if data is None:
            continue
        items = data.get("items") if isinstance(data, dict) and str(data.get("kind", "")).endswith("List") else None
        if isinstance(items, list):
            manifests += [Manifest(source.name, index, each, item) for item, each in enumerate(items, start=1)]
        else:
            manifests.append(Manifest(source.name, index, data))
    return manifests


def parse_documents(source: Source) -> list[Any]:
    """The documents of a text, whatever they contain."""
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
        except ValueError as exc:  # a number with thousands of digits
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
    except ValueError as exc:  # a scalar that matches the pattern of a number but is not one, such as 0o9
        raise Invalid(f"{source.name}: {exc}") from None


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        duplicate = next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))
        raise Invalid(f"key {duplicate!r} appears twice")
    return data


@dataclass(frozen=True, slots=True)
class ValidManifest:
    """A manifest that was validated and can be sent to the server."""

    kind: AnyKind
    document: Document


def validate_all(manifests: Iterable[Manifest], default_namespace: str = "") -> list[ValidManifest]:
    """All manifests as objects to send; `Invalid` with the faults of all of them otherwise."""
    valid: list[ValidManifest] = []
    faults: list[Fault] = []
    for manifest in manifests:
        try:
            valid.append(validate(manifest, default_namespace))
        except PlatformError as exc:
            own = exc.faults or [Fault("", exc.message)]
            faults += [Fault(f"{manifest.position}: {fault.path}".removesuffix(": "), fault.text) for fault in own]
    if faults:
        raise Invalid("; ".join(map(str, faults)), faults=faults, hint="nothing was applied")
    return valid


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
    sent = {key: value for key, value in metadata.items() if key not in _SERVER_FIELDS}
    if kind.namespaced and not sent.get("namespace") and default_namespace:
        sent["namespace"] = default_namespace
    fields = {
        key: value for key, value in data.items() if key != "status" or not kind.has_status or kind.status_on_create
    }
    document: Json = {**fields, "metadata": sent}
    _check_fields(kind, document)
    return ValidManifest(kind, Document(document))


def _check_fields(kind: AnyKind, data: Json) -> None:
    """Check the fields and the metadata together, so that the user sees all faults at once."""
    faults: list[Fault] = []
    for check in (
        lambda: decode(kind.type, data, strict=kind.is_custom_resource),
        lambda: check_name_and_namespace(kind, data["metadata"]),
    ):
        try:
            check()
        except Invalid as exc:
            known = {fault.path for fault in faults}
            faults += [fault for fault in exc.faults if fault.path not in known]
    if faults:
        raise Invalid.because(kind.singular, faults)


def _check_plain(data: Json) -> None:
    """Refuse values that JSON does not have, and too many values. YAML aliases that form a circle count as too many."""
    pending: list[tuple[str, Any]] = [("", data)]
    count = 0
    while pending:
        path, value = pending.pop()
        count += 1
        if count > _MAX_VALUES:
            raise Invalid(f"more than {_MAX_VALUES} values")
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise Invalid.because("manifest", [Fault(path, f"key {key!r} must be text: put it in quotes")])
            pending += [(f"{path}.{key}".lstrip("."), each) for key, each in value.items()]
        elif isinstance(value, list):
            pending += [(f"{path}[{index}]", each) for index, each in enumerate(value)]
        elif isinstance(value, float) and not math.isfinite(value):
            raise Invalid.because("manifest", [Fault(path, f"must be a number, not {value}")])
        elif value is not None and not isinstance(value, (str, int, float)):
            raise Invalid.because(
                "manifest", [Fault(path, f"must be text, a number, a list or an object, not {value!r}")]
            )
