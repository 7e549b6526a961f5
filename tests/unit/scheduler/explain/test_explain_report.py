"""The report on a job, from the last plan and the workload's history."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aliquot.api import Workload, decode
from aliquot.planner.queues.queue_position import queue_positions
from aliquot.planner.reasons.what_if import what_would_help
from aliquot.scheduler.explain.report import WhatIfResult, explain_workload
from aliquot.scheduler.last_decision import Decision
from support.planner import TaskState, World, cluster, gpus, quota

LATER = 30.0  # seconds from the plan to the request


def pending_job(name: str = "j", project: str = "a", active: bool = True, **status: Any) -> Workload:
    metadata = {"name": name, "namespace": f"runai-{project}", "creationTimestamp": "1970-01-01T00:10:00Z"}
    spec = {"type": "training", "image": "x", "active": active}
    return decode(Workload, {"metadata": metadata, "spec": spec, "status": {"phase": "Pending", **status}})


def explain(world: World, workload: Workload, visible: str = "runai-", what_if: bool = False) -> Any:
    """`visible`: the prefix of namespaces that the reader may see."""
    planned = world.plan()
    decision = Decision(world.snapshot(), world.policy, {}, world.now, planned)
    name = f"{workload.metadata.namespace}/{workload.metadata.name}"
    position = queue_positions(decision.snapshot, decision.policy, decision.now, planned).get(name)
    changes = tuple(what_would_help(decision.snapshot, decision.policy, decision.now, name)) if what_if else ()
    return explain_workload(
        decision, workload, world.now + LATER, lambda namespace: namespace.startswith(visible), position,
        WhatIfResult(changes, 3) if what_if else None,
    )  # fmt: skip


def lines(answer: Any, about: str = "") -> list[str]:
    return [line["text"] for line in answer["lines"] if about in ("", line["about"])]


def full(**more: Any) -> World:
    """A GPU that another project's job has, and a job of project a that waits for it."""
    world = cluster([gpus(1)], {"a": quota(1), "b": quota(1)})
    world.running("runai-b/x", "n1", [0], "b", preemptible=False, started=900.0)
    return world.pending("runai-a/j", gpu=1, created=600.0, **more)


def test_a_waiting_job() -> None:
    """Since when it waits, the reason of each step, its queue position, and what would help."""
    answer = explain(full(), pending_job(queuedAt="1970-01-01T00:16:20Z"), what_if=True)
    assert (answer["state"], answer["project"], answer["since"]) == ("waiting", "a", "1970-01-01T00:16:20Z")
    assert lines(answer) == [
        "j of project a waits, for 50 seconds so far.",
        "allocate: no node has room for 1 GPU now: 1 node with no GPU free.",
        "consolidate: moving other workloads would not help: 0 GPUs free in total.",
        "reclaim: no other project holds more than it may keep, and 0 GPUs free: not enough for 1 GPU.",
        "preempt: project a runs nothing preemptible of lower priority.",
        "It is number 1 of 1 that wait in project a.",
        "If b/x ended it would run.",
    ]
    first = answer["refusals"][0]
    assert (first["step"], first["code"], first["missing"]) == ("allocate", "enough-gpu", {"gpu": 1})
    assert answer["place"] == {"inProject": 1, "ofProject": 1, "inPool": 1, "ofPool": 1, "pool": "default"}


def test_hidden_jobs_are_not_named() -> None:
    """A reader who may not see another project's jobs does not learn their names."""
    answer = explain(full(), pending_job(), visible="runai-a", what_if=True)
    assert "If a job of another project ended it would run." in lines(answer, "help")
    assert "/x" not in str(answer)


def test_time_since_the_plan() -> None:
    """Remaining times are counted from the request, not from the plan."""
    world = cluster([gpus(1)], {"a": quota(1), "b": quota(0)})
    world.running("runai-b/x", "n1", [0], "b").pending("runai-a/j", gpu=1, created=world.now, preemption_delay=90)
    text = lines(explain(world, pending_job(), what_if=True))
    delay = "in the first 90 seconds after its submission it may not stop or move other workloads (60 seconds left)."
    assert f"consolidate: {delay}" in text
    assert "In 60 seconds it can run without any change." in text


def test_waiting_does_not_help() -> None:
    """The report on a job that fits no node says so, and has no queue position."""
    world = cluster([gpus(1)], {"a": quota(2)}).pending("runai-a/j", gpu=2)
    answer = explain(world, pending_job())
    assert lines(answer, "why")[-1] == "Waiting will not help: the job, or the cluster, has to change."
    assert "place" not in answer


def test_nothing_helps() -> None:
    """The report says that no trial would help."""
    world = cluster([gpus(1)], {"a": quota(1)}).pending("runai-a/j", gpu=1, pod_affinity=None, selector={"x": "y"})
    world.nodes = []
    assert lines(explain(world, pending_job(), what_if=True), "help") == [
        "Nothing that was tried would let it run now."
    ]


def test_nominated() -> None:
    """Where it will start, which job must leave first, and until when."""
    world = cluster([gpus(2)], {"a": quota(1), "b": quota(1)})
    world.running("runai-b/x", "n1", [0], "b", state=TaskState.RELEASING).pending("runai-a/j", gpu=2)
    (leaving,) = world.jobs[0].tasks
    world.jobs[0] = replace(world.jobs[0], tasks=(replace(leaving, releasing_since=world.now + 75),))
    answer = explain(world, pending_job())
    assert answer["state"] == "promised"
    assert lines(answer, "promise") == ["It starts on n1, GPUs 0, 1 when b/x has left, in 45 seconds at the latest."]
    assert answer["promise"]["leaving"] == [{"workload": "b/x", "until": "1970-01-01T00:17:55Z"}]


