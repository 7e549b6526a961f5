"""`aliquot up` and `aliquot serve`: store, controllers, scheduler and server wired into one process.

The only module that knows which store driver and which backend it runs on. One task group owns every task of the
process. SIGINT and SIGTERM end it cleanly. A kill at any moment loses nothing that was acknowledged.
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
from aliquot.backends.backend import Backend, Run
from aliquot.backends.kubernetes.settings import ClusterSettings
from aliquot.backends.local.assembly import local_agent
from aliquot.backends.local.gpu_settings import GpuSettings
from aliquot.controllers.bootstrap import SharedAdminToken, bootstrap
from aliquot.controllers.events import EventRecorder
from aliquot.controllers.garbage import GarbageCollector
from aliquot.controllers.projects import ProjectReconciler
from aliquot.controllers.runtime.leader import LeaderElector
from aliquot.controllers.usage import UsageReconciler
from aliquot.controllers.workloads import WorkloadReconciler
from aliquot.errors import Invalid, PlatformError
from aliquot.folder import DataFolder
from aliquot.scheduler.last_decision import LastDecision
from aliquot.scheduler.loop import Scheduler
from aliquot.server.app import ServerContext, application, probe_application
from aliquot.store.driver import StoreDriver
from aliquot.store.drivers.sqlite import SqliteDriver
from aliquot.store.informer import Informers
from aliquot.store.typed_store import Store
from aliquot.telemetry import logs

log = structlog.get_logger()
Coroutines = list[Coroutine[Any, Any, None]]
PARTS = ("server", "loops", "scheduler")  # may run in one process or in several
API_ONLY = ("server", "projects")  # no job runs, but projects get their namespaces
_STOP_SECONDS = 5  # for requests in flight; watches end at once


@dataclass(frozen=True, slots=True)
class Options:
    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 7520
    parts: frozenset[str] = frozenset(PARTS)
    simulate: str | None = None  # a preset or a file; None: the GPUs of this machine, or the demo where it has none
    host_paths: tuple[str, ...] = ()  # folders of this machine that jobs may mount
    gpu: GpuSettings = field(default_factory=GpuSettings)
    cluster: ClusterSettings | None = None  # None: everything runs on this machine
    log_format: str = "text"
    log_level: str = "info"


def serve(options: Options) -> None:
    """Serves until a signal ends it. `PlatformError` says why it could not start."""
    logs.configure(options.log_format, options.log_level)
    os.umask(0o077)  # only the owner reads what we write, also in a folder that others may enter
    folder = DataFolder(options.data_dir)
    folder.prepare()
    with folder.locked(), _listening(options.host, options.port) as listener:
        try:
            asyncio.run(_run(options, folder, listener))
        except BaseExceptionGroup as group:
            # The task group wraps the error that ended it; users want the error itself.
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
    """Binds the port before anything is written, so that a port in use changes nothing."""
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


async def _run(options: Options, folder: DataFolder, listener: socket.socket) -> None:
    async with _driver(options, folder) as (driver, flavour):
        await bootstrap(Store(driver), folder, _shared_token(options, driver))
        informers = Informers(driver)
        backend = await _backend(options, folder, driver, informers)
        service = ServerContext(
            driver,
            informers=informers,
            flavour=flavour,
            streams=backend.streams,
            facts=dict(backend.facts),
            last_decision=LastDecision() if "scheduler" in options.parts else None,
            kubeconfigs=backend.kubeconfigs,
        )
        server = _Server(
            uvicorn.Config(
                application(service) if "server" in options.parts else probe_application(service),
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
            controllers = [group.create_task(work) for work in _controllers(options, driver, service, backend)]
            background = [group.create_task(work) for work in _background(driver, service, backend)]
            serving = group.create_task(server.serve(sockets=[listener]))
            group.create_task(_announce(service, server, folder, url, backend))
            await asyncio.wait((serving, group.create_task(stop.wait())), return_when=asyncio.FIRST_COMPLETED)
            stop.set()
            server.should_exit = True
            await serving
            folder.remove_server_file()
            # Controllers end first, so that none restarts a job that is stopped below.
            for task in controllers:
                task.cancel()
            await asyncio.gather(*controllers, return_exceptions=True)
            if folder.jobs_must_stop:
                await backend.stop_jobs()
            folder.stop_jobs(False)
            for task in background:
                task.cancel()
        log.info("stopped")


def _controllers(options: Options, driver: StoreDriver, service: ServerContext, backend: Backend) -> Coroutines:
    """Controllers and the scheduler. On a cluster each set runs only while this replica holds its lease."""
    store, of = Store(driver), service.informers.of
    controllers: list[Run] = []
    if options.parts & {"loops", "projects"}:
        controllers.append(ProjectReconciler(store, of(Project), of(Namespace)).controller.run)
    if "loops" in options.parts:
        controllers.append(WorkloadReconciler(store, of(Workload), of(Pod), of(Namespace)).controller.run)
        controllers.append(EventRecorder(store, of(Workload), of(Pod)).controller.run)
        controllers.append(UsageReconciler(store, service.informers, context=backend.scheduling_context).run)
        controllers += backend.controllers
    schedulers: list[Run] = []
    if "scheduler" in options.parts:
        scheduler = Scheduler(
            store,
            service.informers,
            last=service.last_decision,
            binder=backend.binder,
            context=backend.scheduling_context,
        )
        schedulers.append(scheduler.run)
    if options.cluster is None:
        return [run() for run in (*controllers, *schedulers)]
    identity = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    controllers_lease = "aliquot-loops" if "loops" in options.parts else "aliquot-projects"
    led = ((controllers_lease, controllers), ("aliquot-scheduler", schedulers))
    return [
        LeaderElector(store, lease, identity).run(lambda runs=runs: [run() for run in runs])  # type: ignore[misc]
        for lease, runs in led
        if runs
    ]


def _background(driver: StoreDriver, service: ServerContext, backend: Backend) -> Coroutines:
    """What runs beside the server in every replica."""
    coroutines = [informer.run() for informer in service.informers]
    coroutines += backend.background
    if not driver.collects_orphans:
        garbage = GarbageCollector(driver)
        coroutines += [informer.run() for informer in garbage.informers.values()]
        coroutines += [garbage.controller.run(), garbage.sweep()]
    return coroutines


async def _announce(
    service: ServerContext, server: uvicorn.Server, folder: DataFolder, url: str, backend: Backend
) -> None:
    """Writes our address to the data folder once requests are answered, not before."""
    await service.informers.wait()
    await backend.ready()
    while not server.started and not service.stopping.is_set():  # noqa: ASYNC110  # uvicorn has no event for it
        await asyncio.sleep(0.01)
    if not service.stopping.is_set():
        folder.write_server_file(url, service.flavour, time.time())
        log.info("serving", url=url, data=str(folder.path), flavour=service.flavour)


async def _backend(options: Options, folder: DataFolder, driver: StoreDriver, informers: Informers) -> Backend:
    """The backend that runs pods: this machine's agent, a cluster's kubelets, or none."""
    if options.cluster is not None:
        from aliquot.backends.kubernetes.assembly import kubernetes_backend

        return await kubernetes_backend(driver, informers, options.parts, options.cluster)
    if options.parts != frozenset(PARTS):
        return Backend()
    agent = await local_agent(Store(driver), informers, folder.path, options.simulate, options.host_paths, options.gpu)
    return agent.backend()


def _shared_token(options: Options, driver: StoreDriver) -> SharedAdminToken | None:
    if options.cluster is None:
        return None
    from aliquot.backends.kubernetes.admin_token import AdminToken

    return AdminToken(driver)


@asynccontextmanager
async def _driver(options: Options, folder: DataFolder) -> AsyncIterator[tuple[StoreDriver, str]]:
    """The store driver and the flavour that `aliquot status` shows."""
    if options.cluster is None:
        driver: StoreDriver = SqliteDriver(folder.database)
        flavour = "embedded"
    else:
        # Imported only here: other flavours need no HTTP client.
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
    """Uvicorn without its own signal handlers: `_run` handles signals for the whole process."""

    def install_signal_handlers(self) -> None:
        return

    def capture_signals(self) -> Any:
        from contextlib import nullcontext

        return nullcontext()
