"""Nominations: the place that a waiting pod gets as soon as the pods there have left, written on the pod.

The next plan honours a nomination, so that no other job takes the place meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from aliquot import labels
from aliquot.api import Pod
from aliquot.planner import DeviceShare
from aliquot.scheduler.annotations import json_annotation

NominatedPlacement = tuple[str, tuple[DeviceShare, ...]]  # node and devices


def nomination_text(node: str, shares: Iterable[DeviceShare]) -> str:
    value = {"node": node, "shares": [[share.index, share.milli, share.memory_mib] for share in shares]}
    return json.dumps(value, separators=(",", ":"))


def nomination_of(pod: Pod) -> NominatedPlacement | None:
    """None where the pod has none, or one that cannot be read."""
    value = json_annotation(pod, labels.NOMINATION)
    if value is None:
        return None
    try:
        return str(value["node"]), tuple(DeviceShare(*map(int, share)) for share in value["shares"])
    except (KeyError, TypeError, ValueError):
        return None
