"""`get NAME` and `describe`: one job as text, and why it is pending."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aliquot.api import Pod, Workload, decode
from aliquot.cli.runai.describe_job import description_lines
from support.cli.environment import CliEnvironment

NOW = 1_000_000_000.0


def _cli_job(**more: Any) -> Workload:
    metadata = {"name": "hyper1", "namespace": "runai-team-a", "creationTimestamp": NOW - 65,
                "annotations": {"aliquot.dev/created-by": "cli"}}  # fmt: skip
    return decode(Workload, {"metadata": metadata, **more})


def test_a_running_job() -> None:
    storage = {"pvc": [{"claimName": "test", "path": "/tmp/pvc1mount", "existing": True}],
               "hostPath": [{"path": "/mnt", "mountPath": "/mnt", "readOnly": True}]}  # fmt: skip
    status = {"phase": "Running", "startedAt": NOW - 60, "allocated": {"gpu": 1}, "pods": {"running": 1}}
    job = _cli_job(spec={"compute": {"gpu": 1}, "storage": storage}, status=status)
    pod = {"metadata": {"name": "hyper1-0-0", "creationTimestamp": NOW - 62}, "spec": {"nodeName": "dgx1-1"},
           "status": {"phase": "Running"}}  # fmt: skip
    event = {"involvedObject": {"kind": "Pod", "name": "hyper1-0-0"}, "type": "Normal", "reason": "Scheduled",
             "message": "placed on dgx1-1", "lastTimestamp": "2001-09-09T01:45:40Z"}  # fmt: skip
    text = "\n".join(description_lines(job, [decode(Pod, pod)], [event], {"dgx1-1": "10.0.0.1"}, NOW))
    assert text.splitlines() == [
        "NAME: hyper1",
        "NAMESPACE: runai-team-a",
        "TYPE: Train",
        "STATUS: Running",
        "TRAINING DURATION: 1m",
        "GPUS: 1",
        "TOTAL REQUESTED GPUS: 1",
        "ALLOCATED GPUS: 1",
        "RUNNING PODS: 1",
        "PENDING PODS: 0",
        "PARALLELISM: 1",
        "COMPLETIONS: 1",
        "SUCCEEDED PODS: 0",
        "FAILED PODS: 0",
        "IS DISTRIBUTED WORKLOAD: false",
        "CREATED BY CLI: true",
        "SERVICE URL(S):",
        "",
        "Mounts:",
        "TYPE        SOURCE   PATH             MODE",
        "host path   /mnt     /mnt             ro",
        "claim       test     /tmp/pvc1mount   rw",
        "",
        "Pods:",
        "POD          STATUS    TYPE    AGE   NODE",
        "hyper1-0-0   RUNNING   Train   1m    dgx1-1/10.0.0.1",
        "",
        "Events:",
        "SOURCE           TYPE     AGE   MESSAGE",
        "pod/hyper1-0-0   Normal   1m    [Scheduled] placed on dgx1-1",
    ]


def test_why_a_job_waits() -> None:
    """Each reason is a line."""
    job = _cli_job(spec={"compute": {"gpu": 16}}, status={"phase": "Pending"})
    text = "\n".join(description_lines(job, [], [], {}, NOW, ["needs 16 GPUs; no node has more than 8"]))
    assert "Why it waits:\n  needs 16 GPUs; no node has more than 8\n\nEvents:" in text


REFUSALS = [{"step": "allocate", "code": "enough-gpu", "text": "needs 16 GPUs; no node has more than 8"}] * 2


def _create_pending_job(cli: CliEnvironment) -> None:
    cli.create_project("team-a")
    cli.create("workload", "big", "runai-team-a", spec={"type": "training", "image": "x", "compute": {"gpu": 16}})
    cli.set_status("workload", "big", "runai-team-a", phase="Pending", refusals=REFUSALS)


def test_reasons_from_the_scheduler(cli: CliEnvironment) -> None:
    """The reasons, the position and the remedies come from the scheduler's explanation."""
    _create_pending_job(cli)
    lines = [("state", "big waits."), ("why", "allocate: full."), ("place", "It is number 1."), ("help", "Less would.")]
    cli.driver.explanation = {"lines": [{"about": about, "text": text} for about, text in lines]}
    text = cli.run_runai("describe job big -p team-a")
    assert "Why it waits:\n  allocate: full.\n  It is number 1.\n  Less would.\n" in text
    assert "big waits." not in text


def test_reasons_without_a_scheduler(cli: CliEnvironment) -> None:
    """Without a scheduler the stored refusals are printed, without duplicates."""
    _create_pending_job(cli)
    assert "Why it waits:\n  needs 16 GPUs; no node has more than 8\n\nEvents:" in cli.run_runai(
        "describe job big -p team-a"
    )


