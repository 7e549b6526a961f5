"""This machine as a node, with the GPUs that its driver lists; pods with a part of one are fenced.

    RealDevices    the node, and what each pod is given
    Fences         where the limits and ledgers of pods are kept: in memory, one folder per pod, gone with the machine's
                   next start
    backend        who can keep the limits here, and why

What was given is in the limits file of each pod, so nothing is lost when the platform is killed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aliquot.agent.base import CannotStart
from aliquot.agent.devices import base
from aliquot.agent.devices.base import NodeFacts
from aliquot.agent.devices.calibration import Contexts
from aliquot.agent.devices.driver import Card, Driver
from aliquot.agent.injection import Host, Injection, injected
from aliquot.agent.slices import Backend, Slice, Wish, slice_of
from aliquot.types import Device, DeviceShare
from aliquot.units import GPU

_FIRST_WITH_LIMITS = 615  # the driver's own limits, by control group


class Fences:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, tenant: str) -> Path:
        return self._folder / "pods" / os.path.basename(tenant)

    @property
    def gates(self) -> Path:
        return self._folder / "gates"

    def remove(self, tenant: str) -> None:
        shutil.rmtree(self.of(tenant), ignore_errors=True)


def fences(data: Path) -> Fences:
    """In memory where the machine lets us, else in the data folder: slower, but as right."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", str(data.resolve())).strip("-")
    shared = Path(f"/dev/shm/aliquot-{os.geteuid()}-{name}"[:200])  # noqa: S108  # checked below
    try:
        shared.mkdir(mode=0o700, exist_ok=True)
        found = shared.lstat()
        # Anybody may make a folder there: it must be one, and our own.
        if found.st_uid == os.geteuid() and shared.is_dir() and not shared.is_symlink():
            shared.chmod(0o700)
            return Fences(shared)
    except OSError:
        pass
    return Fences(data / "gpushare")


@dataclass(frozen=True, slots=True)
class Choice:
    backend: Backend
    reason: str


def backend(version: str, keeps_limits: bool, cgroups: int, library: bool) -> Choice:
    """Who keeps memory limits on this node. The driver's version alone is no proof that it can."""
    number = int(found[0]) if (found := re.match(r"\d+", version)) else 0
    if keeps_limits and number >= _FIRST_WITH_LIMITS and cgroups == 2:
        return Choice(Backend.CGROUP, f"driver {version} limits control groups")
    if library:
        why = "has no limits of its own" if not keeps_limits else "limits only control groups of version 2"
        return Choice(Backend.SHIM, f"driver {version or 'of unknown version'} {why}")
    return Choice(Backend.NONE, "the sharing library was not built for this machine")


class RealDevices:
    """A GPU that stops answering stays in the list, as one that may not be used."""

    def __init__(self, name: str, driver: Driver, fences: Fences, contexts: Contexts, library: Path | None) -> None:
        self._name = name
        self.driver = driver
        self.fences = fences
        self._contexts = contexts
        self._library = library
        # The driver's own limits are not set yet, so the library keeps them, on every driver.
        self.choice = backend(driver.version(), False, 2, self._library is not None)
        self._seen: dict[int, Card] = {}
        self.nodes()

    def nodes(self) -> tuple[NodeFacts, ...]:
        facts = NodeFacts(
            name=self._name,
            devices=self._look(),
            cpu=base.cores(),
            memory=base.memory(),
            sharing=self.choice.backend.value,
            sharing_reason=self.choice.reason,
        )
        return (facts,)

    def totals(self) -> dict[str, int]:
        """Bytes of each GPU, by uuid."""
        return {card.device.uuid: card.total for card in self._seen.values()}

    def uuid(self, share: DeviceShare) -> str:
        card = self._seen.get(share.index)
        return (card.device.uuid if card else "") or share.uuid or str(share.index)

    def injection(self, node: str, shares: Sequence[DeviceShare], wish: Wish, tenant: str) -> Injection:
        slices = tuple(self._slice(share, wish, tenant) for share in shares)
        if not any(one.is_shared for one in slices):
            return injected(slices, self.choice.backend)
        if self._library is None:
            raise CannotStart("GPUShareNotLoaded", f"a part of a GPU cannot be fenced off: {self.choice.reason}")
        host = Host(str(self._library), str(self.fences.of(tenant)), str(self.fences.gates))
        return injected(slices, self.choice.backend, host)

    def release(self, tenant: str) -> None:
        self.fences.remove(tenant)

    def _slice(self, share: DeviceShare, wish: Wish, tenant: str) -> Slice:
        card = self._seen.get(share.index, Card(Device(index=share.index)))
        found = slice_of(card.device, share, wish if share.milli < GPU else Wish(), card.total, tenant)
        context = self._contexts.mib(card.device.model, self.driver.version())
        return replace(found, device_file=card.file, context_mib=context)

    def _look(self) -> tuple[Device, ...]:
        found = {card.device.index: card for card in self.driver.cards()}
        lost = {index: replace(card, device=replace(card.device, healthy=False)) for index, card in self._seen.items()}
        # A card that is lost has no name any more; keep the one it had.
        named = {index: card for index, card in found.items() if card.device.uuid or index not in lost}
        self._seen = lost | named
        return tuple(self._seen[index].device for index in sorted(self._seen))


def host_name() -> str:
    """Of this machine, as a node may be called."""
    name = re.sub(r"[^a-z0-9.-]+", "-", os.uname().nodename.lower()).strip("-.")
    return name[:63].strip("-.") or "localhost"  # a label must be able to hold it
