"""What objects may be called."""

from __future__ import annotations

import re
from typing import Any

from aliquot.api.kind import Kind
from aliquot.errors import Fault, Invalid

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


_LETTER_FIRST = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def check_name(kind: Kind[Any], name: object) -> str:
    """The name, if an object of this kind may have it; `Invalid` with path `metadata.name` otherwise."""
    fault = _fault(kind, name)
    if fault:
        raise Invalid.because(kind.singular, [Fault("metadata.name", fault)])
    return str(name)


def _fault(kind: Kind[Any], name: object) -> str:
    if name is None or name == "":
        return "is required"
    if not isinstance(name, str):
        return f"must be text, not {name!r}"
    if len(name) > kind.max_name_length:
        return f"must have at most {kind.max_name_length} characters, not {len(name)}"
    pattern, wording = _rule(kind)
    return "" if pattern.fullmatch(name) else f"must be {wording}, not {name!r}"


def _rule(kind: Kind[Any]) -> tuple[re.Pattern[str], str]:
    if kind.name_starts_with_letter:
        return _LETTER_FIRST, "lower-case letters, digits and hyphens, a letter first and no hyphen last"
    if kind.name_is_label:
        return _LABEL, "lower-case letters, digits and hyphens, with no hyphen first or last"
    return _SUBDOMAIN, "lower-case letters, digits, hyphens and dots, with a letter or digit first and last"


def name_pattern(kind: Kind[Any]) -> str:
    """The same rule as an anchored regular expression, for schemas."""
    return f"^{_rule(kind)[0].pattern}$"
