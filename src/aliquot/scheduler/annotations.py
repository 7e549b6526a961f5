"""Reads the JSON that the scheduler keeps in annotations of pods."""

from __future__ import annotations

import json
from typing import Any

from aliquot.api import Pod


def json_annotation(pod: Pod, key: str) -> dict[str, Any] | None:
    """The object in an annotation; None where it is absent or not a JSON object."""
    text = pod.metadata.annotations.get(key)
    if not text:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
