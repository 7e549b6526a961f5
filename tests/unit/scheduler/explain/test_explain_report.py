"""How a job stands, in sentences: from the last plan, and from what the workload's history says."""

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

LATER = 30.0  # that somebody asks after the plan was made


def job(name: str = "j", project: str = "a", active: bool = True, **status: Any) -> Workload:
    metadata = {"name": name, "namespace": f"runai-{project}", "creationTimestamp": "1970-01-01T00:10:00Z"}
    spec = {"type": "training", "image": "x", "active": active}
    return decode(Workload, {"metadata": metadata, "spec": spec, "status": {"phase": "Pending", **status}})


def told(world: World, workload: Workload, sees: str = "runai-", tried: bool = False) -> Any:
    decided = world.plan()
    decision = Decision(world.snapshot(), world.policy, {}, world.now, decided)
    name = f"{workload.metadata.namespace}/{workload.metadata.name}"
    turn = queue_positions(decision.snapshot, decision.policy, decision.now, decided).get(name)
    claims = tuple(what_would_help(decision.snapshot, decision.policy, decision.now, name)) if tried else ()
    return explain_workload(
        decision, workload, world.now + LATER, lambda space: space.startswith(sees), turn,
        WhatIfResult(claims, 3) if tried else None,
    )  # fmt: skip


def lines(answer: Any, about: str = "") -> list[str]:
    return [queue_positions["text"] for queue_positions in answer["lines"] if about in ("", queue_positions["about"])]


def full(**more: Any) -> World:
    """A GPU that another project's job has, and a job of project a that waits for it."""
    world = cluster([gpus(1)], {"a": quota(1), "b": quota(1)})
    world.running("runai-b/x", "n1", [0], "b", preemptible=False, started=900.0)
    return world.pending("runai-a/j", gpu=1, created=600.0, **more)


def test_a_waiting_job() -> None:
    """Since when, each step's reason, its place, and what would help."""
    answer = told(full(), job(queuedAt="1970-01-01T00:16:20Z"), tried=True)
    assert (answer["state"], answer["project"], answer["since"]) == ("waiting", "a", "1970-01-01T00:16:20Z")
    assert lines(answer) == [
        "j of project a waits, for 50 seconds so far.",
        "allocate: 1 GPU fits on no node now: 1 node with no GPU free.",
        "consolidate: moving others would not help: 0 GPUs free in all.",
        "reclaim: no other project holds more than it is due, and 0 GPUs are free: 1 GPU cannot be taken back.",
        "preempt: project a runs nothing of lower priority that could make way.",
        "It is number 1 of 1 that wait in project a.",
        "If b/x ended it would run.",
    ]
    first = answer["refusals"][0]
    assert (first["step"], first["code"], first["missing"]) == ("allocate", "enough-gpu", {"gpu": 1})
    assert answer["place"] == {"inProject": 1, "ofProject": 1, "inPool": 1, "ofPool": 1, "pool": "default"}


def test_jobs_of_others_are_not_named() -> None:
    """Who may not see another project's jobs does not learn their names."""
    answer = told(full(), job(), sees="runai-a", tried=True)
    assert "If a job of another project ended it would run." in lines(answer, "help")
    assert "/x" not in str(answer)


def test_time_goes_on() -> None:
    """What ends by itself is counted from the moment of the question, not of the plan."""
    world = cluster([gpus(1)], {"a": quota(1), "b": quota(0)})
    world.running("runai-b/x", "n1", [0], "b").pending("runai-a/j", gpu=1, created=world.now, preemption_delay=90)
    said = lines(told(world, job(), tried=True))
    delay = "for 90 seconds after its submission it makes nobody stop or move (60 seconds left)."
    assert f"consolidate: {delay}" in said
    assert "In 60 seconds it can run without any change." in said


def test_waiting_is_no_use() -> None:
    """A job that fits nowhere is told so, and has no place."""
    world = cluster([gpus(1)], {"a": quota(2)}).pending("runai-a/j", gpu=2)
    answer = told(world, job())
    assert lines(answer, "why")[-1] == "Waiting will not help: the job, or the cluster, has to change."
    assert "place" not in answer


def test_nothing_helps() -> None:
    """That nothing was found is said too."""
    world = cluster([gpus(1)], {"a": quota(1)}).pending("runai-a/j", gpu=1, pod_affinity=None, selector={"x": "y"})
    world.nodes = []
    assert lines(told(world, job(), tried=True), "help") == ["Nothing that was tried would let it run now."]


def test_a_promise() -> None:
    """Where it will start, whom it waits for, and until when."""
    world = cluster([gpus(2)], {"a": quota(1), "b": quota(1)})
    world.running("runai-b/x", "n1", [0], "b", state=TaskState.RELEASING).pending("runai-a/j", gpu=2)
    (gone,) = world.jobs[0].tasks
    world.jobs[0] = replace(world.jobs[0], tasks=(replace(gone, releasing_since=world.now + 75),))
    answer = told(world, job())
    assert answer["state"] == "promised"
    assert lines(answer, "promise") == ["It starts on n1, GPUs 0, 1 when b/x has left, in 45 seconds at the latest."]
    assert answer["promise"]["leaving"] == [{"workload": "b/x", "until": "1970-01-01T00:17:55Z"}]


