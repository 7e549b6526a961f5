"""Reads the ledgers that the sharing library keeps, and the limits it is told. Their form: native/gpushare/README.md.

Only for reports: what a pod really holds, the driver says.
"""

from __future__ import annotations

import os
import re
import struct
import uuid
from dataclasses import dataclass
from pathlib import Path

_MAGIC, _VERSION = 0x47505348, 1
_ENTRY = re.compile(r"cu[A-Z]\w{0,60}", re.ASCII)
_SIZE = 131072
_HEADER = struct.Struct("<IIII16s64s4Q")
_REFUSAL = struct.Struct("<QIIQ")
_UNKNOWN = struct.Struct("<II64s")
_DEVICE = struct.Struct("<16sQQ")
_DEVICES_AT, _REFUSAL_AT, _UNKNOWN_AT = 192, 704, 728
_DEVICE_COUNT = 16


@dataclass(frozen=True, slots=True)
class Ledger:
    tenant: str = ""
    # Since it was made.
    refusals: int = 0
    # Bytes that were asked for when it last refused.
    asked: int = 0
    # Bytes that were held on that GPU; of the dead as well, until another process of the pod gives back theirs.
    held: int = 0
    # An entry point of the driver that the library does not know; empty: none.
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class Limit:
    # Now; moves between the two others.
    limit: int
    guaranteed: int
    cap: int


def read(path: Path) -> Ledger:
    """What it says; nothing where there is none, or none yet."""
    try:
        with path.open("rb") as file:
            data = file.read(_SIZE + 1)  # the file is the pod's to write, and may be of any length
    except OSError:
        return Ledger()
    if len(data) != _SIZE:
        return Ledger()
    magic, version, _, complete, _, tenant, _, _, refusals, _ = _HEADER.unpack_from(data)
    if (magic, version, complete) != (_MAGIC, _VERSION, 1):
        return Ledger()
    asked, device, _, _ = _REFUSAL.unpack_from(data, _REFUSAL_AT)
    total = _DEVICE.unpack_from(data, _DEVICES_AT + _DEVICE.size * (device % _DEVICE_COUNT))[2]
    seen, _, name = _UNKNOWN.unpack_from(data, _UNKNOWN_AT)
    unknown = _text(name) if seen else ""
    # The pod can write here what it likes: nothing but a name goes on from here.
    return Ledger(_text(tenant), refusals, asked, total, unknown if _ENTRY.fullmatch(unknown) else "")


def is_damaged(path: Path, tenant: str, boot: str) -> bool:
    """Whether the library would refuse it: no ledger, another pod's, or from before the machine's last start.

    One that nobody has written to yet is as good as new.
    """
    try:
        with path.open("rb") as file:
            head, size = file.read(_HEADER.size), path.stat().st_size
    except OSError:
        return False
    if size != _SIZE:
        return True
    if not any(head):
        return False
    magic, version, said, complete, started, name, *_ = _HEADER.unpack(head)
    ours = uuid.UUID(boot).bytes if boot else started
    return (magic, version, said, complete, started, _text(name)) != (_MAGIC, _VERSION, _SIZE, 1, ours, tenant)


def read_limits(path: Path) -> dict[str, Limit]:
    """Bytes by GPU; nothing where the file cannot be read."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return {}
    found = {}
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "gpu":
            gpu, *pairs = rest.split()
            amounts = dict(pair.partition("=")[::2] for pair in pairs)
            limit = int(amounts["limit"])
            found[gpu] = Limit(limit, int(amounts.get("guaranteed", limit)), int(amounts.get("cap", limit)))
    return found


def write_limit(path: Path, gpu: str, limit: int) -> bool:
    """Change what a pod may hold on one GPU, while it runs; False when it is so already, or the file is gone.

    In one write, then the length: pods have this very file mounted, and a half of it must never be seen.
    """
    try:
        text = path.read_text(encoding="ascii")
    except OSError:
        return False
    lines = [_changed(line, gpu, limit) for line in text.splitlines()]
    fresh = "".join(line + "\n" for line in lines).encode()
    if fresh == text.encode():
        return False
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.ftruncate(handle, os.pwrite(handle, fresh, 0))
    finally:
        os.close(handle)
    return True


def _changed(line: str, gpu: str, limit: int) -> str:
    if not line.startswith(f"gpu {gpu} "):
        return line
    return " ".join(f"limit={limit}" if word.startswith("limit=") else word for word in line.split(" "))


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("ascii", "replace")
