"""Formats placements, queues and times: as facts for programs and as phrases for people."""

from __future__ import annotations

from collections.abc import Sequence

from aliquot import units
from aliquot.api import Json
from aliquot.api.workload import Interruption
from aliquot.planner import DeviceShare
from aliquot.planner.model import GPU

PodPlacement = tuple[str, str, Sequence[DeviceShare]]  # a pod, its node, and its shares of devices there


def queue_text(name: str) -> str:
    """Such as `project vision` or `department research`."""
    kind, _, short = name.rpartition("/")
    return f"{kind or 'project'} {short}"


def pod_facts(name: str, node: str, shares: Sequence[DeviceShare]) -> Json:
    devices = [{"index": share.index, "gpu": units.whole_units(share.milli)} for share in shares]
    return {"name": name, "node": node, "devices": devices}


def placement_text(placements: Sequence[PodPlacement]) -> str:
    """Such as `on dgx1-1, GPUs 0, 1`; for several pods only the nodes."""
    nodes = list(dict.fromkeys(node for _, node, _ in placements))
    if len(placements) != 1:
        return f"on {list_text(nodes)}"
    shares = placements[0][2]
    fractions = [f"{units.whole_units(share.milli):g} of GPU {share.index}" for share in shares if share.milli < GPU]
    whole = ", ".join(str(share.index) for share in shares if share.milli >= GPU)
    gpus = [f"{'GPU' if len(shares) == 1 else 'GPUs'} {whole}"] if whole else []
    return ", ".join([f"on {nodes[0]}", *gpus, *fractions])


def capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def list_text(words: Sequence[str]) -> str:
    """Such as `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


def time_fact(name: str, time: float | None) -> Json:
    return {} if time is None else {name: units.timestamp_text(time)}


def interruption_facts(interruption: Interruption) -> Json:
    return {
        "at": units.timestamp_text(interruption.at),
        "reason": interruption.reason,
        "by": interruption.by,
        "message": interruption.message,
        "lostSeconds": interruption.lost_seconds,
    }
