"""Logs, exec and port-forward for pods on Kubernetes, through the API server and the kubelet.

Errors of Kubernetes become the errors that the local backend raises, with the same messages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from aliquot.api import Pod
from aliquot.api.pod import ContainerStatus
from aliquot.backends.kubernetes import port_forward
from aliquot.errors import Conflict, Invalid, PlatformError, Unavailable
from aliquot.store.drivers.kubernetes import KubernetesDriver
from aliquot.store.http.client import Socket
from aliquot.store.http.exec_session import ExecSession, exec_query
from aliquot.streams import CHANNELS, Log, LogOptions, TerminalSize, why_not_running
from aliquot.units import timestamp_text

# Annotation that names the container to use if a request names none; kubectl reads it too.
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
# Parts of the API server's message when it cannot reach a kubelet.
_KUBELET_UNREACHABLE = ("error dialing backend", "dial tcp", "/containerLogs/")


class KubernetesStreams:
    """Implements `aliquot.streams.Streams`."""

    def __init__(self, driver: KubernetesDriver) -> None:
        self._driver = driver

    async def open_log(self, pod: Pod, options: LogOptions) -> Log:
        """The kubelet keeps the newest log files of a container's last two runs, and knows no offsets.

        A followed log ends with the container; to go on, the caller opens it again with `resume`.
        """
        meta = pod.metadata
        try:
            stream = await self._driver.open_stream(meta.name, meta.namespace, "log", log_query(pod, options))
        except Invalid as exc:
            raise Conflict(_no_log_message(pod, options, exc)) from exc
        except Unavailable as exc:
            raise _unreachable(pod, exc) from exc
        return Log(stream.chunks(), has_line_times=options.line_times)

    async def exec(self, pod: Pod, command: Sequence[str], *, tty: bool, size: TerminalSize) -> KubernetesExecSession:
        if not command:
            raise Conflict("no command was given")
        query = [("container", main_container(pod)), *exec_query(command, tty=tty, stdin=True)]
        session = KubernetesExecSession(await self._open_socket(pod, "exec", query, CHANNELS), command[0])
        if tty:
            await session.resize(size)
        return session

    async def connect(self, pod: Pod, port: int) -> port_forward.PortPipe:
        pipe = port_forward.PortPipe(
            await self._open_socket(pod, "portforward", [], port_forward.PROTOCOL), pod.metadata.name, port
        )
        await pipe.open()
        return pipe

    async def _open_socket(self, pod: Pod, subresource: str, query: Sequence[tuple[str, str]], protocol: str) -> Socket:
        meta, status = pod.metadata, _main_status(pod)
        if pod.status.phase != "Running" or (status is not None and status.state.running is None):
            raise Conflict(f"pod {meta.name} does not run: {why_not_running(pod)}")
        try:
            return await self._driver.open_socket(meta.name, meta.namespace, subresource, query, protocol)
        except Invalid as exc:
            raise Conflict(f"cannot connect to pod {meta.name}: {exc.message}") from exc
        except Unavailable as exc:
            raise _unreachable(pod, exc) from exc


class KubernetesExecSession(ExecSession):
    """A command that runs in a container of a pod."""

    def __init__(self, socket: Socket, program: str) -> None:
        super().__init__(socket)
        self._program = program

    async def wait(self) -> int:
        try:
            return await super().wait()
        except PlatformError as exc:
            # The container runtime's text is long, with the reason near its end.
            if "executable file not found" in exc.message or "no such file or directory" in exc.message:
                raise Conflict(f"command not found: {self._program}") from exc
            if "permission denied" in exc.message:
                raise Conflict(f"command cannot be run: {self._program}: permission denied") from exc
            raise


def log_query(pod: Pod, options: LogOptions) -> dict[str, str]:
    """The query for the API server. It takes whole seconds, so the time is rounded down: better a line too many."""
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
    default = pod.metadata.annotations.get(DEFAULT_CONTAINER, "")
    return default if default in names else names[0]


def _main_status(pod: Pod) -> ContainerStatus | None:
    name = main_container(pod)
    return next((status for status in pod.status.container_statuses if status.name == name), None)


def _no_log_message(pod: Pod, options: LogOptions, error: Invalid) -> str:
    name = pod.metadata.name
    if options.previous and "previous terminated container" in error.message:
        return f"pod {name} was not started before"
    status = _main_status(pod)
    started = status is not None and (status.state.running or status.state.terminated)
    return f"pod {name} has no log: {error.message if started else why_not_running(pod)}"


def _unreachable(pod: Pod, error: Unavailable) -> Unavailable:
    """Names the node if the API server could not reach its kubelet; other errors are passed on."""
    if not any(part in error.message for part in _KUBELET_UNREACHABLE):
        return error
    return Unavailable(f"node {pod.spec.node_name} of pod {pod.metadata.name} does not answer: {error.message}")
