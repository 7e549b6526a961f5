"""The classic status words, from the stored phase and the state of the pods."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.api import Pod, Workload, decode
from aliquot.cli.runai import job_columns


def workload(phase: str | None = None, *, deleted: bool = False, spec: Any = None, **status: Any) -> Workload:
    metadata = {"name": "x", "namespace": "n", **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {})}
    merged = {**({"phase": phase} if phase else {}), **status}
    return decode(Workload, {"metadata": metadata, "spec": spec or {}, "status": merged})


def pod(phase: str = "", node: str = "", deleted: bool = False, inits: Any = (), **container: Any) -> Pod:
    metadata = {"name": "x-0-0", "namespace": "n", **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {})}
    statuses = [{"name": "main", "state": container}] if container else []
    init = [{"name": f"i{index}", "state": each} for index, each in enumerate(inits)]
    status = {"phase": phase, "containerStatuses": statuses, "initContainerStatuses": init}
    return decode(Pod, {"metadata": metadata, "spec": {"nodeName": node}, "status": status})


def waiting(reason: str) -> dict[str, Any]:
    return {"waiting": {"reason": reason}}


def ended(code: int, reason: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason}}


WORDS: list[tuple[str, Workload, list[Pod]]] = [
    ("Pending", workload(), []),
    ("Pending", workload("Creating"), []),
    ("Pending", workload("Pending"), [pod("Pending")]),
    ("ContainerCreating", workload("Initializing"), [pod("Pending", "dgx1")]),
    ("ContainerCreating", workload("Initializing"), [pod("Pending", "dgx1", **waiting("ContainerCreating"))]),
    ("ContainerCreating", workload("Initializing"), []),
    ("ErrImagePull", workload("Initializing"), [pod("Pending", "dgx1", **waiting("ErrImagePull"))]),
    ("ImagePullBackOff", workload("Initializing"), [pod("Pending", "dgx1", **waiting("ImagePullBackOff"))]),
    ("CrashLoopBackOff", workload("Running"), [pod("Running", "dgx1", **waiting("CrashLoopBackOff"))]),
    ("Running", workload("Running"), [pod("Running", "dgx1", running={})]),
    ("Running", workload("Running"), []),
    ("Running", workload("Degraded"), []),
    ("Error", workload("Running"), [pod("Failed", "dgx1", **ended(1))]),
    ("Error", workload("Pending"), [pod("Failed", "dgx1")]),
    ("ContainerCannotRun", workload("Pending"), [pod("Failed", "dgx1", **ended(127, "ContainerCannotRun"))]),
    ("Unknown", workload("Running"), [pod("Unknown", "dgx1")]),
    ("Terminating", workload("Running"), [pod("Running", "dgx1", deleted=True, running={})]),
    ("Terminating", workload("Running", deleted=True), []),
    ("Terminating", workload("Deleting"), []),
    ("Succeeded", workload("Completed"), [pod("Succeeded", "dgx1", **ended(0))]),
    ("Failed", workload("Failed"), [pod("Failed", "dgx1", **ended(1))]),
    ("Failed", workload("Failed", reason="BackoffLimitExceeded"), []),
    ("TimedOut", workload("Failed", reason="TimedOut"), []),
    ("Preempted", workload("Stopped", reason="Preempted"), []),
    ("Suspended", workload("Stopped"), []),
    ("Suspended", workload("Pending", spec={"active": False}), []),
    ("Terminating", workload("Running", spec={"active": False}), [pod("Running", "dgx1", running={})]),
    ("Init:0/2", workload("Initializing"), [pod("Pending", "dgx1", inits=[{"running": {}}, {}])]),
    ("Init:1/2", workload("Initializing"), [pod("Pending", "dgx1", inits=[ended(0), {"running": {}}])]),
    ("Init:Error", workload("Initializing"), [pod("Pending", "dgx1", inits=[ended(3)])]),
    ("Init:CrashLoopBackOff", workload("Initializing"), [pod("Pending", "dgx1", inits=[waiting("CrashLoopBackOff")])]),
    ("PodInitializing", workload("Initializing"),
     [pod("Pending", "d", inits=[ended(0)], **waiting("PodInitializing"))]),
    ("Running", workload("Running"), [pod("Pending"), pod("Running", "dgx1", running={})]),
    ("CrashLoopBackOff", workload("Degraded"), [pod("Running", "d", running={}),
                                                pod("Running", "d", **waiting("CrashLoopBackOff"))]),
]  # fmt: skip


@pytest.mark.parametrize("word, job, pods", WORDS)
def test_status_word(word: str, job: Workload, pods: list[Pod]) -> None:
    assert job_columns.job_status(job, pods) == word


@pytest.mark.parametrize(
    "spec, short, total",
    [
        ({"compute": {"gpu": 1}}, "1", 1000),
        ({"compute": {"gpu": 0.2}}, "0.2", 200),
        ({}, "0", 0),
        ({"compute": {"gpu": 0.5, "gpuDevices": 2}}, "1", 1000),
        ({"compute": {"gpu": 1}, "completions": 12, "parallelism": 3}, "12", 12000),
        ({"compute": {"gpu": 2}, "distributed": {"framework": "mpi", "workers": 4}}, "8", 8000),
        ({"type": "inference", "compute": {"gpu": 0.5}, "serving": {"replicas": 3}}, "1.5", 1500),
        ({"compute": {"gpuMemory": "4G"}}, "4G", 0),
        ({"compute": {"migProfile": "1g.5gb"}}, "1g.5gb", 0),
    ],
)
def test_gpus_asked_for(spec: dict[str, Any], short: str, total: int) -> None:
    """In all pods together, as short as it can be said."""
    job = workload(spec=spec)
    assert (job_columns.short_gpus(job), job_columns.requested_gpu(job)) == (short, total)


@pytest.mark.parametrize(
    "word, allocated, cell",
    [
        ("Running", 0.3, "0.30 (0.30)"),
        ("Failed", 0, "- (0.30)"),
        ("Suspended", 0, "0.00 (0.30)"),
        ("Pending", 0, "0.00 (0.30)"),
    ],
)
def test_gpu_cell(word: str, allocated: float, cell: str) -> None:
    job = workload(spec={"compute": {"gpu": 0.3}}, allocated={"gpu": allocated})
    assert job_columns.gpu_cell(job, word) == cell


def test_several_nodes() -> None:
    pods = [pod("Running", "dgx1"), pod("Running", "dgx2")]
    assert job_columns.node_cell(workload("Running"), pods, "Running") == "<multiple>"
    assert job_columns.node_cell(workload("Running"), pods[:1], "Running") == "dgx1"
    assert job_columns.node_cell(workload("Pending"), [], "Pending") == ""


def test_run_time_goes_on_while_it_runs() -> None:
    running = workload("Running", runSeconds=10, startedAt="1970-01-01T00:01:40Z")
    assert job_columns.run_seconds(running, 130.0) == 40
    assert job_columns.run_seconds(workload("Pending", runSeconds=10, startedAt="1970-01-01T00:01:40Z"), 130.0) == 10
