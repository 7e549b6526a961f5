"""Looking inside pods on Kubernetes: the kubelet's log, commands and ports, all through the API server.

Kubernetes' answers become those that the agent on one machine gives, in the same words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from aliquot.api import Pod
from aliquot.api.pod import ContainerStatus
from aliquot.backends.kubernetes import port_forward
from aliquot.client.streams import ExecSession, exec_query
from aliquot.errors import Conflict, Invalid, PlatformError, Unavailable
from aliquot.store.drivers.kubernetes import KubernetesDriver
from aliquot.store.http.connections import Socket
from aliquot.streams import CHANNELS, Log, LogOptions, TerminalSize, why_not_running
from aliquot.units import timestamp_text

# Which container of a pod people mean when they name none; kubectl reads it too.
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
# What an API server says when it cannot reach a kubelet.
_NODE_TROUBLE = ("error dialing backend", "dial tcp", "/containerLogs/")


class KubernetesStreams:
    """See aliquot.streams.Streams."""

    def __init__(self, driver: KubernetesDriver) -> None:
        self._driver = driver

    async def open_log(self, pod: Pod, options: LogOptions) -> Log:
        """The kubelet keeps the log of a container's last two starts, the newest files of them, and no offsets.

        Who follows comes to an end with the container; who wants more asks again, with `resume`.
        """
        place = pod.metadata
        try:
            stream = await self._driver.look(place.name, place.namespace, "log", log_query(pod, options))
        except Invalid as exc:
            raise Conflict(_no_log(pod, options, exc)) from exc
        except Unavailable as exc:
            raise _out_of_reach(pod, exc) from exc
        return Log(stream.pieces(), stamped=options.line_times)

    async def exec(self, pod: Pod, command: Sequence[str], *, tty: bool, size: TerminalSize) -> KubernetesExecSession:
        if not command:
            raise Conflict("no command was given")
        query = [("container", main_container(pod)), *exec_query(command, tty=tty, stdin=True)]
        session = KubernetesExecSession(await self._enter(pod, "exec", query, CHANNELS), command[0])
        if tty:
            await session.resize(size)
        return session

    async def connect(self, pod: Pod, port: int) -> port_forward.PortPipe:
        pipe = port_forward.PortPipe(
            await self._enter(pod, "portforward", [], port_forward.PROTOCOL), pod.metadata.name, port
        )
        await pipe.open()
        return pipe

    async def _enter(self, pod: Pod, part: str, query: Sequence[tuple[str, str]], protocol: str) -> Socket:
        place, status = pod.metadata, _main_status(pod)
        if pod.status.phase != "Running" or (status is not None and status.state.running is None):
            raise Conflict(f"pod {place.name} does not run: {why_not_running(pod)}")
        try:
            return await self._driver.enter(place.name, place.namespace, part, query, protocol)
        except Invalid as exc:
            raise Conflict(f"pod {place.name} cannot be entered: {exc.message}") from exc
        except Unavailable as exc:
            raise _out_of_reach(pod, exc) from exc


class KubernetesExecSession(ExecSession):
    """A command in a container of Kubernetes."""

    def __init__(self, socket: Socket, program: str) -> None:
        super().__init__(socket)
        self._program = program

    async def wait(self) -> int:
        try:
            return await super().wait()
        except PlatformError as exc:
            # A container runtime's story of what it tried, with the reason near its end.
            if "executable file not found" in exc.message or "no such file or directory" in exc.message:
                raise Conflict(f"command not found: {self._program}") from exc
            if "permission denied" in exc.message:
                raise Conflict(f"command cannot be run: {self._program}: permission denied") from exc
            raise


def log_query(pod: Pod, options: LogOptions) -> dict[str, str]:
    """What Kubernetes is asked. It takes whole seconds; a line too many is better than one too few."""
    query = {"container": main_container(pod)}
    query |= {name: "true" for name in ("follow", "previous") if getattr(options, name)}
    if options.timestamps or options.line_times:
        query["timestamps"] = "true"
    if options.tail_lines is not None:
        query["tailLines"] = str(options.tail_lines)
    if options.since is not None:
        query["sinceTime"] = timestamp_text(math.floor(options.since))
    if options.limit_bytes is not None:
        query["limitBytes"] = str(options.limit_bytes)
    return query


def main_container(pod: Pod) -> str:
    names = [container.name for container in pod.spec.containers]
    marked = pod.metadata.annotations.get(DEFAULT_CONTAINER, "")
    return marked if marked in names else names[0]


def _main_status(pod: Pod) -> ContainerStatus | None:
    name = main_container(pod)
    return next((status for status in pod.status.container_statuses if status.name == name), None)


def _no_log(pod: Pod, options: LogOptions, told: Invalid) -> str:
    name = pod.metadata.name
    if options.previous and "previous terminated container" in told.message:
        return f"pod {name} was not started before"
    status = _main_status(pod)
    started = status is not None and (status.state.running or status.state.terminated)
    return f"pod {name} has no log: {told.message if started else why_not_running(pod)}"


def _out_of_reach(pod: Pod, told: Unavailable) -> Unavailable:
    """The API server's own troubles as they are; those of the way from there to the node in our words."""
    if not any(sign in told.message for sign in _NODE_TROUBLE):
        return told
    return Unavailable(f"node {pod.spec.node_name} of pod {pod.metadata.name} does not answer: {told.message}")
