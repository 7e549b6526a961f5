"""What a job says about its part of a GPU is in its pod's annotations, where the agent reads it."""

from __future__ import annotations

import pytest

from aliquot import labels
from aliquot.api import Metadata, Workload
from aliquot.api.compute import Compute
from aliquot.api.workload import WorkloadSpec
from aliquot.gpu.fractions import ComputeMode, sharing_options
from aliquot.podspec.builder import build_pod


@pytest.mark.parametrize(
    ("compute", "mode"),
    [
        (Compute(gpu=500), None),
        (Compute(gpu=500, mps=True), ComputeMode.MPS),
        (Compute(gpu_memory=1 << 30, mps=True), ComputeMode.MPS),
        (Compute(gpu=500, mps=False), None),
    ],
)
def test_a_job_that_asks_for_mps(compute: Compute, mode: ComputeMode | None) -> None:
    """The agent is told; who does not ask for it shares time as the node does."""
    spec = WorkloadSpec(compute=compute)
    pod = build_pod(Workload(metadata=Metadata(name="w", namespace="runai-a", uid="u"), spec=spec), "a")

    assert sharing_options(pod.metadata.annotations).mode is mode


def test_a_job_may_choose_how_time_is_shared() -> None:
    """By an annotation of its own."""
    spec = WorkloadSpec(compute=Compute(gpu=500), annotations={labels.GPU_COMPUTE_MODE: "strict"})
    pod = build_pod(Workload(metadata=Metadata(name="w", namespace="runai-a", uid="u"), spec=spec), "a")

    assert sharing_options(pod.metadata.annotations).mode is ComputeMode.STRICT
