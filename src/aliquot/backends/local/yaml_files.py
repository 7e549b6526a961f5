"""Reads small YAML files that users write: cluster descriptions and image catalogues.

Parsing is strict: an unknown field, a duplicate key or a wrong value is an error that names the file and the position.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml

from aliquot.api import decode
from aliquot.errors import Fault, Invalid

T = TypeVar("T")
_MAX_BYTES = 1 << 20  # a description of a thousand nodes takes a tenth of it


class _Loader(yaml.SafeLoader):
    """Refuses duplicate keys; PyYAML silently keeps the last."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key, _ in node.value:
        if key.value in seen:
            raise yaml.MarkedYAMLError(problem=f"key {key.value!r} appears twice", problem_mark=key.start_mark)
        seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def read(cls: type[T], path: Path) -> T:
    """The object that a file describes; `Invalid` with every fault otherwise."""
    return parse(cls, _text(path), str(path))


def parse(cls: type[T], text: str, name: str) -> T:
    try:
        data = yaml.load(text, _Loader)  # noqa: S506  # a SafeLoader
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark
        position = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise Invalid(f"{name}{position}: {exc.problem or 'not YAML'}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise Invalid(f"{name}: not YAML: {str(exc).splitlines()[0]}") from None
    return decode(cls, _with_text_keys({} if data is None else data, name), strict=True, what=name)


def _with_text_keys(data: Any, name: str) -> Any:
    """Refuse keys that are not text: YAML reads `1:` as a number and `on:` as a boolean."""
    if isinstance(data, dict):
        for key in data:
            if not isinstance(key, str):
                raise Invalid.because(name, [Fault("", f"key {key!r} must be text: put it in quotes")])
        return {key: _with_text_keys(value, name) for key, value in data.items()}
    return [_with_text_keys(item, name) for item in data] if isinstance(data, list) else data


def _text(path: Path) -> str:
    try:
        with path.open("rb") as opened:
            data = opened.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise Invalid(f"{path}: larger than {_MAX_BYTES >> 20} MiB")
        return data.decode()
    except UnicodeDecodeError as exc:
        raise Invalid(f"{path}: not UTF-8 text (byte {exc.start})") from None
    except OSError as exc:
        raise Invalid(f"cannot read {path}: {exc.strerror}") from exc
