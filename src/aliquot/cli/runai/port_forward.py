"""`port-forward`: a port of a job, on this machine.

Each connection here is one connection there, on its own way through the server: one that fails ends none of the others,
and a server that restarts ends those that are open, not the listening.
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
from aliquot.cli.runai.logs_and_exec import NAME, POD, is_running, not_running, seconds
from aliquot.cli.runai.program import RunaiCommand, project_option
from aliquot.client import Server
from aliquot.errors import Conflict, Invalid, NotFound, PlatformError, Unavailable
from aliquot.store.typed_store import Store
from aliquot.streams import PortStream

_POLL_S = 0.5
_CHUNK = 1 << 16
_MAY_START = ("Pending", "ContainerCreating", "PodInitializing")
_FILTERS = ("interactive", "train", "mpi", "pytorch", "tf")


class Forward(NamedTuple):
    """A port here, 0 for any free one, and the job's port it leads to."""

    local: int
    remote: int


def _filters(command: Callable[..., int]) -> Callable[..., int]:
    """Kinds of jobs that older versions had to be told; a name is enough here."""
    for name in _FILTERS:
        command = click.option(f"--{name}", is_flag=True, hidden=True, expose_value=False)(command)
    return command


@click.command("port-forward", cls=RunaiCommand, epilog="Ctrl-C ends it; so does the end of the job.")
@NAME
@click.option("--port", "ports", multiple=True, metavar="LOCAL[:REMOTE]", help="8080:80, or 80 for both; repeatable.")
@click.option("--address", default="localhost", metavar="ADDRESS,...", help="Where to listen; on this machine alone.")
@POD
@click.option("--pod-running-timeout", default="10m", metavar="TIME", help="Wait so long for the job to start; 10m.")
@_filters
@project_option
def port_forward(
    name: str, ports: Sequence[str], address: str, pod: str, pod_running_timeout: str, project: str
) -> int:
    """Make ports of a job reachable on this machine."""
    if not ports:
        raise click.UsageError("which port? `runai port-forward NAME --port 8080:80`.")
    forwards = [parse_forward(each.strip()) for text in ports for each in text.split(",")]
    addresses = [each.strip() for each in address.split(",") if each.strip()]
    patience = seconds("pod-running-timeout", pod_running_timeout)
    context = command_context()

    async def work(server: Server) -> None:
        found = await _running_pod(context, server, name, pod, project, patience)
        forwarder = _Forwarder(server, found, context.note)
        try:
            for line in [line for each in forwards for line in await forwarder.listen(each, addresses)]:
                click.echo(line)
            context.note(await forwarder.until_ended())
        finally:
            await forwarder.close()

    context.run(work)
    return 0


def parse_forward(text: str) -> Forward:
    """`8080:80`; `80` is the same port on both sides, `:80` any free one here."""
    local, colon, remote = text.rpartition(":")
    there = _port(text, remote, 1)
    return Forward(_port(text, local or "0", 0) if colon else there, there)


def _port(text: str, number: str, lowest: int) -> int:
    if not (number.isascii() and number.isdigit() and lowest <= int(number) <= 65535):
        raise Invalid(f"--port: must be a port from 1 to 65535, or LOCAL:REMOTE, not {text!r}")
    return int(number)


async def _running_pod(
    context: CommandContext, server: Server, name: str, asked: str, project: str, patience: int
) -> Pod:
    """The pod that is meant, once it runs."""
    scope = await resolve_project(context, server, project)
    until, notified = time.monotonic() + patience, False
    while True:
        workload = await get_job(server, scope, name)
        pods = pods_of_job(workload, await list_pods(server, scope.namespace))
        word = job_columns.job_status(workload, pods)
        may_start = word in _MAY_START or word.startswith("Init:")
        found = select_pod(workload, pods, asked) if asked and pods else next(filter(is_running, pods), None)
        if found is not None and is_running(found):
            return found
        if not may_start or time.monotonic() >= until:
            raise Conflict(f"nothing runs in job {name!r}: {not_running(workload, pods, word)}")
        if not notified:
            notified = True
            context.note(f"Waiting for job {name} to start; it is {word}.")
        await asyncio.sleep(_POLL_S)


