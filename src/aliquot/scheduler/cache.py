"""The scheduler's picture of the store, kept up to date event by event.

What an event is about is made anew, the rest stays: a job is rebuilt when one of its pods or its workload changed, a
node when it changed, the queues when a project or department changed. A cycle then only puts the parts together.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from aliquot import labels
from aliquot.api import Department, Namespace, NodePool, Pod, Project, SchedulingPolicy, Workload
from aliquot.api import Node as NodeObject
from aliquot.api import Refusal as ShownRefusal
from aliquot.api.organisation import DEFAULT_POOL
from aliquot.api.pools import PastUse
from aliquot.planner import DeviceShare, Job, Node, Policy, Queue, Snapshot, Task, TaskState
from aliquot.podspec.requests import is_preemptible
from aliquot.scheduler.device_accounting import DeviceAccounting, is_reservation, reserved_device
from aliquot.scheduler.pod_groups import group_of, project_of
from aliquot.scheduler.policy import StopPolicy, policies_of, stop_policy_of
from aliquot.scheduler.scheduling_context import SchedulingContext
from aliquot.scheduler.snapshot import (
    concerns_scheduler,
    job_name,
    job_of,
    node_of,
    only_checkpoint_changed,
    queues_of,
    same_for_scheduling,
)
from aliquot.scheduler.usage_history import past_usage, refresh_seconds, usage_rule, with_past_usage
from aliquot.store.informer import Informer, Informers, Key

_NO_TOPOLOGY: Mapping[str, tuple[str, ...]] = {}


@dataclass(frozen=True, slots=True)
class PendingMove:
    """Where a workload goes on whose pod is being stopped. Kept in memory alone: after a crash it waits like others."""

    node: str
    shares: tuple[DeviceShare, ...]
    until: float

    def carried(self, job: Job, has_pods: bool) -> Job | None:
        """The job with a promise of the place: to its new pod, or to one that is still to come. None: it is over."""
        states = [task.state for task in job.tasks]
        if not has_pods:
            return replace(job, tasks=(self._promise(job.tasks[0]),), min_available=1)
        if TaskState.PENDING in states:
            tasks = (
                replace(task, state=TaskState.NOMINATED, node=self.node, shares=self.shares)
                if task.state is TaskState.PENDING
                else task
                for task in job.tasks
            )
            return replace(job, tasks=tuple(tasks))
        if set(states) == {TaskState.RELEASING}:
            return replace(job, tasks=(*job.tasks, self._promise(job.tasks[0])), min_available=1)
        return None

    def _promise(self, task: Task) -> Task:
        """For a pod that does not exist yet, so its name is nobody's."""
        name = task.name.rstrip("'") + "'"
        return replace(
            task, name=name, state=TaskState.NOMINATED, node=self.node, shares=self.shares, releasing_since=None
        )


