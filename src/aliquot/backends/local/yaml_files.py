"""Small YAML files that people write for us: cluster descriptions and image catalogues.

Read strictly: an unknown field, a key that stands twice or a wrong value is an error that names file and place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml

from aliquot.api import decode
from aliquot.errors import Fault, Invalid

T = TypeVar("T")
_LARGEST = 1 << 20  # a description of a thousand nodes has a tenth of it


class _Loader(yaml.SafeLoader):
    """YAML in which a key that stands twice is an error; plain YAML keeps the last in silence."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key, _ in node.value:
        if key.value in seen:
            raise yaml.MarkedYAMLError(problem=f"key {key.value!r} stands twice", problem_mark=key.start_mark)
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
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise Invalid(f"{name}{place}: {exc.problem or 'not YAML'}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise Invalid(f"{name}: not YAML: {str(exc).splitlines()[0]}") from None
    return decode(cls, _with_text_keys({} if data is None else data, name), strict=True, what=name)


def _with_text_keys(data: Any, name: str) -> Any:
    """JSON knows only text as keys; YAML reads `1:` and `on:` as other things."""
    if isinstance(data, dict):
        for key in data:
            if not isinstance(key, str):
                raise Invalid.because(name, [Fault("", f"key {key!r} must be text: put it in quotes")])
        return {key: _with_text_keys(value, name) for key, value in data.items()}
    return [_with_text_keys(each, name) for each in data] if isinstance(data, list) else data


def _text(path: Path) -> str:
    try:
        with path.open("rb") as opened:
            data = opened.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise Invalid(f"{path}: larger than {_LARGEST >> 20} MiB")
        return data.decode()
    except UnicodeDecodeError as exc:
        raise Invalid(f"{path}: not UTF-8 text (byte {exc.start})") from None
    except OSError as exc:
        raise Invalid(f"cannot read {path}: {exc.strerror}") from exc
