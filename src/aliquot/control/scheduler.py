"""The scheduler as a loop: something changed, look, decide, write.

The decision is `core.plan`, and no rule of scheduling is here. What is here is how its answers reach the world: each
binding is one compare-and-swap on the version it was decided from, and why a workload waits is written to its status.
A binding that was written but is not yet in our picture is assumed until it is, so that the next plan does not give
the same device twice; should it happen all the same, the node refuses.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import structlog

from aliquot import labels
from aliquot.control.snapshot import job_name, snapshot_of
from aliquot.core import Bind, Plan, Policy, Refusal, Share, Verdict, plan
from aliquot.errors import NotFound, PlatformError
from aliquot.store.informer import Informer, Key
from aliquot.store.typed import Store
from aliquot.types import (
    KINDS,
    Amounts,
    Department,
    DeviceShare,
    Namespace,
    Node,
    Pod,
    Project,
    Workload,
    encode,
    shares_text,
)
from aliquot.types import Refusal as ShownRefusal

# Changes come in bursts; a moment's patience makes one plan of them. Short enough that nobody sees it.
_DEBOUNCE_SECONDS = 0.005
_RETRY_SECONDS = 1.0
# What is carried out so far: starting jobs. Stopping them for others comes with the writing of evictions.
_POLICY = Policy(steps=("allocate",))
log = structlog.get_logger()


class Scheduler:
    def __init__(
        self,
        store: Store,
        nodes: Informer[Node],
        pods: Informer[Pod],
        projects: Informer[Project],
        departments: Informer[Department],
        namespaces: Informer[Namespace],
        workloads: Informer[Workload],
    ) -> None:
        self._store = store
        self._nodes, self._pods, self._projects, self._departments = nodes, pods, projects, departments
        self._namespaces, self._workloads = namespaces, workloads
        self._assumed: dict[str, tuple[str, tuple[Share, ...]]] = {}
        self._bell = asyncio.Event()
        pods.listen(self._pod_changed)
        for informer in (nodes, namespaces):
            informer.listen(self._changed)
        projects.listen(self._queue_changed)
        departments.listen(self._queue_changed)
        workloads.listen(self._workload_changed)

    def _changed(self, key: Key, old: object, new: object) -> None:
        self._bell.set()

    def _queue_changed(self, key: Key, old: Project | Department | None, new: Project | Department | None) -> None:
        # What it holds now is written to its status all the time, and changes nothing here.
        if old is None or new is None or old.spec != new.spec:
            self._bell.set()

    def _workload_changed(self, key: Key, old: Workload | None, new: Workload | None) -> None:
        # Only its coming: why it waits may have been decided before we knew whom to tell.
        if old is None:
            self._bell.set()

    def _pod_changed(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        """What the picture says itself need not be assumed any longer."""
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._assumed.pop(old.metadata.uid, None)
        if new is not None and new.spec.node_name:
            self._assumed.pop(new.metadata.uid, None)
        self._bell.set()

    async def run(self) -> None:
        """Until cancelled."""
        for informer in (
            self._nodes, self._pods, self._projects, self._departments, self._namespaces, self._workloads,
        ):  # fmt: skip
            await informer.synced.wait()
        while True:
            await self._bell.wait()
            await asyncio.sleep(_DEBOUNCE_SECONDS)
            self._bell.clear()
            try:
                await self._cycle()
            except Exception as exc:  # one bad object must not stop the scheduler for the others
                log.exception("cycle failed", error=str(exc))
                asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._bell.set)

    async def _cycle(self) -> None:
        spaces = {namespace.metadata.name: namespace for namespace in self._namespaces}
        ages = {
            job_name(workload.metadata.namespace, workload.metadata.name): workload.metadata.created or 0.0
            for workload in self._workloads
        }
        snapshot = snapshot_of(
            self._nodes, self._pods, self._projects, self._departments, spaces, self._assumed, ages,
        )  # fmt: skip
        decided = plan(snapshot, _POLICY, time.time())
        await self._apply(decided)

    async def _apply(self, decided: Plan) -> None:
        for bind in decided.binds:
            try:
                await self._bind(bind)
            except NotFound:
                continue  # deleted meanwhile
            except PlatformError as exc:
                log.info("binding refused", pod=bind.task, node=bind.node, error=str(exc))
                asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._bell.set)
        await self._tell(decided)

    async def _bind(self, bind: Bind) -> None:
        namespace = bind.job.partition("/")[0]
        pod = self._pods.get(bind.task, namespace)
        if pod is None or pod.spec.node_name:
            return
        shares = [DeviceShare(index=s.index, milli=s.milli, memory_mib=s.memory_mib) for s in bind.shares]
        change = {
            "metadata": {"annotations": {labels.DEVICES: shares_text(shares)}},
            "spec": {"nodeName": bind.node},
        }
        # Assumed before it is written: the picture may show it before the answer comes.
        self._assumed[pod.metadata.uid] = (bind.node, bind.shares)
        try:
            await self._store.body.patch(KINDS.of(Pod), bind.task, namespace, change, version=pod.metadata.version)
        except PlatformError:
            self._assumed.pop(pod.metadata.uid, None)
            raise

    async def _tell(self, decided: Plan) -> None:
        """Write why workloads wait; only what changed."""
        for workload in list(self._workloads):  # a copy: the picture moves on while we write
            place = workload.metadata
            shown = tuple(_shown(reason) for reason in decided.refusals.get(job_name(place.namespace, place.name), ()))
            if shown == workload.status.refusals:
                continue
            change = {"status": {"refusals": [encode(one) for one in shown] or None}}
            with suppress(NotFound):
                await self._store.body.patch(KINDS.of(Workload), place.name, place.namespace, change, status=True)


def _shown(reason: Refusal) -> ShownRefusal:
    return ShownRefusal(
        step=reason.step,
        code=reason.code,
        text=reason.text,
        missing=Amounts(gpu=reason.missing[0] or None, cpu=reason.missing[1] or None, memory=reason.missing[2] or None),
        nodes=reason.nodes,
        final=reason.verdict is Verdict.NEVER,
    )