def test_running_within_quota() -> None:
    """Only its own project can stop it."""
    world = cluster([gpus(2)], {"a": quota(1)}).running("runai-a/j", "n1", [1])
    answer = told(world, job(phase="Running", startedAt="1970-01-01T00:16:40Z"))
    assert (answer["state"], answer["overQuota"]) == ("running", False)
    assert lines(answer) == [
        "j runs on n1, GPU 1, for 30 seconds.",
        "Its project is within its quota: only more important work of project a can stop it.",
    ]
    assert answer["pods"] == [{"name": "runai-a/j-0-0", "node": "n1", "devices": [{"index": 1, "gpu": 1}]}]


def test_running_over_quota() -> None:
    """Who borrows is told that it may have to give back, and what protects it."""
    world = cluster([gpus(4)], {"a": quota(1, reclaim_min_runtime=100.0)})
    world.running("runai-a/i", "n1", [0, 1], gpu=2).running("runai-a/j", "n1", [2], gpu=0.5, started=world.now - 10)
    answer = told(world, job(phase="Running"))
    assert answer["overQuota"] is True
    assert lines(answer) == [
        "j runs on n1, 0.5 of GPU 2.",
        "Project a holds 2.5 GPUs, 1.5 GPUs more than its quota: this job can be stopped when others ask for what"
        " they are due.",
        "Its minimum run time protects it for another 60 seconds.",
    ]


def test_stopped_often() -> None:
    """Who was stopped as often as the policy allows is told that it is left alone, and how long."""
    world = cluster([gpus(4)], {"a": quota(1)})
    world.running("runai-a/j", "n1", [0, 1], gpu=2, stops=(100.0, world.now - 570))
    world.policy = replace(world.policy, restarts_per_hour=1)
    answer = told(world, job(phase="Running"))
    often = "It was stopped as often in the last hour as the scheduling policy allows"
    assert lines(answer, "risk")[1:] == [f"{often}: it is left alone for another 50 minutes."]
    assert answer["leftAloneUntil"] == "1970-01-01T01:07:10Z"
    world.policy = replace(world.policy, restarts_per_hour=0)
    rest = lines(told(world, job(phase="Running")), "risk")[1:]
    assert rest == ["Its scheduling policy does not allow to stop jobs for others."]


def test_a_department_that_borrows() -> None:
    """A project within its quota gives back where its department has more than its own."""
    world = cluster([gpus(2)], {"department/d": quota(1), "a": quota(2, parent="department/d")})
    world.running("runai-a/j", "n1", [0, 1], gpu=2)
    assert lines(told(world, job(phase="Running")), "risk")[0].startswith(
        "Department d holds 2 GPUs, 1 GPU more than its quota"
    )


def test_never_stopped() -> None:
    """Work that cannot be preempted is said to be safe."""
    world = cluster([gpus(1)], {"a": quota(1)}).running("runai-a/j", "n1", [0], preemptible=False)
    assert lines(told(world, job(phase="Running")), "risk") == ["It is not stopped for others."]


def test_being_stopped() -> None:
    """For whom, by the plan that does it."""
    world = cluster([gpus(1)], {"a": quota(0), "b": quota(1)})
    world.running("runai-a/j", "n1", [0]).pending("runai-b/x", "b", gpu=1)
    answer = told(world, job(phase="Running"))
    assert (answer["state"], lines(answer)) == ("stopping", ["j is being stopped: reclaimed by b/x."])


def test_starting() -> None:
    """A job that has just got its place."""
    world = cluster([gpus(1)], {"a": quota(1)}).pending("runai-a/j", gpu=1)
    assert lines(told(world, job())) == ["j starts on n1, GPU 0."]


def test_its_history() -> None:
    """How often it was stopped, and the last time in full."""
    stop = {"at": "1970-01-01T00:16:10Z", "reason": "reclaimed", "by": "b/x", "message": "reclaimed by b/x"}
    stops = [{**stop, "lostSeconds": 300}]
    answer = told(full(), job(interruptions=stops, interruptionCount=3))
    assert lines(answer, "history") == [
        "It was stopped 3 times, last 60 seconds ago: reclaimed by b/x; 5 minutes of its work were lost."
    ]
    assert answer["interruptions"] == [{**stop, "lostSeconds": 300}]


@pytest.mark.parametrize(
    ("workload", "state", "text"),
    [
        (job("k", phase="Completed", finishedAt="1970-01-01T00:17:00Z"), "ended", "k has completed 10 seconds ago."),
        (job("k", phase="Failed", message="exit status 3"), "ended", "k has failed: exit status 3"),
        (job("k", active=False), "suspended", "k is suspended: `runai resume k` lets it run again."),
        (job("k"), "unseen", "The scheduler has not looked at k yet: ask again in a moment."),
    ],
)
def test_not_in_the_plan(workload: Workload, state: str, text: str) -> None:
    """Jobs that the scheduler does not look at, or not yet."""
    answer = told(full(), workload)
    assert (answer["state"], lines(answer)) == (state, [text])