def test_interruptions() -> None:
    """Each interruption has a row with reason, the other job and the lost time; restarts and checkpoint are shown."""
    interruptions = [
        {"at": NOW - 600, "reason": "reclaimed", "by": "team-d/d-2", "lostSeconds": 95, "message": "reclaimed by d-2"},
        {"at": NOW - 30, "reason": "preempted", "by": "team-a/x", "message": "preempted by x", "final": True},
    ]
    job = _cli_job(status={"phase": "Running", "restarts": 2, "interruptions": interruptions})
    saved = {"type": "aliquot.dev/saved", "status": "True", "lastTransitionTime": NOW - 7}
    pod = {"metadata": {"name": "hyper1-0-0"}, "status": {"phase": "Running", "conditions": [saved]}}
    lines = "\n".join(description_lines(job, [decode(Pod, pod)], [], {}, NOW)).splitlines()
    assert "RESTARTS: 2" in lines
    assert "LAST CHECKPOINT: 7s ago" in lines
    at = lines.index("Interruptions:")
    assert [line.split() for line in lines[at + 1 : at + 4]] == [
        ["AGE", "REASON", "FOR", "LOST", "MESSAGE"],
        ["10m", "reclaimed", "team-d/d-2", "1m", "reclaimed", "by", "d-2"],
        ["30s", "preempted", "team-a/x", "0s", "preempted", "by", "x", "(it", "ended", "with", "that)"],
    ]


def test_many_pods() -> None:
    """The total counts all pods of a hyperparameter search."""
    spec = {"compute": {"gpu": 1}, "parallelism": 3, "completions": 12}
    lines = list(description_lines(_cli_job(spec=spec, status={"allocated": {"gpu": 3}}), [], [], {}, NOW))
    for line in ("GPUS: 1", "TOTAL REQUESTED GPUS: 12", "ALLOCATED GPUS: 3", "PARALLELISM: 3", "COMPLETIONS: 12"):
        assert line in lines


@pytest.fixture
def team(cli: CliEnvironment) -> CliEnvironment:
    cli.create_project("team-a")
    cli.run_runai("config project team-a")
    cli.run_runai("submit x -i python -g 1")
    return cli


def test_get_is_describe_job(team: CliEnvironment) -> None:
    assert (
        team.run_runai("get x")
        == team.run_runai("describe job x")
        == team.run_runai("describe job x -o wide -p team-a")
    )


def test_as_data(team: CliEnvironment) -> None:
    assert json.loads(team.run_runai("get x -o json"))["metadata"]["name"] == "x"
    assert team.run_runai("describe job x -o yaml").startswith("apiVersion: aliquot.dev/v1\nkind: Workload\n")


@pytest.mark.parametrize("line", ["get nobody", "describe job nobody", "logs nobody", "bash nobody", "exec nobody ls"])
def test_unknown_jobs(team: CliEnvironment, line: str) -> None:
    """The error names the job and the project."""
    result = team.invoke_runai(line)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[0] == "error: job 'nobody' does not exist in project 'team-a'"


@pytest.mark.parametrize("line", ["get", "describe", "describe job", "describe job a b", "describe x"])
def test_which_job(team: CliEnvironment, line: str) -> None:
    assert team.invoke_runai(line).exit_code == 2


def test_events_of_the_job_and_its_pods(team: CliEnvironment) -> None:
    """Events of the job and of its pods are sorted, oldest first."""
    job = team.get("workload", "x", "runai-team-a")["metadata"]
    owner = {"apiVersion": "aliquot.dev/v1", "kind": "Workload", "name": "x", "uid": job["uid"]}
    pod = team.create("pod", "x-0-0", "runai-team-a", metadata={"ownerReferences": [owner]}, spec={"containers": []})
    for number, (kind, uid) in enumerate((("Pod", pod.uid), ("Workload", job["uid"]))):
        about = {"kind": kind, "name": "x", "namespace": "runai-team-a", "uid": uid}
        team.create("event", f"e{number}", "runai-team-a", involvedObject=about, message=f"step {number}",
                 lastTimestamp=f"2026-01-01T00:00:0{number}Z")  # fmt: skip
    out = team.run_runai("get x")
    assert "x-0-0   PENDING   Train" in out
    assert out.index("step 0") < out.index("step 1")


def test_events_of_deleted_pods(team: CliEnvironment) -> None:
    """Events of deleted pods are shown too, with their count."""
    uid = team.get("workload", "x", "runai-team-a")["metadata"]["uid"]
    about = {"kind": "Pod", "name": "x-0-0", "namespace": "runai-team-a", "uid": "of-a-pod-that-is-gone"}
    team.create("event", "e", "runai-team-a", metadata={"labels": {"aliquot.dev/workload-uid": uid}},
             involvedObject=about, reason="Started", message="it began", count=3,
             lastTimestamp="2026-01-01T00:00:00Z")  # fmt: skip
    assert "[Started] it began (x3)" in team.run_runai("describe job x")
    assert "it began (x3)" in team.run("describe", "workload", "x", "-p", "team-a")


def test_a_template(team: CliEnvironment) -> None:
    team.create("namespace", "runai")
    team.create("template", "base", "runai", spec={"values": {"image": "ubuntu"}, "description": "To begin with"})
    expected = "Name: base\nDescription: To begin with\nValues:\n  image: ubuntu\n"
    assert team.run_runai("describe template base") == team.run_runai("template get base") == expected
    assert team.invoke_runai("describe template nobody").exit_code == 1
    assert team.run_runai("template list").splitlines()[1].split() == ["base", "To", "begin", "with"]
