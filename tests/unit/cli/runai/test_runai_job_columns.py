"""The column STATUS from the phase and the pods, and the other columns of a job."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.api import Pod, Workload, decode
from aliquot.cli.runai import job_columns


def listed_job(phase: str | None = None, *, deleted: bool = False, spec: Any = None, **status: Any) -> Workload:
    metadata = {"name": "x", "namespace": "n", **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {})}
    merged = {**({"phase": phase} if phase else {}), **status}
    return decode(Workload, {"metadata": metadata, "spec": spec or {}, "status": merged})


def job_pod(phase: str = "", node: str = "", deleted: bool = False, inits: Any = (), **container: Any) -> Pod:
    metadata = {"name": "x-0-0", "namespace": "n", **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {})}
    statuses = [{"name": "main", "state": container}] if container else []
    init = [{"name": f"i{index}", "state": each} for index, each in enumerate(inits)]
    status = {"phase": phase, "containerStatuses": statuses, "initContainerStatuses": init}
    return decode(Pod, {"metadata": metadata, "spec": {"nodeName": node}, "status": status})


def waiting(reason: str) -> dict[str, Any]:
    return {"waiting": {"reason": reason}}


def ended(code: int, reason: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason}}


STATUSES: list[tuple[str, Workload, list[Pod]]] = [
    ("Pending", listed_job(), []),
    ("Pending", listed_job("Creating"), []),
    ("Pending", listed_job("Pending"), [job_pod("Pending")]),
    ("ContainerCreating", listed_job("Initializing"), [job_pod("Pending", "dgx1")]),
    ("ContainerCreating", listed_job("Initializing"), [job_pod("Pending", "dgx1", **waiting("ContainerCreating"))]),
    ("ContainerCreating", listed_job("Initializing"), []),
    ("ErrImagePull", listed_job("Initializing"), [job_pod("Pending", "dgx1", **waiting("ErrImagePull"))]),
    ("ImagePullBackOff", listed_job("Initializing"), [job_pod("Pending", "dgx1", **waiting("ImagePullBackOff"))]),
    ("CrashLoopBackOff", listed_job("Running"), [job_pod("Running", "dgx1", **waiting("CrashLoopBackOff"))]),
    ("Running", listed_job("Running"), [job_pod("Running", "dgx1", running={})]),
    ("Running", listed_job("Running"), []),
    ("Running", listed_job("Degraded"), []),
    ("Error", listed_job("Running"), [job_pod("Failed", "dgx1", **ended(1))]),
    ("Error", listed_job("Pending"), [job_pod("Failed", "dgx1")]),
    ("ContainerCannotRun", listed_job("Pending"), [job_pod("Failed", "dgx1", **ended(127, "ContainerCannotRun"))]),
    ("Unknown", listed_job("Running"), [job_pod("Unknown", "dgx1")]),
    ("Terminating", listed_job("Running"), [job_pod("Running", "dgx1", deleted=True, running={})]),
    ("Terminating", listed_job("Running", deleted=True), []),
    ("Terminating", listed_job("Deleting"), []),
    ("Succeeded", listed_job("Completed"), [job_pod("Succeeded", "dgx1", **ended(0))]),
    ("Failed", listed_job("Failed"), [job_pod("Failed", "dgx1", **ended(1))]),
    ("Failed", listed_job("Failed", reason="BackoffLimitExceeded"), []),
    ("TimedOut", listed_job("Failed", reason="TimedOut"), []),
    ("Preempted", listed_job("Stopped", reason="Preempted"), []),
    ("Suspended", listed_job("Stopped"), []),
    ("Suspended", listed_job("Pending", spec={"active": False}), []),
    ("Terminating", listed_job("Running", spec={"active": False}), [job_pod("Running", "dgx1", running={})]),
    ("Init:0/2", listed_job("Initializing"), [job_pod("Pending", "dgx1", inits=[{"running": {}}, {}])]),
    ("Init:1/2", listed_job("Initializing"), [job_pod("Pending", "dgx1", inits=[ended(0), {"running": {}}])]),
    ("Init:Error", listed_job("Initializing"), [job_pod("Pending", "dgx1", inits=[ended(3)])]),
    ("Init:CrashLoopBackOff", listed_job("Initializing"),
     [job_pod("Pending", "dgx1", inits=[waiting("CrashLoopBackOff")])]),
    ("PodInitializing", listed_job("Initializing"),
     [job_pod("Pending", "d", inits=[ended(0)], **waiting("PodInitializing"))]),
    ("Running", listed_job("Running"), [job_pod("Pending"), job_pod("Running", "dgx1", running={})]),
    ("CrashLoopBackOff", listed_job("Degraded"), [job_pod("Running", "d", running={}),
                                                job_pod("Running", "d", **waiting("CrashLoopBackOff"))]),
]  # fmt: skip


@pytest.mark.parametrize("status, job, pods", STATUSES)
def test_job_status(status: str, job: Workload, pods: list[Pod]) -> None:
    assert job_columns.job_status(job, pods) == status


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
def test_requested_gpus(spec: dict[str, Any], short: str, total: int) -> None:
    """The requested GPUs of all pods together, in the short form."""
    job = listed_job(spec=spec)
    assert (job_columns.short_gpus(job), job_columns.requested_gpu(job)) == (short, total)


@pytest.mark.parametrize(
    "status, allocated, cell",
    [
        ("Running", 0.3, "0.30 (0.30)"),
        ("Failed", 0, "- (0.30)"),
        ("Suspended", 0, "0.00 (0.30)"),
        ("Pending", 0, "0.00 (0.30)"),
    ],
)
def test_gpu_cell(status: str, allocated: float, cell: str) -> None:
    job = listed_job(spec={"compute": {"gpu": 0.3}}, allocated={"gpu": allocated})
    assert job_columns.gpu_cell(job, status) == cell


def test_several_nodes() -> None:
    pods = [job_pod("Running", "dgx1"), job_pod("Running", "dgx2")]
    assert job_columns.node_cell(listed_job("Running"), pods, "Running") == "<multiple>"
    assert job_columns.node_cell(listed_job("Running"), pods[:1], "Running") == "dgx1"
    assert job_columns.node_cell(listed_job("Pending"), [], "Pending") == ""


def test_run_time_of_a_running_job() -> None:
    running = listed_job("Running", runSeconds=10, startedAt="1970-01-01T00:01:40Z")
    assert job_columns.run_seconds(running, 130.0) == 40
    assert job_columns.run_seconds(listed_job("Pending", runSeconds=10, startedAt="1970-01-01T00:01:40Z"), 130.0) == 10
