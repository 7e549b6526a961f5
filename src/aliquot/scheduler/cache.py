"""The planner's input, kept up to date from informer events.

An event rebuilds only what it concerns: a job when one of its pods or its workload changes, a node when it changes, the
queues when a project or department changes. A snapshot puts these parts together.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from aliquot import labels
from aliquot.api import Department, Namespace, NodePool, Pod, Project, SchedulingPolicy, Workload
from aliquot.api import Node as NodeObject
from aliquot.api import Refusal as ApiRefusal
from aliquot.planner import DeviceShare, Job, Policy, Snapshot, TaskState
from aliquot.podspec.requests import is_preemptible
from aliquot.scheduler.device_accounting import DeviceAccounting
from aliquot.scheduler.node_cache import NodeCache
from aliquot.scheduler.pending_move import PendingMove
from aliquot.scheduler.pod_groups import group_of, project_of
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
        self._groups: dict[Key, dict[str, Pod]] = {}
        self._jobs: dict[Key, Job] = {}
        self._stale: dict[Key, None] = {}  # jobs to rebuild
        self._changed_jobs: dict[str, Job | None] = {}
        self._nominated: dict[Key, Job] = {}  # jobs with a nominated task
        self._jobs_with_refusals: dict[str, None] = {}  # jobs whose workload's status shows refusals
        self._shown_refusals: dict[str, tuple[ApiRefusal, ...]] = {}  # by the uid of a waiting pod
        self._interactive_waiting = False
        self._evicting: dict[Key, Pod] = {}  # pods with an eviction record
        self._moves: dict[Key, PendingMove] = {}
        self._nonpreemptible_until: dict[Key, float] = {}
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
        self._expire(now)
        for key in self._stale:
            before = self._jobs.get(key)
            self._rebuild(key)
            after = self._jobs.get(key)
            if after != before:
                self._changed_jobs[job_name(*key)] = after
        self._stale = {}
        return Snapshot(self._nodes.nodes(), self._queues.queues(now), tuple(self._jobs.values()), _NO_TOPOLOGY)

    def take_changed_jobs(self) -> dict[str, Job | None]:
        """The jobs that differ between the last snapshot and the last call; None for a job that is gone."""
        changed, self._changed_jobs = self._changed_jobs, {}
        return changed

    def policies(self) -> tuple[Policy, Mapping[str, Policy]]:
        """The default policy, and the policies of pools that have their own."""
        return self._queues.policies()

    @property
    def valid_until(self) -> float | None:
        """When the snapshot changes without any event; None when it never does."""
        times = [*self._nonpreemptible_until.values()]
        if self._queues.valid_until is not None:
            times.append(self._queues.valid_until)
        return min(times, default=None)

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
        pods = self._groups.get((namespace, group), {}).values()
        return [pod for pod in pods if not pod.spec.node_name and not self.is_assumed(pod)]

    def nominated_tasks(self) -> list[tuple[str, str]]:
        """The waiting tasks that have a nomination, as job and task."""
        return [
            (job.name, task.name)
            for job in self._nominated.values()
            for task in job.tasks
            if task.state is TaskState.NOMINATED
        ]

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
        self._stale[_group_key(pod)] = None

    def forget(self, pod: Pod) -> None:
        if self._assumed.pop(pod.metadata.uid, None) is not None:
            self._devices.forget(pod.metadata.uid)
            self._stale[_group_key(pod)] = None

    def forget_all(self) -> None:
        """For a new leader: another one may have decided meanwhile, and pending writes may not have arrived."""
        for uid in self._assumed:
            self._devices.forget(uid)
        self._assumed.clear()
        self._moves.clear()
        self._stale |= dict.fromkeys(self._groups)

    def is_assumed(self, pod: Pod) -> bool:
        return pod.metadata.uid in self._assumed

    def assumed_placement(self, pod: Pod) -> tuple[str, tuple[DeviceShare, ...]] | None:
        return self._assumed.get(pod.metadata.uid)

    def set_nonpreemptible_until(self, pod: Pod, until: float) -> None:
        """Keeps the pod's job from being evicted for a while, because the cluster forbids it."""
        key = _group_key(pod)
        self._nonpreemptible_until[key] = until
        self._stale[key] = None

    def add_pending_move(self, pod: Pod, node: str, shares: tuple[DeviceShare, ...], until: float) -> None:
        """Holds the new place of a pod that is evicted in order to move its workload there."""
        key = _group_key(pod)
        self._moves[key] = PendingMove(node, shares, until)
        self._stale[key] = None

    # ---------------------------------------------------------------- building jobs

    def _expire(self, now: float) -> None:
        for key in [key for key, move in self._moves.items() if now >= move.until]:
            del self._moves[key]
            self._stale[key] = None
        for key in [key for key, until in self._nonpreemptible_until.items() if now >= until]:
            del self._nonpreemptible_until[key]
            self._stale[key] = None

    def _rebuild(self, key: Key) -> None:
        self._nominated.pop(key, None)
        job = self._current_job(key)
        if not self._groups.get(key):
            self._groups.pop(key, None)
        if job is None:
            self._jobs.pop(key, None)
            return
        self._jobs[key] = job
        if any(task.state is TaskState.NOMINATED for task in job.tasks):
            self._nominated[key] = job

    def _current_job(self, key: Key) -> Job | None:
        pods = self._groups.get(key)
        if pods and self._is_placeholder_in_use(pods):
            pods = None  # the pods that share the device hold it
        move = self._moves.get(key)
        job = self._build_job(key, pods) if pods else self._jobs.get(key)
        if move is None or job is None:
            return job if pods else None
        moved = move.applied_to(job, bool(pods)) if self._workloads.get(key[1], key[0]) is not None else None
        if moved is not None:
            return moved
        del self._moves[key]
        return job if pods else None

    def _build_job(self, key: Key, pods: Mapping[str, Pod]) -> Job:
        members = list(pods.values())
        namespace = self._namespaces.get(key[0])
        project = self._projects.get(project_of(members, namespace.metadata.labels if namespace else {}))
        workload = self._workloads.get(key[1], key[0])
        job = job_of(key, members, namespace, project, workload, self._placements, self._context)
        if any(map(self._context.is_placeholder, members)):
            return replace(job, tasks=tuple(replace(task, state=TaskState.RELEASING) for task in job.tasks))
        return replace(job, preemptible=False) if key in self._nonpreemptible_until else job

    def _is_placeholder_in_use(self, pods: Mapping[str, Pod]) -> bool:
        """Whether pods share the device of a placeholder. One without such pods is deleted soon, which frees its
        device."""
        return any(
            self._context.held_device(pod) in self._devices.in_use(pod.spec.node_name)
            for pod in pods.values()
            if self._context.is_placeholder(pod)
        )

    # ---------------------------------------------------------------- events

    def _pod_changed(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        """A binding that the informer shows is no longer assumed."""
        if new is not None and same_for_scheduling(old, new):
            if key[1] in (members := self._groups.get(_group_key(new), {})):
                members[key[1]] = new  # the next write is tied to its version
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
                group = _group_key(pod)
                self._groups.get(group, {}).pop(key[1], None)
                self._stale[group] = None
        self._evicting.pop(key, None)
        if new is not None and labels.EVICTION_RECORD in new.metadata.annotations:
            self._evicting[key] = new
        if new is not None and old is None and not new.spec.node_name and not is_preemptible(new):
            self._interactive_waiting = True
        if new is not None and concerns_scheduler(new):
            self._groups.setdefault(_group_key(new), {})[key[1]] = new
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
            if self._placeholders.get(node):
                self._stale |= dict.fromkeys(self._placeholders[node])
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
            self._stale[key] = None
            self._changed()
        elif old.status.interruptions != new.status.interruptions:
            self._stale[key] = None  # no job can start because of it, so no cycle is needed now

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
        self._invalidate(group for group in self._groups if namespace in ("", group[0]))

    def _namespace_changed(self, key: Key, old: Namespace | None, new: Namespace | None) -> None:
        self._invalidate(group for group in self._groups if group[0] == key[1])

    def _policy_changed(self, key: Key, old: SchedulingPolicy | None, new: SchedulingPolicy | None) -> None:
        if old is None or new is None or old.spec != new.spec:
            self._queues.invalidate_policies()
            self._changed()

    def _queue_changed(self, key: Key, old: Project | Department | None, new: Project | Department | None) -> None:
        # Its status is written all the time and does not matter here. A new object of the same name may be younger.
        if old is None or new is None or old.metadata.uid != new.metadata.uid or old.spec != new.spec:
            self._queues.invalidate_queues()
            self._invalidate(self._groups)  # jobs inherit the node types and pools of their project

    def _invalidate(self, groups: Iterable[Key]) -> None:
        self._stale |= dict.fromkeys(groups)
        self._changed()


def _group_key(pod: Pod) -> Key:
    return pod.metadata.namespace, group_of(pod)
