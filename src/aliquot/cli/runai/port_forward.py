"""`port-forward`: forwards local ports to ports of a job.

Each local connection has a stream of its own through the server. A connection that fails does not affect the others.
When the server restarts, open connections break, but the command keeps listening.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import click

from aliquot.api import Pod
from aliquot.cli.context import CommandContext, command_context
from aliquot.cli.runai import job_columns
from aliquot.cli.runai.job_lookup import get_job, list_pods, pods_of_job, resolve_project, select_pod
from aliquot.cli.runai.pod_access import (
    is_running,
    job_argument,
    may_start,
    parse_duration,
    pod_option,
    why_not_running,
)
from aliquot.cli.runai.program import RunaiCommand, project_option
from aliquot.client import Server
from aliquot.errors import Conflict, Invalid, NotFound, PlatformError, Unavailable
from aliquot.store.typed_store import Store
from aliquot.streams import PortStream

_POLL_S = 0.5
_CHUNK = 1 << 16
_IGNORED_SWITCHES = ("interactive", "train", "mpi", "pytorch", "tf")


class Forward(NamedTuple):
    """A local port, 0 for any free one, and the port of the job that it leads to."""

    local: int
    remote: int


def _ignored_switches(command: Callable[..., int]) -> Callable[..., int]:
    """Accept the switches for the type of the job that older versions needed."""
    for name in _IGNORED_SWITCHES:
        command = click.option(f"--{name}", is_flag=True, hidden=True, expose_value=False)(command)
    return command


@click.command("port-forward", cls=RunaiCommand, epilog="Runs until Ctrl-C or until the job ends.")
@job_argument
@click.option(
    "--port",
    "ports",
    multiple=True,
    metavar="LOCAL[:REMOTE]",
    help="Ports: 8080:80, or 80 for the same port on both sides; repeatable.",
)
@click.option("--address", default="localhost", metavar="ADDRESS,...", help="Addresses to listen on; localhost.")
@pod_option
@click.option(
    "--pod-running-timeout", default="10m", metavar="TIME", help="How long to wait for the job to start; 10m."
)
@_ignored_switches
@project_option
def port_forward(
    name: str, ports: Sequence[str], address: str, pod: str, pod_running_timeout: str, project: str
) -> int:
    """Forward ports of this machine to a job."""
    if not ports:
        raise click.UsageError("which port? `runai port-forward NAME --port 8080:80`.")
    forwards = [parse_forward(each.strip()) for text in ports for each in text.split(",")]
    addresses = [each.strip() for each in address.split(",") if each.strip()]
    timeout = parse_duration("pod-running-timeout", pod_running_timeout)
    context = command_context()

    async def run(server: Server) -> None:
        running_pod = await _running_pod(context, server, name, pod, project, timeout)
        forwarder = _Forwarder(server, running_pod, context.note)
        try:
            for line in [line for each in forwards for line in await forwarder.listen(each, addresses)]:
                click.echo(line)
            context.note(await forwarder.until_ended())
        finally:
            await forwarder.close()

    context.run(run)
    return 0


def parse_forward(text: str) -> Forward:
    """Parse `8080:80`, `80` (the same port on both sides) or `:80` (any free local port)."""
    local, colon, remote = text.rpartition(":")
    remote_port = _port(text, remote, 1)
    return Forward(_port(text, local or "0", 0) if colon else remote_port, remote_port)


def _port(text: str, number: str, lowest: int) -> int:
    if not (number.isascii() and number.isdigit() and lowest <= int(number) <= 65535):
        raise Invalid(f"--port: must be a port from 1 to 65535, or LOCAL:REMOTE, not {text!r}")
    return int(number)


async def _running_pod(
    context: CommandContext, server: Server, name: str, pod_name: str, project: str, timeout: int
) -> Pod:
    """Wait until the pod runs, and return it."""
    scope = await resolve_project(context, server, project)
    deadline, notified = time.monotonic() + timeout, False
    while True:
        workload = await get_job(server, scope, name)
        pods = pods_of_job(workload, await list_pods(server, scope.namespace))
        job_status = job_columns.job_status(workload, pods)
        pod = select_pod(workload, pods, pod_name) if pod_name and pods else next(filter(is_running, pods), None)
        if pod is not None and is_running(pod):
            return pod
        if not may_start(job_status) or time.monotonic() >= deadline:
            raise Conflict(f"nothing runs in job {name!r}: {why_not_running(workload, pods, job_status)}")
        if not notified:
            notified = True
            context.note(f"Waiting for job {name} to start; it is {job_status}.")
        await asyncio.sleep(_POLL_S)


class _Forwarder:
    """Listens on local ports and forwards connections to a pod, or to a later pod of the same name."""

    def __init__(self, server: Server, pod: Pod, note: Callable[[str], None]) -> None:
        self._server = server
        self._name, self._namespace = pod.metadata.name, pod.metadata.namespace
        self._note = note
        self._listeners: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    async def listen(self, forward: Forward, addresses: Sequence[str]) -> list[str]:
        """Start to listen, and return a line to print for each address."""
        lines = []
        for address in addresses:
            hosts = ["127.0.0.1", "::1"] if address == "localhost" else [address]
            for host in hosts:
                try:
                    port = await self._listen(host, forward)
                except OSError as exc:
                    if host == "::1" and len(hosts) > 1:
                        continue  # not every machine has IPv6, and one of the two is enough
                    raise _cannot_listen(host, forward, exc) from exc
                forward = forward._replace(local=port)  # all addresses use the same free port
                lines.append(f"Forwarding from {_address_text(host, port)} -> {forward.remote}")
        return lines

    async def _listen(self, host: str, forward: Forward) -> int:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self._closing:  # it was accepted while the listener closed
                writer.transport.abort()
                return
            task = asyncio.create_task(self._connection(reader, writer, forward.remote))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        listener = await asyncio.start_server(accept, host, forward.local)
        self._listeners.append(listener)
        return int(listener.sockets[0].getsockname()[1])

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        try:
            async with self._server.port(self._namespace, self._name, port) as stream:
                sending = asyncio.create_task(_send(reader, stream))
                try:
                    async for data in stream.output():
                        writer.write(data)
                        await writer.drain()
                finally:
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)
        except PlatformError as exc:
            self._note(f"connection to port {port}: {exc.message}")
            _reset(writer)
        except OSError:
            pass  # the local client closed the connection
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def until_ended(self) -> str:
        """Wait for the end of the pod, and return a message."""
        disconnected = False
        while True:
            try:
                pod = await Store(self._server).get(Pod, self._name, self._namespace)
                if pod.status.phase in ("Succeeded", "Failed"):
                    return f"Pod {self._name} has ended ({pod.status.phase})."
                disconnected = False
            except NotFound:
                return f"Pod {self._name} is gone."
            except Unavailable as exc:
                if not disconnected:
                    self._note(f"connection lost ({exc.message}); trying again")
                disconnected = True
            await asyncio.sleep(_POLL_S)

    async def close(self) -> None:
        self._closing = True
        for listener in self._listeners:
            listener.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _send(reader: asyncio.StreamReader, stream: PortStream) -> None:
    # The reader of the stream sees the same error and reports it.
    with suppress(PlatformError, OSError):
        while data := await reader.read(_CHUNK):
            await stream.write(data)
        await stream.close_input()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Reset the connection, so that the client does not take incomplete data for complete.

    SO_LINGER with zero seconds makes the close a reset.
    """
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _cannot_listen(host: str, forward: Forward, exc: OSError) -> Invalid:
    # The message of asyncio may begin with the address, which ours already has.
    reason = (exc.strerror or str(exc)).lower().rpartition("): ")[2]
    if isinstance(exc, socket.gaierror) or exc.errno == errno.EADDRNOTAVAIL:
        return Invalid(f"--address: cannot listen on {host}: {reason}", hint="give an address of this machine")
    hint = f"choose another one here: --port OTHER:{forward.remote}"
    return Invalid(f"--port: cannot listen on {_address_text(host, forward.local)}: {reason}", hint=hint)


def _address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
