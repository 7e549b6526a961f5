"""What the workload controller does with a workload's pod, and the status it derives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aliquot.api import Owner, Pod, Workload
from aliquot.api.pod import ContainerState, ContainerStatus, Terminated, Waiting
from aliquot.api.workload import PodCounts, WorkloadStatus
from aliquot.controllers.workloads import Decision, decide
from support.objects import pod, workload

NOW = 1000.0


def owned_pod(phase: str = "", *, node: str = "", uid: str = "p1", owner: str = "u", **status: Any) -> Pod:
    """The pod of the workload with the uid `owner`. A failed one ended with exit status 1."""
    reference = Owner(api_version="aliquot.dev/v1", kind="Workload", name="w", uid=owner)
    state = ContainerState(terminated=Terminated(exit_code=1)) if phase == "Failed" else ContainerState()
    containers = (ContainerStatus(name="main", ready=phase == "Running", state=state),)
    return pod(phase=phase, node=node, uid=uid, owner=reference, container_statuses=containers, **status)


def after(before: Workload, observed: Pod | None, now: float = NOW) -> Decision:
    return decide(before, observed, "a", now)


def test_new_workload_gets_a_pod() -> None:
    """A workload without a pod gets one and is pending."""
    decision = after(workload(), None)
    assert decision.create is not None
    assert decision.create.metadata.name == "w-0-0"
    assert decision.status.phase == "Pending"


def test_waiting_for_a_node() -> None:
    """A pod without a node is pending."""
    assert after(workload(), owned_pod("Pending")).status.phase == "Pending"


def test_being_prepared() -> None:
    """A pod with a node that does not run yet is initializing."""
    status = after(workload(), owned_pod("Pending", node="n1")).status
    assert (status.phase, status.reason, status.nodes) == ("Initializing", "ContainerCreating", ("n1",))


def test_running() -> None:
    """A workload runs when its pod runs, and its run time starts."""
    status = after(workload(), owned_pod("Running", node="n1")).status
    assert (status.phase, status.started_at, status.pods.running) == ("Running", NOW, 1)


def test_completed() -> None:
    """A pod that succeeded completes the workload, for good."""
    status = after(workload(), owned_pod("Succeeded", node="n1")).status
    assert (status.phase, status.finished_at) == ("Completed", NOW)
    assert after(workload(status=status), None) == Decision(replace(status, observed_generation=1))


def test_run_time_adds_up() -> None:
    """Run times add up over all starts."""
    running = WorkloadStatus(phase="Running", started_at=900.0, run_seconds=50.0)
    assert after(workload(status=running), owned_pod("Succeeded", node="n1")).status.run_seconds == 150.0


def test_failures_are_kept_through_an_eviction() -> None:
    """A job that is evicted after a failure has no more attempts than before."""
    first = after(workload(backoff_limit=1), owned_pod("Failed", node="n1")).status
    again = after(workload(status=first, backoff_limit=1), owned_pod("Running", node="n1", uid="p2"), NOW + 9).status
    evicted = owned_pod("Running", node="n1", uid="p2")
    evicted = replace(evicted, metadata=replace(evicted.metadata, deleted=NOW + 10))
    stopped = after(workload(status=again, backoff_limit=1), evicted, NOW + 10).status
    assert (stopped.phase, stopped.pods.failed) == ("Pending", 1)
    third = after(workload(status=stopped, backoff_limit=1), None, NOW + 11)
    assert third.create is not None
    ended = after(
        workload(status=third.status, backoff_limit=1), owned_pod("Failed", node="n1", uid="p3"), NOW + 12
    ).status
    assert (ended.phase, ended.pods.failed) == ("Failed", 2)


def test_a_failed_pod_is_replaced() -> None:
    """A failure is counted first, then the pod is deleted, and after a delay a new one is created."""
    first = after(workload(), owned_pod("Failed", node="n1"))
    assert (first.delete, first.status.pods.failed, first.status.phase) == (True, 1, "Pending")
    waiting = after(workload(status=first.status), None, NOW + 0.5)
    assert (waiting.create, waiting.requeue_after) == (None, 0.5)
    assert after(workload(status=first.status), None, NOW + 1.5).create is not None


def test_failure_counts_once() -> None:
    """A failure that was counted before a restart is not counted again."""
    first = after(workload(), owned_pod("Failed", node="n1"))
    again = after(workload(status=first.status), owned_pod("Failed", node="n1"))
    assert (again.status.pods.failed, again.delete) == (1, True)


def test_backoff_limit() -> None:
    """After the last attempt the workload has failed, and its pod stays so that its log can be read."""
    tried = WorkloadStatus(phase="Running", pods=PodCounts(failed=2))
    decision = after(workload(status=tried, backoff_limit=2), owned_pod("Failed", node="n1", uid="p3"))
    assert (decision.status.phase, decision.delete) == ("Failed", False)


def test_permanent_failures_are_not_retried() -> None:
    """A command that does not exist fails the workload at the first attempt."""
    decision = after(
        workload(), owned_pod("Failed", node="n1", reason="ContainerCannotRun", message="command not found: x")
    )
    assert decision.status.phase == "Failed"
    assert "command not found" in decision.status.message


def test_backoff_doubles() -> None:
    """The delay doubles with each failure, up to a minute."""
    for failed, delay in ((1, 1.0), (2, 2.0), (5, 16.0), (20, 60.0)):
        status = WorkloadStatus(phase="Pending", pods=PodCounts(failed=failed), finished_at=NOW)
        assert after(workload(status=status, backoff_limit=100), None, NOW).requeue_after == delay


def test_suspended() -> None:
    """The pod of a workload that is not active is deleted, and the workload is stopped."""
    decision = after(workload(active=False), owned_pod("Running", node="n1"))
    assert (decision.delete, decision.status.phase, decision.status.allocated.gpu) == (True, "Stopped", None)


def test_resumed() -> None:
    """A workload that is active again gets a pod again."""
    stopped = WorkloadStatus(phase="Stopped")
    assert after(workload(status=stopped), None).create is not None


def test_pod_of_an_earlier_workload() -> None:
    """A new workload waits for the pod of a deleted workload with the same name, and never adopts it."""
    decision = after(workload(), owned_pod("Running", node="n1", owner="other"))
    assert (decision.create, decision.delete) == (None, False)
    assert "still terminating" in decision.status.message


def test_terminating_pod() -> None:
    """A workload whose pod terminates is pending."""
    terminating = owned_pod("Running", node="n1")
    terminating = replace(terminating, metadata=replace(terminating.metadata, deleted=NOW))
    assert after(workload(), terminating).status.phase == "Pending"


def test_crash_loop_is_shown() -> None:
    """Why a container waits is in the status."""
    crashing = owned_pod("Running", node="n1")
    waiting = ContainerState(waiting=Waiting(reason="CrashLoopBackOff", message="back-off 10s"))
    containers = (ContainerStatus(name="main", state=waiting),)
    crashing = replace(crashing, status=replace(crashing.status, container_statuses=containers))
    status = after(workload(type="interactive"), crashing).status
    assert (status.reason, status.message) == ("CrashLoopBackOff", "back-off 10s")


@pytest.mark.parametrize(
    "observed", [None, owned_pod("Pending"), owned_pod("Running", node="n1"), owned_pod("Failed", node="n1")]
)
def test_level_triggered(observed: Pod | None) -> None:
    """Deciding again from the same pod gives the same status."""
    once = after(workload(), observed).status
    assert after(workload(status=once), observed).status == once