def test_running_within_quota() -> None:
    """Only its own project can preempt it."""
    world = cluster([gpus(2)], {"a": quota(1)}).running("runai-a/j", "n1", [1])
    answer = explain(world, pending_job(phase="Running", startedAt="1970-01-01T00:16:40Z"))
    assert (answer["state"], answer["overQuota"]) == ("running", False)
    assert lines(answer) == [
        "j runs on n1, GPU 1, for 30 seconds.",
        "Its project is within its quota: only more important work of project a can stop it.",
    ]
    assert answer["pods"] == [{"name": "runai-a/j-0-0", "node": "n1", "devices": [{"index": 1, "gpu": 1}]}]


def test_running_over_quota() -> None:
    """The report on a job of a project over quota says that it can be reclaimed, and what protects it."""
    world = cluster([gpus(4)], {"a": quota(1, reclaim_min_runtime=100.0)})
    world.running("runai-a/i", "n1", [0, 1], gpu=2).running("runai-a/j", "n1", [2], gpu=0.5, started=world.now - 10)
    answer = explain(world, pending_job(phase="Running"))
    assert answer["overQuota"] is True
    assert lines(answer) == [
        "j runs on n1, 0.5 of GPU 2.",
        "Project a holds 2.5 GPUs, 1.5 GPUs more than its quota: this job can be stopped when others ask for what"
        " they are due.",
        "Its minimum run time protects it for another 60 seconds.",
    ]


def test_restart_limit() -> None:
    """The report on a job that reached the restart limit says how long it is protected."""
    world = cluster([gpus(4)], {"a": quota(1)})
    world.running("runai-a/j", "n1", [0, 1], gpu=2, stops=(100.0, world.now - 570))
    world.policy = replace(world.policy, restarts_per_hour=1)
    answer = explain(world, pending_job(phase="Running"))
    often = "It was stopped as often in the last hour as the scheduling policy allows"
    assert lines(answer, "risk")[1:] == [f"{often}: it is left alone for another 50 minutes."]
    assert answer["leftAloneUntil"] == "1970-01-01T01:07:10Z"
    world.policy = replace(world.policy, restarts_per_hour=0)
    rest = lines(explain(world, pending_job(phase="Running")), "risk")[1:]
    assert rest == ["Its scheduling policy does not allow to stop jobs for others."]


def test_department_over_quota() -> None:
    """A project within its quota can be reclaimed from when its department is over quota."""
    world = cluster([gpus(2)], {"department/d": quota(1), "a": quota(2, parent="department/d")})
    world.running("runai-a/j", "n1", [0, 1], gpu=2)
    assert lines(explain(world, pending_job(phase="Running")), "risk")[0].startswith(
        "Department d holds 2 GPUs, 1 GPU more than its quota"
    )


def test_nonpreemptible() -> None:
    """The report on a job that cannot be preempted says so."""
    world = cluster([gpus(1)], {"a": quota(1)}).running("runai-a/j", "n1", [0], preemptible=False)
    assert lines(explain(world, pending_job(phase="Running")), "risk") == ["It is not stopped for others."]


def test_stopping() -> None:
    """Which job it is stopped for, from the plan that evicts it."""
    world = cluster([gpus(1)], {"a": quota(0), "b": quota(1)})
    world.running("runai-a/j", "n1", [0]).pending("runai-b/x", "b", gpu=1)
    answer = explain(world, pending_job(phase="Running"))
    assert (answer["state"], lines(answer)) == ("stopping", ["j is being stopped: reclaimed by b/x."])


def test_starting() -> None:
    """A job that the plan binds."""
    world = cluster([gpus(1)], {"a": quota(1)}).pending("runai-a/j", gpu=1)
    assert lines(explain(world, pending_job())) == ["j starts on n1, GPU 0."]


def test_history() -> None:
    """The number of interruptions, and the last one in full."""
    stop = {"at": "1970-01-01T00:16:10Z", "reason": "reclaimed", "by": "b/x", "message": "reclaimed by b/x"}
    stops = [{**stop, "lostSeconds": 300}]
    answer = explain(full(), pending_job(interruptions=stops, interruptionCount=3))
    assert lines(answer, "history") == [
        "It was stopped 3 times, last 60 seconds ago: reclaimed by b/x; 5 minutes of its work were lost."
    ]
    assert answer["interruptions"] == [{**stop, "lostSeconds": 300}]


@pytest.mark.parametrize(
    ("workload", "state", "text"),
    [
        (
            pending_job("k", phase="Completed", finishedAt="1970-01-01T00:17:00Z"),
            "ended",
            "k has completed 10 seconds ago.",
        ),
        (pending_job("k", phase="Failed", message="exit status 3"), "ended", "k has failed: exit status 3"),
        (pending_job("k", active=False), "suspended", "k is suspended: `runai resume k` lets it run again."),
        (pending_job("k"), "unseen", "The scheduler has not looked at k yet: ask again in a moment."),
    ],
)
def test_not_in_the_plan(workload: Workload, state: str, text: str) -> None:
    """Jobs that the scheduler does not handle, or not yet."""
    answer = explain(full(), workload)
    assert (answer["state"], lines(answer)) == (state, [text])
