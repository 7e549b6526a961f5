"""Values inside JSON objects, by the path of their field."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aliquot.api import Json


def value_at(data: Any, path: Iterable[str]) -> Any:
    """The value of a field; None where it or one of its parents is missing."""
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def nested(path: str, value: Any) -> Json:
    """A JSON object with the value at a dotted path, and nothing else."""
    for key in reversed(path.split(".")):
        value = {key: value}
    result: Json = value
    return result
