"""The GPU sharing library as package data: one shared object per machine architecture.

`make native` builds them from native/gpushare. One wheel serves every architecture, so it contains all builds, and each
node picks its own.
"""

from __future__ import annotations

import platform
from pathlib import Path

MACHINES = ("x86_64", "aarch64")


def library(machine: str | None = None) -> Path | None:
    """The shared object for an architecture (default: this machine's), or None where none was built for it."""
    path = Path(__file__).parent / f"libgpushare-{machine or platform.machine()}.so"
    return path if path.is_file() else None
