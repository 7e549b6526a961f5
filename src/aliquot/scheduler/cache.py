"""The planner's input, kept up to date from informer events.

An event rebuilds only what it concerns: a job when one of its pods or its workload changes, a node when it changes, the
queues when a project or department changes. A snapshot puts these parts together.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from aliquot import labels
from aliquot.api import Department, Namespace, NodePool, Pod, Project, SchedulingPolicy, Workload
from aliquot.api import Node as NodeObject
from aliquot.api import Refusal as ApiRefusal
from aliquot.planner import DeviceShare, Job, Policy, Snapshot, TaskState
from aliquot.podspec.requests import is_preemptible
from aliquot.scheduler.device_accounting import DeviceAccounting
from aliquot.scheduler.job_cache import JobCache, group_key
from aliquot.scheduler.node_cache import NodeCache
from aliquot.scheduler.pending_move import PendingMove
from aliquot.scheduler.pod_groups import project_of
from aliquot.scheduler.policy import StopPolicy
from aliquot.scheduler.queue_cache import QueueCache
from aliquot.scheduler.scheduling_context import SchedulingContext
from aliquot.scheduler.snapshot import (
    concerns_scheduler,
    job_name,
    job_of,
    only_checkpoint_changed,
    same_for_scheduling,
)
from aliquot.store.informer import Informer, Informers, Key

_NO_TOPOLOGY: Mapping[str, tuple[str, ...]] = {}


class SchedulerCache:
    def __init__(
        self, informers: Informers, changed: Callable[[], None], context: SchedulingContext | None = None
    ) -> None:
        """`changed` is called when an event may change the plan."""
        self._changed = changed
        self._context = context or SchedulingContext()
        self._pods: Informer[Pod] = informers.of(Pod)
        self._workloads: Informer[Workload] = informers.of(Workload)
        self._projects: Informer[Project] = informers.of(Project)
        self._namespaces: Informer[Namespace] = informers.of(Namespace)
        self._node_objects: Informer[NodeObject] = informers.of(NodeObject)
        departments: Informer[Department] = informers.of(Department)
        policies: Informer[SchedulingPolicy] = informers.of(SchedulingPolicy)
        pools: Informer[NodePool] = informers.of(NodePool)
        self._informers: tuple[Informer[Any], ...] = (
            self._pods, self._workloads, self._projects, departments, self._namespaces, policies, self._node_objects,
            pools,
        )  # fmt: skip
        self._nodes = NodeCache()
        self._queues = QueueCache(self._projects, departments, pools, policies)
        self._jobs = JobCache(self._build_job, lambda key: self._workloads.get(key[1], key[0]) is not None)
        self._jobs_with_refusals: dict[str, None] = {}  # jobs whose workload's status shows refusals
        self._shown_refusals: dict[str, tuple[ApiRefusal, ...]] = {}  # by the uid of a waiting pod
        self._interactive_waiting = False
        self._evicting: dict[Key, Pod] = {}  # pods with an eviction record
        # Bindings that were decided but that the informer has not shown yet: pod uid -> (node, shares).
        self._assumed: dict[str, tuple[str, tuple[DeviceShare, ...]]] = {}
        self._devices = DeviceAccounting()
        # Where the pods are that do not say it themselves.
        self._placements = ChainMap(self._assumed, self._devices.inferred)
        self._placeholders: dict[str, dict[Key, None]] = {}  # node -> its placeholder pods
        self._context.watch_pods(self._pods)
        self._context.listen(self._context_changed)
        self._pods.listen(self._pod_changed)
        self._workloads.listen(self._workload_changed)
        self._node_objects.listen(self._node_changed)
        self._namespaces.listen(self._namespace_changed)
        policies.listen(self._policy_changed)
        self._projects.listen(self._queue_changed)
        departments.listen(self._queue_changed)

    async def wait_synced(self) -> None:
        for informer in self._informers:
            await informer.synced.wait()
        await self._context.wait_synced()

    @property
    def is_synced(self) -> bool:
        return all(informer.synced.is_set() for informer in self._informers)

    # ---------------------------------------------------------------- the planner's input

    def snapshot(self, now: float) -> Snapshot:
        """Parts that did not change are the same objects as in the last snapshot."""
        return Snapshot(self._nodes.nodes(), self._queues.queues(now), self._jobs.jobs(now), _NO_TOPOLOGY)

    def take_changed_jobs(self) -> dict[str, Job | None]:
        """The jobs that differ between the last snapshot and the last call; None for a job that is gone."""
        return self._jobs.take_changed()

    def policies(self) -> tuple[Policy, Mapping[str, Policy]]:
        """The default policy, and the policies of pools that have their own."""
        return self._queues.policies()

    @property
    def valid_until(self) -> float | None:
        """When the snapshot changes without any event; None when it never does."""
        times = (self._jobs.protection_ends, self._queues.valid_until)
        return min((time for time in times if time is not None), default=None)

    # ---------------------------------------------------------------- lookups

    def pod(self, job: str, task: str) -> Pod | None:
        return self._pods.get(task, job.partition("/")[0])

    def workload(self, job: str) -> Workload | None:
        """The workload of a job; None for a job that consists of pods alone."""
        namespace, _, group = job.partition("/")
        return self._workloads.get(group, namespace)

    def has_node(self, namespace: str, name: str, uid: str) -> bool:
        """Whether the informer has shown that this pod has a node."""
        pod = self._pods.get(name, namespace)
        return pod is not None and pod.metadata.uid == uid and bool(pod.spec.node_name)

    def waiting_pods(self, job: str) -> list[Pod]:
        """The pods of a job that have no node, and no assumed one."""
        namespace, _, group = job.partition("/")
        pods = self._jobs.pods((namespace, group))
        return [pod for pod in pods if not pod.spec.node_name and not self.is_assumed(pod)]

    def nominated_tasks(self) -> list[tuple[str, str]]:
        """The waiting tasks that have a nomination, as job and task."""
        return self._jobs.nominated_tasks()

    def evicting_pods(self) -> list[Pod]:
        """The pods that have an eviction record."""
        return list(self._evicting.values())

    def stop_policy(self, pod: Pod) -> StopPolicy:
        """How a pod is evicted, by the policy of its node pool."""
        return self._queues.stop_policy(self._nodes.pool_of(pod.spec.node_name))

    # ---------------------------------------------------------------- refusals shown to users

    def jobs_with_refusals(self) -> list[str]:
        """The jobs whose workload's status shows refusals."""
        return list(self._jobs_with_refusals)

    def shown_refusals(self, pod: Pod) -> tuple[ApiRefusal, ...]:
        """The refusals that were last written into the conditions of a waiting pod."""
        return self._shown_refusals.get(pod.metadata.uid, ())

    def record_shown(self, pod: Pod, refusals: tuple[ApiRefusal, ...]) -> None:
        self._shown_refusals[pod.metadata.uid] = refusals

    # ---------------------------------------------------------------- interactive pods

    @property
    def interactive_waiting(self) -> bool:
        """Whether an interactive pod arrived since `clear_interactive_waiting`."""
        return self._interactive_waiting

    def clear_interactive_waiting(self) -> None:
        self._interactive_waiting = False

    # ---------------------------------------------------------------- decisions that the informer has not shown yet

    def assume(self, pod: Pod, node: str, shares: tuple[DeviceShare, ...]) -> None:
        self._assumed[pod.metadata.uid] = (node, shares)
        self._devices.assume(pod.metadata.uid, node, shares)
        self._jobs.invalidate(group_key(pod))

    def forget(self, pod: Pod) -> None:
        if self._assumed.pop(pod.metadata.uid, None) is not None:
            self._devices.forget(pod.metadata.uid)
            self._jobs.invalidate(group_key(pod))

    def forget_all(self) -> None:
        """For a new leader: another one may have decided meanwhile, and pending writes may not have arrived."""
        for uid in self._assumed:
            self._devices.forget(uid)
        self._assumed.clear()
        self._jobs.drop_pending_moves()
        self._jobs.invalidate_all()

    def is_assumed(self, pod: Pod) -> bool:
        return pod.metadata.uid in self._assumed

    def assumed_placement(self, pod: Pod) -> tuple[str, tuple[DeviceShare, ...]] | None:
        return self._assumed.get(pod.metadata.uid)

    def set_nonpreemptible_until(self, pod: Pod, until: float) -> None:
        """Keeps the pod's job from being evicted for a while, because the cluster forbids it."""
        self._jobs.set_nonpreemptible_until(pod, until)

    def add_pending_move(self, pod: Pod, node: str, shares: tuple[DeviceShare, ...], until: float) -> None:
        """Holds the new place of a pod that is evicted in order to move its workload there."""
        self._jobs.add_pending_move(pod, PendingMove(node, shares, until))

    # ---------------------------------------------------------------- building jobs

    def _build_job(self, key: Key, pods: Sequence[Pod]) -> Job | None:
        placeholders = [pod for pod in pods if self._context.is_placeholder(pod)]
        if any(map(self._is_in_use, placeholders)):
            return None  # the pods that share the device hold it
        namespace = self._namespaces.get(key[0])
        project = self._projects.get(project_of(pods, namespace.metadata.labels if namespace else {}))
        workload = self._workloads.get(key[1], key[0])
        job = job_of(key, pods, namespace, project, workload, self._placements, self._context)
        if placeholders:
            return replace(job, tasks=tuple(replace(task, state=TaskState.RELEASING) for task in job.tasks))
        return job

    def _is_in_use(self, placeholder: Pod) -> bool:
        """Whether pods share the device of a placeholder. One without such pods is deleted soon, which frees its
        device."""
        device = self._context.held_device(placeholder)
        return device in self._devices.in_use(placeholder.spec.node_name)

    # ---------------------------------------------------------------- events

    def _pod_changed(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        """A binding that the informer shows is no longer assumed."""
        if new is not None and same_for_scheduling(old, new):
            self._jobs.replace_pod(new)
            if key in self._evicting:
                self._evicting[key] = new
            return
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._assumed.pop(old.metadata.uid, None)
            self._shown_refusals.pop(old.metadata.uid, None)
            self._devices.remove(old)
        if new is not None and new.spec.node_name:
            self._assumed.pop(new.metadata.uid, None)
        if new is not None and not self.is_assumed(new) and not self._context.is_placeholder(new):
            self._devices.update(new)
        self._update_node_of(key, old, new)
        for pod in (old, new):
            if pod is not None:
                self._jobs.remove_pod(pod)
        self._evicting.pop(key, None)
        if new is not None and labels.EVICTION_RECORD in new.metadata.annotations:
            self._evicting[key] = new
        if new is not None and old is None and not new.spec.node_name and not is_preemptible(new):
            self._interactive_waiting = True
        if new is not None and concerns_scheduler(new):
            self._jobs.add_pod(new)
        if not only_checkpoint_changed(old, new):
            self._changed()

    def _update_node_of(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        """Updates the placeholders and the unhealthy devices of the pod's node."""
        for pod in (old, new):
            node = pod.spec.node_name if pod is not None else ""
            if pod is None or not node:
                continue
            if self._context.is_placeholder(pod):
                self._placeholders.get(node, {}).pop(key, None)
            for placeholder in self._placeholders.get(node, ()):
                self._jobs.invalidate(placeholder)
            if self._nodes.has_unhealthy_devices(node) and (seen := self._node_objects.get(node)) is not None:
                self._update_node(seen)
        if new is not None and self._context.is_placeholder(new) and new.spec.node_name:
            self._placeholders.setdefault(new.spec.node_name, {})[key] = None

    def _workload_changed(self, key: Key, old: Workload | None, new: Workload | None) -> None:
        if new is not None and new.status.refusals:
            self._jobs_with_refusals[job_name(*key)] = None
        else:
            self._jobs_with_refusals.pop(job_name(*key), None)
        if old is None or new is None or old.metadata.uid != new.metadata.uid or old.spec != new.spec:
            self._jobs.invalidate(key)
            self._changed()
        elif old.status.interruptions != new.status.interruptions:
            self._jobs.invalidate(key)  # no job can start because of it, so no cycle is needed now

    def _node_changed(self, key: Key, old: NodeObject | None, new: NodeObject | None) -> None:
        if new is not None:
            self._update_node(new)
            return
        self._nodes.remove(key[1])
        self._changed()

    def _update_node(self, node: NodeObject) -> None:
        if self._nodes.update(node, self._devices.in_use(node.metadata.name)):
            self._changed()

    def _context_changed(self, namespace: str) -> None:
        self._jobs.invalidate_all(namespace)
        self._changed()

    def _namespace_changed(self, key: Key, old: Namespace | None, new: Namespace | None) -> None:
        self._jobs.invalidate_all(key[1])
        self._changed()

    def _policy_changed(self, key: Key, old: SchedulingPolicy | None, new: SchedulingPolicy | None) -> None:
        if old is None or new is None or old.spec != new.spec:
            self._queues.invalidate_policies()
            self._changed()

    def _queue_changed(self, key: Key, old: Project | Department | None, new: Project | Department | None) -> None:
        # Its status is written all the time and does not matter here. A new object of the same name may be younger.
        if old is None or new is None or old.metadata.uid != new.metadata.uid or old.spec != new.spec:
            self._queues.invalidate_queues()
            self._jobs.invalidate_all()  # jobs inherit the node types and pools of their project
            self._changed()
