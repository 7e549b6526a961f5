"""Places, queues and moments as an explanation has them: a fact for programs, words for people."""

from __future__ import annotations

from collections.abc import Sequence

from aliquot import units
from aliquot.api import Json
from aliquot.api.workload import Interruption
from aliquot.planner import DeviceShare
from aliquot.planner.model import GPU

Spot = tuple[str, str, Sequence[DeviceShare]]  # a pod, its node, and what it has there


def queue_words(name: str) -> str:
    """Project vision, department research."""
    kind, _, short = name.rpartition("/")
    return f"{kind or 'project'} {short}"


def pod_facts(name: str, node: str, shares: Sequence[DeviceShare]) -> Json:
    devices = [{"index": one.index, "gpu": units.whole_units(one.milli)} for one in shares]
    return {"name": name, "node": node, "devices": devices}


def where(places: Sequence[Spot]) -> str:
    """On dgx1-1, GPUs 0, 1; of many pods only the nodes."""
    nodes = list(dict.fromkeys(node for _, node, _ in places))
    if len(places) != 1:
        return f"on {listed(nodes)}"
    shares = places[0][2]
    parts = [f"{units.whole_units(one.milli):g} of GPU {one.index}" for one in shares if one.milli < GPU]
    whole = ", ".join(str(one.index) for one in shares if one.milli >= GPU)
    gpus = [f"{'GPU' if len(shares) == 1 else 'GPUs'} {whole}"] if whole else []
    return ", ".join([f"on {nodes[0]}", *gpus, *parts])


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


def moment_fact(word: str, moment: float | None) -> Json:
    return {} if moment is None else {word: units.timestamp_text(moment)}


def stop_facts(one: Interruption) -> Json:
    shown = {"at": units.timestamp_text(one.at), "reason": one.reason, "by": one.by, "message": one.message}
    return {**shown, "lostSeconds": one.lost_seconds}
