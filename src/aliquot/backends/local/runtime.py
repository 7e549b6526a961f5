"""The seam between the agent and a runtime, which runs pods on this machine.

    PodAssignment   which pod it is, and which devices it holds
    Launch          everything needed to start a pod's command once
    Started         the command runs (or was found running)
    Ended           the command has ended (or was found ended)
    CannotStart     the command never ran; the reason is one word, the message a sentence
    Runtime         runs pods

Starting is idempotent: asked to start an attempt that was started before, a runtime answers with the state of that
attempt. So the agent keeps no state of its own that a kill could lose.
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
    """A volume mounted into a pod."""

    kind: Literal["folder", "memory", "host"]  # the pod's own folder, a tmpfs, or a path of the machine
    mount_path: str
    name: str = ""
    source: str = ""  # path on the machine
    size: int | None = None  # bytes of a tmpfs
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class PodAssignment:
    """A pod on one of our nodes and the devices it holds. Stored with the pod's files, to know it without the store."""

    uid: str
    namespace: str
    name: str
    node: str
    shares: tuple[DeviceShare, ...] = ()
    policy: str = "Always"  # the restart policy
    workload: str = ""  # uid of the workload that owns the pod; empty for a pod that a user created directly


@dataclass(frozen=True, slots=True)
class Launch:
    assignment: PodAssignment
    attempt: int
    argv: tuple[str, ...]
    cwd: str = ""  # empty: the pod's own folder
    env: Mapping[str, str] = field(default_factory=dict)
    volumes: tuple[Volume, ...] = ()
    path_dirs: tuple[str, ...] = ()  # folders of the machine that come first on the pod's PATH
    # Limits; None: no limit.
    memory: int | None = None
    cpu: int | None = None
    cpu_weight: int | None = None  # the CPU request, in thousandths of a core
    injection: Injection = field(default_factory=Injection)  # gives the pod its GPUs
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
    saved_at: float | None = None  # when the job last reported that it saved its work


class CannotStart(Exception):
    def __init__(self, reason: str, message: str, code: int = 128) -> None:
        super().__init__(message)
        self.reason, self.message, self.code = reason, message, code


@dataclass(frozen=True, slots=True)
class RecoveredPod:
    """A pod that was started here before, from what is on disk."""

    assignment: PodAssignment
    attempt: int


class Runtime(Protocol):
    # A sentence about what isolates pods from each other.
    isolation: str
    # Called once for each attempt that was `Started`, when nothing of it is left.
    on_end: Callable[[str, Ended], None]
    # Called with the time at which a running pod reports that it saved its work; frequent reports are thinned out.
    on_saved: Callable[[str, float], None]
    # Asked by log followers: whether a pod (uid) has ended for good, and is not just between two attempts.
    has_ended: Callable[[str], bool]

    def recover_pods(self) -> list[RecoveredPod]:
        """Every pod that has files here."""

    async def resume(self, uid: str, attempt: int) -> Started | Ended | None:
        """The state of an attempt that was started before; None when it was not."""

    async def start(self, launch: Launch) -> Started | Ended:
        """Run the command. Where the attempt was started before, the same as `resume`. `CannotStart`."""

    def signal(self, uid: str, name: SignalName) -> None:
        """TERM goes to the pod's command, KILL to everything in the pod."""

    def write_preemption_notice(self, uid: str, text: str) -> None:
        """Write the notice that a job can read before it gets its TERM. Best effort: the pod is stopped anyway."""

    async def remove(self, uid: str) -> None:
        """End whatever is left of a pod, and remove its files."""

    def checkpointed_workloads(self) -> list[tuple[str, str]]:
        """(namespace, uid) of every workload that has checkpoints here."""

    async def remove_checkpoints(self, namespace: str, workload: str) -> None:
        """Remove a workload's checkpoints."""
