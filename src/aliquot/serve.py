"""`aliquot up`: store, loops and server wired into one process.

The only module that knows which body it runs on. Everything in the process hangs from one task group, in the
foreground; SIGINT and SIGTERM end it cleanly, and a kill at any moment costs nothing that was acknowledged.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
import uvicorn

from aliquot.agent.local import LocalAgent, local_agent
from aliquot.agent.settings import GpuSettings
from aliquot.control.bootstrap import bootstrap
from aliquot.control.decisions import LastDecision
from aliquot.control.events import Chronicle
from aliquot.control.garbage import Garbage
from aliquot.control.projects import Projects
from aliquot.control.scheduler import Scheduler
from aliquot.control.usage import Usage
from aliquot.control.workloads import Workloads
from aliquot.errors import Invalid, PlatformError
from aliquot.folder import Folder
from aliquot.server.app import Service, application
from aliquot.store.base import Body
from aliquot.store.informer import Informers
from aliquot.store.sqlite import SqliteBody
from aliquot.store.typed import Store
from aliquot.telemetry import logs
from aliquot.types import Namespace, Pod, Project, Workload

log = structlog.get_logger()
_STOP_SECONDS = 5  # for answers under way; watches end at once


@dataclass(frozen=True, slots=True)
class Options:
    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 7520
    api_only: bool = False  # nothing is scheduled or run
    simulate: str | None = None  # a preset or a file; None: the GPUs of this machine, else the demo
    host_paths: tuple[str, ...] = ()  # folders of this machine that jobs may mount
    gpu: GpuSettings = field(default_factory=GpuSettings)
    kubeconfig: Path | None = None
    context: str | None = None
    log_format: str = "text"
    log_level: str = "info"


def serve(options: Options) -> None:
    """Serve until told to stop. `PlatformError` says why it could not."""
    logs.configure(options.log_format, options.log_level)
    os.umask(0o077)  # what we write is for its owner, also in a folder that others may read
    folder = Folder(options.data_dir)
    folder.prepare()
    with folder.held(), _listening(options.host, options.port) as listener:
        try:
            asyncio.run(_run(options, folder, listener))
        except BaseExceptionGroup as group:
            # The task group wraps whatever ended it; people want the reason.
            known = group.subgroup(PlatformError)
            if known is None:
                log.exception("the platform stops: a part of it failed")
                raise
            raise _first(known) from group


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _listening(host: str, port: int) -> socket.socket:
    """The port is taken before anything else happens, so that a port in use changes nothing."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # The protocol is named because asyncio sends small answers without delay only on sockets that say TCP.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as exc:
        raise Invalid(
            f"--port: cannot listen on {host}:{port}: {(exc.strerror or str(exc)).lower()}",
            hint="choose another --port, or 0 for any free one",
        ) from exc
    except OverflowError:
        raise Invalid(f"--port: {port} is not a port", hint="choose one from 0 to 65535") from None
    return listener


async def _run(options: Options, folder: Folder, listener: socket.socket) -> None:
    async with _body(options, folder) as (body, flavour):
        await bootstrap(Store(body), folder)
        informers = Informers(body)
        agent = await _agent(options, folder, body, informers) if _runs_jobs(options) else None
        service = Service(
            body,
            informers=informers,
            flavour=flavour,
            streams=agent.runtime if agent else None,
            facts={"isolation": agent.runtime.isolation} if agent else {},
            last=LastDecision() if agent else None,
        )
        server = _Server(
            uvicorn.Config(
                application(service),
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=_STOP_SECONDS,
            )
        )
        stop = service.stopping
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        host, port = listener.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        async with asyncio.TaskGroup() as group:
            deciding = [group.create_task(work) for work in _deciding(body, service, agent)]
            background = [group.create_task(work) for work in _loops(body, service, agent)]
            serving = group.create_task(server.serve(sockets=[listener]))
            group.create_task(_announce(service, server, folder, url, flavour))
            await asyncio.wait((serving, group.create_task(stop.wait())), return_when=asyncio.FIRST_COMPLETED)
            stop.set()
            server.should_exit = True
            await serving
            folder.retract()
            # Nobody may start again what is stopped now.
            for task in deciding:
                task.cancel()
            if agent is not None and folder.jobs_must_stop:
                await agent.stop_jobs()
            folder.stop_jobs(False)
            for task in background:
                task.cancel()
        log.info("stopped")


def _deciding(body: Body, service: Service, agent: LocalAgent | None) -> list[Coroutine[Any, Any, None]]:
    """The loops that decide what should be."""
    store, of = Store(body), service.informers.of
    runs = [Projects(store, of(Project), of(Namespace)).loop.run()]
    if agent is not None:
        runs.append(Workloads(store, of(Workload), of(Pod), of(Namespace)).loop.run())
        runs.append(Chronicle(store, of(Workload), of(Pod)).loop.run())
        runs.append(Scheduler(store, service.informers, last=service.last).run())
        runs.append(Usage(store, service.informers).run())
    return runs


def _loops(body: Body, service: Service, agent: LocalAgent | None) -> list[Coroutine[Any, Any, None]]:
    """Everything else that runs beside the server."""
    runs = [informer.run() for informer in service.informers]
    if agent is not None:
        runs += agent.runs()
    if not body.collects_orphans:
        garbage = Garbage(body)
        runs += [informer.run() for informer in garbage.informers.values()]
        runs += [garbage.loop.run(), garbage.sweep()]
    return runs


async def _announce(service: Service, server: uvicorn.Server, folder: Folder, url: str, flavour: str) -> None:
    """Say where we are once requests are answered, not before."""
    await service.informers.wait()
    while not server.started and not service.stopping.is_set():  # noqa: ASYNC110  # uvicorn has no event for it
        await asyncio.sleep(0.01)
    if not service.stopping.is_set():
        folder.announce(url, flavour, time.time())
        log.info("serving", url=url, data=str(folder.path), flavour=flavour)


def _runs_jobs(options: Options) -> bool:
    return options.kubeconfig is None and not options.api_only


async def _agent(options: Options, folder: Folder, body: Body, informers: Informers) -> LocalAgent:
    return await local_agent(Store(body), informers, folder.path, options.simulate, options.host_paths, options.gpu)


@asynccontextmanager
async def _body(options: Options, folder: Folder) -> AsyncIterator[tuple[Body, str]]:
    if options.kubeconfig is None:
        body: Body = SqliteBody(folder.database)
        flavour = "embedded"
    else:
        # Imported here: its HTTP client is not needed otherwise.
        from aliquot.store import kubeconfig
        from aliquot.store.kubernetes import KubernetesBody, install

        body = KubernetesBody(kubeconfig.load([options.kubeconfig], options.context or ""))
        await install(body)
        flavour = "kubernetes"
    try:
        yield body, flavour
    finally:
        await body.close()


class _Server(uvicorn.Server):
    """Uvicorn without its own signal handling: this process has one owner of signals."""

    def install_signal_handlers(self) -> None:
        return

    def capture_signals(self) -> Any:
        from contextlib import nullcontext

        return nullcontext()
