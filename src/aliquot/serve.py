"""`aliquot up` and `aliquot serve`: store, loops and server wired into one process.

The only module that knows which body it runs on. Everything in the process hangs from one task group, in the
foreground; SIGINT and SIGTERM end it cleanly, and a kill at any moment costs nothing that was acknowledged.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
import uuid
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
import uvicorn

from aliquot.api import Namespace, Pod, Project, Workload
from aliquot.backends.backend import Backend
from aliquot.backends.kubernetes.settings import ClusterSettings
from aliquot.backends.local.assembly import local_agent
from aliquot.backends.local.gpu_settings import GpuSettings
from aliquot.controllers.bootstrap import SharedToken, bootstrap
from aliquot.controllers.events import EventRecorder
from aliquot.controllers.garbage import Garbage
from aliquot.controllers.projects import Projects
from aliquot.controllers.runtime.leader import Leader
from aliquot.controllers.usage import Usage
from aliquot.controllers.workloads import Workloads
from aliquot.errors import Invalid, PlatformError
from aliquot.folder import Folder
from aliquot.scheduler.last_decision import LastDecision
from aliquot.scheduler.loop import Scheduler
from aliquot.server.app import Service, application, probes
from aliquot.store.driver import StoreDriver
from aliquot.store.drivers.sqlite import SqliteDriver
from aliquot.store.informer import Informers
from aliquot.store.typed_store import Store
from aliquot.telemetry import logs

log = structlog.get_logger()
Runs = list[Coroutine[Any, Any, None]]
PARTS = ("server", "loops", "scheduler")  # that may run in one process or in several
API_ONLY = ("server", "projects")  # nothing runs, but projects have their namespaces
_STOP_SECONDS = 5  # for answers under way; watches end at once


@dataclass(frozen=True, slots=True)
class Options:
    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 7520
    parts: frozenset[str] = frozenset(PARTS)
    simulate: str | None = None  # a preset or a file; None: the GPUs of this machine, else the demo
    host_paths: tuple[str, ...] = ()  # folders of this machine that jobs may mount
    gpu: GpuSettings = field(default_factory=GpuSettings)
    cluster: ClusterSettings | None = None  # None: everything is on this machine
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
    async with _driver(options, folder) as (driver, flavour):
        await bootstrap(Store(driver), folder, _shared_token(options, driver))
        informers = Informers(driver)
        ground = await _ground(options, folder, driver, informers)
        service = Service(
            driver,
            informers=informers,
            flavour=flavour,
            streams=ground.streams,
            facts=dict(ground.facts),
            last=LastDecision() if "scheduler" in options.parts else None,
            kubeconfigs=ground.kubeconfigs,
        )
        server = _Server(
            uvicorn.Config(
                application(service) if "server" in options.parts else probes(service),
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
            deciding = [group.create_task(work) for work in _deciding(options, driver, service, ground)]
            background = [group.create_task(work) for work in _loops(driver, service, ground)]
            serving = group.create_task(server.serve(sockets=[listener]))
            group.create_task(_announce(service, server, folder, url, ground))
            await asyncio.wait((serving, group.create_task(stop.wait())), return_when=asyncio.FIRST_COMPLETED)
            stop.set()
            server.should_exit = True
            await serving
            folder.retract()
            # Nobody may start again what is stopped now.
            for task in deciding:
                task.cancel()
            await asyncio.gather(*deciding, return_exceptions=True)
            if folder.jobs_must_stop:
                await ground.stop_jobs()
            folder.stop_jobs(False)
            for task in background:
                task.cancel()
        log.info("stopped")


def _deciding(options: Options, driver: StoreDriver, service: Service, ground: Backend) -> Runs:
    """The loops that decide what should be. Where several processes may, those decide that lead."""
    store, of = Store(driver), service.informers.of
    loops = []
    if options.parts & {"loops", "projects"}:
        loops.append(Projects(store, of(Project), of(Namespace)).loop.run)
    if "loops" in options.parts:
        loops.append(Workloads(store, of(Workload), of(Pod), of(Namespace)).loop.run)
        loops.append(EventRecorder(store, of(Workload), of(Pod)).loop.run)
        loops.append(Usage(store, service.informers).run)
        loops += ground.deciding
    plans = []
    if "scheduler" in options.parts:
        around = ground.around
        plans.append(Scheduler(store, service.informers, last=service.last, binder=ground.hands, context=around).run)
    if options.cluster is None:
        return [run() for run in (*loops, *plans)]
    identity = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    led = (("aliquot-loops" if "loops" in options.parts else "aliquot-projects", loops), ("aliquot-scheduler", plans))
    return [
        Leader(store, name, identity).run(lambda runs=runs: [run() for run in runs])  # type: ignore[misc]
        for name, runs in led
        if runs
    ]


def _loops(driver: StoreDriver, service: Service, ground: Backend) -> Runs:
    """Everything else that runs beside the server."""
    runs = [informer.run() for informer in service.informers]
    runs += ground.always
    if not driver.collects_orphans:
        garbage = Garbage(driver)
        runs += [informer.run() for informer in garbage.informers.values()]
        runs += [garbage.loop.run(), garbage.sweep()]
    return runs


async def _announce(service: Service, server: uvicorn.Server, folder: Folder, url: str, ground: Backend) -> None:
    """Say where we are once requests are answered, not before."""
    await service.informers.wait()
    await ground.ready()
    while not server.started and not service.stopping.is_set():  # noqa: ASYNC110  # uvicorn has no event for it
        await asyncio.sleep(0.01)
    if not service.stopping.is_set():
        folder.announce(url, service.flavour, time.time())
        log.info("serving", url=url, data=str(folder.path), flavour=service.flavour)


async def _ground(options: Options, folder: Folder, driver: StoreDriver, informers: Informers) -> Backend:
    """Who runs the pods: this machine's agent, a cluster's kubelets, nobody."""
    if options.cluster is not None:
        from aliquot.backends.kubernetes.assembly import kubernetes_backend

        return await kubernetes_backend(driver, informers, options.parts, options.cluster)
    if options.parts != frozenset(PARTS):
        return Backend()
    agent = await local_agent(Store(driver), informers, folder.path, options.simulate, options.host_paths, options.gpu)
    return agent.ground()


def _shared_token(options: Options, driver: StoreDriver) -> SharedToken | None:
    if options.cluster is None:
        return None
    from aliquot.backends.kubernetes.admin_token import AdminToken

    return AdminToken(driver)


@asynccontextmanager
async def _driver(options: Options, folder: Folder) -> AsyncIterator[tuple[StoreDriver, str]]:
    if options.cluster is None:
        driver: StoreDriver = SqliteDriver(folder.database)
        flavour = "embedded"
    else:
        # Imported here: its HTTP client is not needed otherwise.
        from aliquot.store.drivers.kubernetes import KubernetesDriver, install
        from aliquot.store.http import kubeconfig

        files = [options.cluster.kubeconfig] if options.cluster.kubeconfig else []
        endpoint = kubeconfig.load(files, options.cluster.context) if files else kubeconfig.in_cluster()
        driver = KubernetesDriver(endpoint)
        await install(driver)
        flavour = "kubernetes"
    try:
        yield driver, flavour
    finally:
        await driver.close()


class _Server(uvicorn.Server):
    """Uvicorn without its own signal handling: this process has one owner of signals."""

    def install_signal_handlers(self) -> None:
        return

    def capture_signals(self) -> Any:
        from contextlib import nullcontext

        return nullcontext()
