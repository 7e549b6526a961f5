"""What the agent and its runtimes agree on.

    Launch        everything needed to start a pod's command once
    Started       it runs now (or was found running); `Ended` it has ended (or was found ended)
    CannotStart   it never ran; the reason is one word, the message a sentence
    Runtime       who runs pods on this machine

Starting is idempotent: asked to start an attempt that was started before, a runtime answers with what became of it.
So the agent needs no memory of its own to survive a kill.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from aliquot.api import DeviceShare
from aliquot.gpu.injection import Injection

SignalName = Literal["TERM", "KILL"]


@dataclass(frozen=True, slots=True)
class Volume:
    """Something mounted into a pod."""

    kind: Literal["folder", "memory", "host"]  # of the pod's own, in memory, or of the machine
    mount_path: str
    name: str = ""
    source: str = ""  # of the machine
    size: int | None = None  # of memory, in bytes
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class PodAssignment:
    """Whose it is and what it holds: what is kept on disk beside a pod, to know it without the store."""

    uid: str
    namespace: str
    name: str
    node: str
    shares: tuple[DeviceShare, ...] = ()
    policy: str = "Always"
    workload: str = ""  # the uid of the workload it is an attempt at; empty for a pod that somebody made by hand


@dataclass(frozen=True, slots=True)
class Launch:
    assignment: PodAssignment
    attempt: int
    argv: tuple[str, ...]
    cwd: str = ""  # empty: the pod's own folder
    env: Mapping[str, str] = field(default_factory=dict)
    volumes: tuple[Volume, ...] = ()
    path_dirs: tuple[str, ...] = ()  # folders of the machine that come first on the pod's PATH
    # None: no limit.
    memory: int | None = None
    cpu: int | None = None
    cpu_weight: int | None = None  # what it asked for, in thousandths of a core
    injection: Injection = field(default_factory=Injection)  # what shows it its GPUs
    host_ipc: bool = False


@dataclass(frozen=True, slots=True)
class Started:
    attempt: int
    pid: int
    at: float


@dataclass(frozen=True, slots=True)
class Ended:
    attempt: int
    code: int
    started: float
    finished: float
    reason: str = ""  # empty: Completed or Error, by the code
    message: str = ""
    saved: float | None = None  # when it last saved its work, if it said so


class CannotStart(Exception):
    def __init__(self, reason: str, message: str, code: int = 128) -> None:
        super().__init__(message)
        self.reason, self.message, self.code = reason, message, code


@dataclass(frozen=True, slots=True)
class RecoveredPod:
    """What is left on disk of a pod that was started here."""

    assignment: PodAssignment
    attempt: int


class Runtime(Protocol):
    # A sentence about what keeps pods apart.
    isolation: str
    # Called once for each attempt that was `Started`, when nothing of it is left.
    on_end: Callable[[str, Ended], None]
    # Called when a running pod says that it has saved its work, and when; not for each time where it does so often.
    on_saved: Callable[[str, float], None]
    # Asked by who follows a log: whether a pod (uid) has ended for good, and is not just between two starts.
    finished: Callable[[str], bool]

    def traces(self) -> list[RecoveredPod]:
        """Every pod that has left something here."""

    async def resume(self, uid: str, attempt: int) -> Started | Ended | None:
        """What became of an attempt that was started before; None when it was not."""

    async def start(self, launch: Launch) -> Started | Ended:
        """Run it. Where it was started before, by whoever, as `resume`. `CannotStart` says why it did not run."""

    def signal(self, uid: str, name: SignalName) -> None:
        """TERM goes to the pod's command, KILL to everything in the pod."""

    def tell(self, uid: str, text: str) -> None:
        """Leave a notice where the pod looks for it, before it gets its TERM. Best effort: it is stopped anyway."""

    async def remove(self, uid: str) -> None:
        """End whatever is left of a pod, and remove its files."""

    def kept(self) -> list[tuple[str, str]]:
        """(namespace, uid) of every workload that has left checkpoints here."""

    async def forget(self, namespace: str, workload: str) -> None:
        """Remove a workload's checkpoints."""