class _Forwarder:
    """Listens, and passes connections on to one pod; to the next one of its name too, should it be started again."""

    def __init__(self, server: Server, pod: Pod, note: Callable[[str], None]) -> None:
        self._server = server
        self._name, self._namespace = pod.metadata.name, pod.metadata.namespace
        self._note = note
        self._listeners: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    async def listen(self, wanted: Forward, addresses: Sequence[str]) -> list[str]:
        """Begin to listen; a line to say so for each address."""
        lines = []
        for address in addresses:
            hosts = ["127.0.0.1", "::1"] if address == "localhost" else [address]
            for host in hosts:
                try:
                    port = await self._listen(host, wanted)
                except OSError as exc:
                    if host == "::1" and len(hosts) > 1:
                        continue  # not every machine has it, and one of the two is enough
                    raise _cannot_listen(host, wanted, exc) from exc
                wanted = wanted._replace(local=port)  # a free one that was found is the same on all addresses
                lines.append(f"Forwarding from {_shown(host, port)} -> {wanted.remote}")
        return lines

    async def _listen(self, host: str, wanted: Forward) -> int:
        def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self._closing:  # it was on its way when the listening ended
                writer.transport.abort()
                return
            task = asyncio.create_task(self._connection(reader, writer, wanted.remote))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        listener = await asyncio.start_server(take, host, wanted.local)
        self._listeners.append(listener)
        return int(listener.sockets[0].getsockname()[1])

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        try:
            async with self._server.port(self._namespace, self._name, port) as pipe:
                sending = asyncio.create_task(_send(reader, pipe))
                try:
                    async for data in pipe.output():
                        writer.write(data)
                        await writer.drain()
                finally:
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)
        except PlatformError as exc:
            self._note(f"connection to port {port}: {exc.message}")
            _break_off(writer)
        except OSError:
            pass  # whoever connected has left
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def until_ended(self) -> str:
        """Wait for the pod's end, and say what happened."""
        lost = False
        while True:
            try:
                pod = await Store(self._server).get(Pod, self._name, self._namespace)
                if pod.status.phase in ("Succeeded", "Failed"):
                    return f"Pod {self._name} has ended ({pod.status.phase})."
                lost = False
            except NotFound:
                return f"Pod {self._name} is gone."
            except Unavailable as exc:
                if not lost:
                    self._note(f"connection lost ({exc.message}); trying again")
                lost = True
            await asyncio.sleep(_POLL_S)

    async def close(self) -> None:
        self._closing = True
        for listener in self._listeners:
            listener.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _send(reader: asyncio.StreamReader, pipe: PortStream) -> None:
    # What goes wrong here shows on the other side too, where somebody looks.
    with suppress(PlatformError, OSError):
        while data := await reader.read(_CHUNK):
            await pipe.write(data)
        await pipe.close_input()


def _break_off(writer: asyncio.StreamWriter) -> None:
    """Not an end in good order: what came may be half of it. Without lingering, a close is a reset."""
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _cannot_listen(host: str, wanted: Forward, exc: OSError) -> Invalid:
    # The library's sentence may begin with the address, which is said already.
    why = (exc.strerror or str(exc)).lower().rpartition("): ")[2]
    if isinstance(exc, socket.gaierror) or exc.errno == errno.EADDRNOTAVAIL:
        return Invalid(f"--address: cannot listen on {host}: {why}", hint="give an address of this machine")
    hint = f"choose another one here: --port OTHER:{wanted.remote}"
    return Invalid(f"--port: cannot listen on {_shown(host, wanted.local)}: {why}", hint=hint)


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
