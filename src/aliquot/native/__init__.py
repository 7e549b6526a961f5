"""The sharing library as data: one shared object per machine architecture, built by `make native` from native/gpushare.

One wheel serves every platform, so both builds travel in it and the node picks its own.
"""

from __future__ import annotations

import platform
from pathlib import Path

MACHINES = ("x86_64", "aarch64")


def library(machine: str | None = None) -> Path | None:
    """The shared object for a machine (default: this one), or None where none was built for it."""
    found = Path(__file__).parent / f"libgpushare-{machine or platform.machine()}.so"
    return found if found.is_file() else None
