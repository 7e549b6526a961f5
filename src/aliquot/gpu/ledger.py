"""Reads a pod's ledger, the file in which the sharing library counts the GPU memory of the pod's processes.

Its format is documented in native/gpushare/README.md. The pod can write anything into it, so it serves only for
reports: what a pod really holds is asked of the driver. The library calls the pod's uid the tenant.
"""

from __future__ import annotations

import re
import struct
import uuid
from dataclasses import dataclass
from pathlib import Path

from aliquot.gpu.limits_file import MAX_DEVICES

LEDGER_BYTES = 131072
_MAGIC, _VERSION = 0x47505348, 1
_ENTRY_POINT = re.compile(r"cu[A-Z]\w{0,60}", re.ASCII)
_HEADER = struct.Struct("<IIII16s64s4Q")
_REFUSAL = struct.Struct("<QIIQ")
_UNKNOWN = struct.Struct("<II64s")
_DEVICE = struct.Struct("<16sQQ")
_DEVICES_AT, _REFUSAL_AT, _UNKNOWN_AT = 192, 704, 728


@dataclass(frozen=True, slots=True)
class Ledger:
    pod_uid: str = ""
    # Allocations refused since the ledger was created.
    refusals: int = 0
    # Bytes requested by the last allocation that was refused.
    requested: int = 0
    # Bytes held on that GPU. Includes processes that have ended, until another process of the pod subtracts theirs.
    held: int = 0
    # An entry point of the driver that the library does not know; empty: none.
    unknown: str = ""


def read(path: Path) -> Ledger:
    """The ledger; an empty one where the file is missing, invalid or not initialised yet."""
    try:
        with path.open("rb") as file:
            data = file.read(LEDGER_BYTES + 1)  # the pod may have made it any length
    except OSError:
        return Ledger()
    if len(data) != LEDGER_BYTES:
        return Ledger()
    magic, version, _, complete, _, pod_uid, _, _, refusals, _ = _HEADER.unpack_from(data)
    if (magic, version, complete) != (_MAGIC, _VERSION, 1):
        return Ledger()
    requested, device, _, _ = _REFUSAL.unpack_from(data, _REFUSAL_AT)
    held = _DEVICE.unpack_from(data, _DEVICES_AT + _DEVICE.size * (device % MAX_DEVICES))[2]
    seen, _, name = _UNKNOWN.unpack_from(data, _UNKNOWN_AT)
    unknown = _text(name) if seen else ""
    # The pod can write anything here: only a well-formed name goes on.
    return Ledger(_text(pod_uid), refusals, requested, held, unknown if _ENTRY_POINT.fullmatch(unknown) else "")


def is_damaged(path: Path, pod_uid: str, boot: str) -> bool:
    """Whether the library would refuse it: not a ledger, another pod's, or from before the last boot.

    A missing ledger and one that has never been written to are not damaged. `boot` is the machine's boot id.
    """
    try:
        with path.open("rb") as file:
            header, size = file.read(_HEADER.size), path.stat().st_size
    except OSError:
        return False
    if size != LEDGER_BYTES:
        return True
    if not any(header):
        return False
    magic, version, bytes_, complete, written_boot, owner, *_ = _HEADER.unpack(header)
    current_boot = uuid.UUID(boot).bytes if boot else written_boot
    return (magic, version, bytes_, complete, written_boot, _text(owner)) != (
        _MAGIC,
        _VERSION,
        LEDGER_BYTES,
        1,
        current_boot,
        pod_uid,
    )


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("ascii", "replace")