class SchedulerCache:
    def __init__(
        self, informers: Informers, changed: Callable[[], None], around: SchedulingContext | None = None
    ) -> None:
        self._changed = changed
        self._around = around or SchedulingContext()
        self.pods: Informer[Pod] = informers.of(Pod)
        self.workloads: Informer[Workload] = informers.of(Workload)
        self._projects: Informer[Project] = informers.of(Project)
        self._departments: Informer[Department] = informers.of(Department)
        self._namespaces: Informer[Namespace] = informers.of(Namespace)
        self._policies: Informer[SchedulingPolicy] = informers.of(SchedulingPolicy)
        self._node_objects: Informer[NodeObject] = informers.of(NodeObject)
        self._pools: Informer[NodePool] = informers.of(NodePool)
        self._groups: dict[Key, dict[str, Pod]] = {}
        self._jobs: dict[Key, Job] = {}
        self._stale: dict[Key, None] = {}  # jobs to make anew
        self._nodes: dict[str, Node] = {}
        self._all_nodes: tuple[Node, ...] | None = None
        self._differing: dict[str, Job | None] = {}
        self._queues: tuple[Queue, ...] | None = None
        self._queues_until: float | None = None  # when past use is to be looked at again
        self._policy: tuple[Policy, Mapping[str, Policy]] | None = None
        self._past: PastUse | None = None
        self._promised: dict[Key, Job] = {}  # jobs with a promise
        self.told: dict[str, None] = {}  # jobs whose status says why they wait
        self.says: dict[str, tuple[ShownRefusal, ...]] = {}  # waiting pods without a workload, and what they were told
        self.hasty = False  # whether a pod came lately that somebody waits for in front of a screen
        self.evicted: dict[Key, Pod] = {}  # pods with a notice
        self._moves: dict[Key, PendingMove] = {}  # workloads on their way to another place
        self._shielded: dict[Key, float] = {}  # jobs that must not be stopped, and until when
        # What was decided a moment ago and the store's picture may not show yet: pod uid -> (node, shares).
        self.assumed: dict[str, tuple[str, tuple[DeviceShare, ...]]] = {}
        self._places = DeviceAccounting()
        self._known = ChainMap(self.assumed, self._places.counted)  # where pods are that do not say it themselves
        self._reserved: dict[str, dict[Key, None]] = {}  # node -> reservation pods there
        self._limping: set[str] = set()  # nodes of which some devices are not well
        self._around.watch_pods(self.pods)
        self._around.listen(self._around_changed)
        self.pods.listen(self._pod_changed)
        self.workloads.listen(self._workload_changed)
        self._node_objects.listen(self._node_changed)
        self._namespaces.listen(self._namespace_changed)
        self._policies.listen(self._policy_changed)
        self._projects.listen(self._queue_changed)
        self._departments.listen(self._queue_changed)

    async def wait_synced(self) -> None:
        for informer in self._informers:
            await informer.synced.wait()
        await self._around.wait_synced()

    @property
    def is_synced(self) -> bool:
        return all(informer.synced.is_set() for informer in self._informers)

    @property
    def _informers(self) -> tuple[Informer[Any], ...]:
        return (
            self.pods, self.workloads, self._projects, self._departments, self._namespaces, self._policies,
            self._node_objects, self._pools,
        )  # fmt: skip

    def snapshot(self, now: float) -> Snapshot:
        """Parts that did not change are the very objects of the last snapshot."""
        for key in [key for key, move in self._moves.items() if now >= move.until]:
            del self._moves[key]
            self._stale[key] = None
        for key in [key for key, until in self._shielded.items() if now >= until]:
            del self._shielded[key]
            self._stale[key] = None
        for key in self._stale:
            before = self._jobs.get(key)
            self._make(key)
            made = self._jobs.get(key)
            if made != before:
                self._differing[job_name(*key)] = made
        self._stale = {}
        if self._queues is None or (self._queues_until is not None and now >= self._queues_until):
            self._queues = self._make_queues(now)
        if self._all_nodes is None:
            self._all_nodes = tuple(self._nodes.values())
        return Snapshot(self._all_nodes, self._queues, tuple(self._jobs.values()), _NO_TOPOLOGY)

    def changes(self) -> dict[str, Job | None]:
        """Jobs that are other in the last snapshot than when this was last asked; None for those that are gone."""
        found, self._differing = self._differing, {}
        return found

    def promised(self) -> list[tuple[str, str]]:
        """Waiting pods that have a promise, as job and pod."""
        return [
            (job.name, task.name)
            for job in self._promised.values()
            for task in job.tasks
            if task.state is TaskState.NOMINATED
        ]

    def waiting(self, namespace: str, group: str) -> list[Pod]:
        """Pods of a job that have no node yet."""
        pods = self._groups.get((namespace, group), {}).values()
        return [pod for pod in pods if not pod.spec.node_name and pod.metadata.uid not in self.assumed]

    def policy(self) -> tuple[Policy, Mapping[str, Policy]]:
        if self._policy is None:
            self._policy = policies_of(self._policies)
            self._past = usage_rule(self._policies)
        return self._policy

    def farewell(self, pod: Pod) -> StopPolicy:
        """How a pod is stopped for others, by the policy of its node pool."""
        node = self._nodes.get(pod.spec.node_name)
        return stop_policy_of(node.pool if node is not None else DEFAULT_POOL, self._policies)

    @property
    def until(self) -> float | None:
        """When time alone will have changed it; None: never."""
        moments = [*self._shielded.values(), *([] if self._queues_until is None else [self._queues_until])]
        return min(moments, default=None)

    def _make_queues(self, now: float) -> tuple[Queue, ...]:
        self.policy()
        queues = queues_of(self._projects, self._departments)
        self._queues_until = None
        if self._past is not None:
            self._queues_until = now + refresh_seconds(self._past)
            queues = with_past_usage(queues, past_usage(self._projects, self._pools, self._past, now))
        return tuple(queues)

    def assume(self, pod: Pod, node: str, shares: tuple[DeviceShare, ...]) -> None:
        self.assumed[pod.metadata.uid] = (node, shares)
        self._places.assumed(pod.metadata.uid, node, shares)
        self._stale[pod.metadata.namespace, group_of(pod)] = None

    def forget(self, pod: Pod) -> None:
        if self.assumed.pop(pod.metadata.uid, None) is not None:
            self._places.forgotten(pod.metadata.uid)
            self._stale[pod.metadata.namespace, group_of(pod)] = None

    def forget_all(self) -> None:
        """Somebody else may have decided meanwhile, and what was under way may not have arrived."""
        for uid in self.assumed:
            self._places.forgotten(uid)
        self.assumed.clear()
        self._moves.clear()
        self._stale |= dict.fromkeys(self._groups)

    def shield(self, pod: Pod, until: float) -> None:
        """Its job is not stopped for a while: a rule that is not ours forbids it."""
        key = (pod.metadata.namespace, group_of(pod))
        self._shielded[key] = until
        self._stale[key] = None

    def move(self, pod: Pod, node: str, shares: tuple[DeviceShare, ...], until: float) -> None:
        """A pod that is stopped goes on in another place: nobody else may have it meanwhile."""
        key = (pod.metadata.namespace, group_of(pod))
        self._moves[key] = PendingMove(node, shares, until)
        self._stale[key] = None

    def _make(self, key: Key) -> None:
        pods = self._groups.get(key)
        self._promised.pop(key, None)
        if key[0] == labels.RESERVATION_NAMESPACE and not self._is_idle(key):
            pods = None  # those who share the device hold it
        made = self._job(key, pods) if pods else self._jobs.get(key)
        move = self._moves.get(key)
        if move is not None and made is not None:
            made = move.carried(made, bool(pods)) if self.workloads.get(key[1], key[0]) is not None else None
            if made is None:
                del self._moves[key]
                made = self._job(key, pods) if pods else None
        elif not pods:
            made = None
        if not self._groups.get(key):
            self._groups.pop(key, None)
        if made is None:
            self._jobs.pop(key, None)
            return
        self._jobs[key] = made
        if any(task.state is TaskState.NOMINATED for task in made.tasks):
            self._promised[key] = made

    def _job(self, key: Key, pods: Mapping[str, Pod]) -> Job:
        namespace = self._namespaces.get(key[0])
        marks = namespace.metadata.labels if namespace else {}
        project = self._projects.get(project_of(list(pods.values()), marks))
        workload = self.workloads.get(key[1], key[0])
        made = job_of(key, list(pods.values()), namespace, project, workload, self._known, self._around)
        if key[0] == labels.RESERVATION_NAMESPACE:
            return replace(made, tasks=tuple(replace(task, state=TaskState.RELEASING) for task in made.tasks))
        return replace(made, preemptible=False) if key in self._shielded else made

    def _is_idle(self, key: Key) -> bool:
        """Whether a reservation pod holds a device that nobody shares: it goes soon, and with it what it holds."""
        pod = self.pods.get(key[1], key[0])
        device = None if pod is None else reserved_device(pod)
        return pod is None or device not in self._places.used(pod.spec.node_name)

    # ---------------------------------------------------------------- events

    def _pod_changed(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        """What the picture says itself need not be assumed any longer."""
        if new is not None and same_for_scheduling(old, new):
            if key[1] in (members := self._groups.get((key[0], group_of(new)), {})):
                members[key[1]] = new  # the next write is tied to its version
            if key in self.evicted:
                self.evicted[key] = new
            return
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self.assumed.pop(old.metadata.uid, None)
            self.says.pop(old.metadata.uid, None)
            self._places.left(old)
        if new is not None and new.spec.node_name:
            self.assumed.pop(new.metadata.uid, None)
        if new is not None and new.metadata.uid not in self.assumed:
            self._places.seen(new)
        self._look_at_node(key, old, new)
        for pod in (old, new):
            if pod is not None:
                group = (key[0], group_of(pod))
                self._groups.get(group, {}).pop(key[1], None)
                self._stale[group] = None
        self.evicted.pop(key, None)
        if new is not None and labels.EVICTION_RECORD in new.metadata.annotations:
            self.evicted[key] = new
        if new is not None and old is None and not new.spec.node_name and not is_preemptible(new):
            self.hasty = True
        if new is not None and concerns_scheduler(new):
            self._groups.setdefault((key[0], group_of(new)), {})[key[1]] = new
        if not only_checkpoint_changed(old, new):
            self._changed()

    def _look_at_node(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        """What a pod's coming and going means for the reservations and the devices of its node."""
        for pod in (old, new):
            node = pod.spec.node_name if pod is not None else ""
            if pod is None or not node:
                continue
            if is_reservation(pod):
                self._reserved.get(node, {}).pop(key, None)
            if self._reserved.get(node):
                self._stale |= dict.fromkeys(self._reserved[node])
            if node in self._limping and (seen := self._node_objects.get(node)) is not None:
                self._set_node(seen)
        if new is not None and is_reservation(new) and new.spec.node_name:
            self._reserved.setdefault(new.spec.node_name, {})[key] = None

    def _workload_changed(self, key: Key, old: Workload | None, new: Workload | None) -> None:
        if new is not None and new.status.refusals:
            self.told[job_name(*key)] = None
        else:
            self.told.pop(job_name(*key), None)
        if old is None or new is None or old.metadata.uid != new.metadata.uid or old.spec != new.spec:
            self._stale[key] = None
            self._changed()
        elif old.status.interruptions != new.status.interruptions:
            self._stale[key] = None  # lets nobody start: there is no need to look at once

    def _node_changed(self, key: Key, old: NodeObject | None, new: NodeObject | None) -> None:
        if new is not None:
            self._set_node(new)
            return
        self._nodes.pop(key[1], None)
        self._limping.discard(key[1])
        self._all_nodes = None
        self._changed()

    def _set_node(self, seen: NodeObject) -> None:
        made = node_of(seen)
        if labels.DEVICES not in seen.metadata.annotations:
            made = _spared(made, self._places.used(made.name))
        name = made.name
        (self._limping.discard if all(one.healthy for one in made.devices) else self._limping.add)(name)
        if self._nodes.get(name) == made:
            return  # a heartbeat, say
        self._nodes[name] = made
        self._all_nodes = None
        self._changed()

    def _around_changed(self, namespace: str) -> None:
        self._restart(group for group in self._groups if namespace in ("", group[0]))

    def _namespace_changed(self, key: Key, old: Namespace | None, new: Namespace | None) -> None:
        self._restart(group for group in self._groups if group[0] == key[1])

    def _policy_changed(self, key: Key, old: SchedulingPolicy | None, new: SchedulingPolicy | None) -> None:
        if old is None or new is None or old.spec != new.spec:
            self._policy = None
            self._queues = None  # past use may count now, or no longer
            self._changed()

    def _queue_changed(self, key: Key, old: Project | Department | None, new: Project | Department | None) -> None:
        # What it holds now is written to its status all the time, and changes nothing here. Another one of its name may
        # be younger.
        if old is None or new is None or old.metadata.uid != new.metadata.uid or old.spec != new.spec:
            self._queues = None
            self._restart(self._groups)  # node types and pools of a project are those of its jobs

    def _restart(self, groups: Iterable[Key]) -> None:
        self._stale |= dict.fromkeys(groups)
        self._changed()


def _spared(node: Node, used: Mapping[int, int]) -> Node:
    """A device plugin says how many devices are not well, not which. They are among those that nobody uses, if there
    are as many: a free device that is not there would be given out again and again."""
    ill = sum(not device.healthy for device in node.devices)
    if not ill:
        return node
    order = sorted(node.devices, key=lambda device: (device.index in used, -device.index))
    chosen = {device.index for device in order[:ill]}
    return replace(node, devices=tuple(replace(one, healthy=one.index not in chosen) for one in node.devices))
