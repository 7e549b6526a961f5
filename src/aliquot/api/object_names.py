"""Rules for the names of objects."""

from __future__ import annotations

import re
from typing import Any

from aliquot.api.kind import Kind
from aliquot.errors import Fault, Invalid

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


_LETTER_FIRST = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def check_name(kind: Kind[Any], name: object) -> str:
    """The name, if it is valid for the kind; `Invalid` with path `metadata.name` otherwise."""
    message = _fault_message(kind, name)
    if message:
        raise Invalid.because(kind.singular, [Fault("metadata.name", message)])
    return str(name)


def _fault_message(kind: Kind[Any], name: object) -> str:
    if name is None or name == "":
        return "is required"
    if not isinstance(name, str):
        return f"must be text, not {name!r}"
    if len(name) > kind.max_name_length:
        return f"must have at most {kind.max_name_length} characters, not {len(name)}"
    pattern, rule = _rule(kind)
    return "" if pattern.fullmatch(name) else f"must be {rule}, not {name!r}"


def _rule(kind: Kind[Any]) -> tuple[re.Pattern[str], str]:
    """The pattern of valid names, and the same in words."""
    if kind.name_starts_with_letter:
        return _LETTER_FIRST, "lower-case letters, digits and hyphens, a letter first and no hyphen last"
    if kind.name_is_label:
        return _LABEL, "lower-case letters, digits and hyphens, with no hyphen first or last"
    return _SUBDOMAIN, "lower-case letters, digits, hyphens and dots, with a letter or digit first and last"


def name_pattern(kind: Kind[Any]) -> str:
    """The rule of a kind as an anchored regular expression, for schemas."""
    return f"^{_rule(kind)[0].pattern}$"
