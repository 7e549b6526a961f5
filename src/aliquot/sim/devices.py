"""Which devices tasks hold that a scenario shows running, where the file does not say it.

Those that tell their shares come first, then those that name their devices. A group of fractions shares one device, a
fraction that says nothing has one of its own, and whole GPUs take the first that are free. What is reserved comes last,
and may lie on what others leave.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from aliquot.planner.model import GPU, Device, DeviceShare, Node, Request
from aliquot.sim.field_readers import Place
from aliquot.sim.records import TaskSpec


class Holder(NamedTuple):
    """A task that has a place; `key` is how the caller knows it."""

    key: tuple[int, int]
    spec: TaskSpec
    request: Request
    where: Place


class _Card:
    """What is left of a device."""

    __slots__ = ("device", "memory", "milli")

    def __init__(self, device: Device) -> None:
        self.device, self.milli, self.memory = device, GPU, device.memory_mib

    @property
    def untouched(self) -> bool:
        return self.milli == GPU and self.memory == self.device.memory_mib

    def take(self, request: Request) -> DeviceShare | None:
        share = request.share_of(self.device)
        if share.milli > self.milli or (self.device.memory_mib and share.memory_mib > self.memory):
            return None
        self.milli -= share.milli
        self.memory -= share.memory_mib
        return share


class _Cards:
    """The devices of a node, free ones found without looking at all the taken ones each time."""

    def __init__(self, node: Node) -> None:
        self.by_index = {device.index: _Card(device) for device in node.devices}
        self._fresh: dict[str, list[int]] = {}
        for device in sorted(node.devices, key=lambda one: -one.index):
            self._fresh.setdefault(device.profile, []).append(device.index)

    def fresh(self, profile: str, count: int) -> list[int] | None:
        """The first devices that nobody has touched; None when there are too few."""
        stack = self._fresh.get(profile, [])
        found: list[int] = []
        while stack and len(found) < count:
            index = stack.pop()
            if self.by_index[index].untouched:
                found.append(index)
        if len(found) < count:
            stack.extend(reversed(found))
            return None
        return found


def held(nodes: Mapping[str, Node], holders: Iterable[Holder]) -> dict[tuple[int, int], tuple[DeviceShare, ...]]:
    """The shares of each holder; a fault where a node does not have what it is said to hold."""
    here = [one for one in holders if one.spec.node in nodes]
    reserved = [one for one in here if one.spec.state == "reserved"]
    shares = _assigned(_Ledger(nodes), [one for one in here if one.spec.state != "reserved"])
    if not reserved:
        return shares
    waiting = _Ledger(nodes)
    for one in here:
        # What goes is free for those who wait for it.
        if one.spec.state == "running":
            waiting.note(one.spec.node, shares[one.key])
    return shares | _assigned(waiting, reserved)


def _assigned(ledger: _Ledger, holders: list[Holder]) -> dict[tuple[int, int], tuple[DeviceShare, ...]]:
    """Those first who say most."""
    told = [one for one in holders if one.spec.shares is not None]
    shares = {one.key: ledger.note(one.spec.node, one.spec.shares or ()) for one in told}
    shares |= {one.key: ledger.named(one) for one in holders if one.key not in shares and one.spec.devices}
    return shares | {one.key: ledger.found(one) for one in holders if one.key not in shares}


class _Ledger:
    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._cards: dict[str, _Cards] = {}
        self._groups: dict[str, tuple[str, list[int]]] = {}

    def _of(self, node: str) -> _Cards:
        if node not in self._cards:
            self._cards[node] = _Cards(self._nodes[node])
        return self._cards[node]

    def note(self, node: str, shares: tuple[DeviceShare, ...]) -> tuple[DeviceShare, ...]:
        """Taken as they are told, also more than there is."""
        for share in shares:
            card = self._of(node).by_index.get(share.index)
            if card is None:
                continue  # a device that has left
            card.milli -= share.milli
            card.memory -= share.memory_mib
        return shares

    def named(self, one: Holder) -> tuple[DeviceShare, ...]:
        indices, where, cards = one.spec.devices, one.where.at("devices"), self._of(one.spec.node).by_index
        count = sum(number for _, number in one.request.mig) if one.request.mig else one.request.devices
        if len(indices) != count or len(set(indices)) != count:
            where.fault(f"must be {count} different GPUs, as the request says")
            return ()
        for place, index in enumerate(indices):
            if index not in cards:
                where.at(place).fault(f"node {one.spec.node} has no GPU {index}")
                return ()
        if one.spec.share_group:
            self._join(one, list(indices))
        return self._take(one, indices)

    def found(self, one: Holder) -> tuple[DeviceShare, ...]:
        request, cards = one.request, self._of(one.spec.node)
        if one.spec.share_group:
            known = self._groups.get(one.spec.share_group)
            indices = known[1] if known else cards.fresh("", request.devices)
            self._join(one, indices or [])
        elif request.mig:
            parts = [cards.fresh(profile, count) for profile, count in request.mig]
            indices = None if None in parts else [index for part in parts if part for index in part]
        else:
            indices = cards.fresh("", request.devices)
        if indices is None:
            one.where.at("node").fault(f"node {one.spec.node} has too few free GPUs for what it is said to hold")
            return ()
        return self._take(one, indices)

    def _join(self, one: Holder, indices: list[int]) -> None:
        node, known = self._groups.setdefault(one.spec.share_group, (one.spec.node, indices))
        if node != one.spec.node or known != indices:
            one.where.at("shareGroup").fault(f"belongs to GPU {', '.join(map(str, known))} of node {node}")

    def _take(self, one: Holder, indices: Iterable[int]) -> tuple[DeviceShare, ...]:
        cards, shares = self._of(one.spec.node).by_index, []
        for index in indices:
            share = cards[index].take(one.request) if index in cards else None
            if share is None:
                one.where.at("node").fault(f"GPU {index} of node {one.spec.node} does not have as much left")
                return ()
            shares.append(share)
        return tuple(shares)
