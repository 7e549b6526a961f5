"""The GPU sharing options of a job become annotations of its pod, where the agent reads them."""

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
    """A job that asks for MPS gets it; others use the compute mode of the node."""
    spec = WorkloadSpec(compute=compute)
    pod = build_pod(Workload(metadata=Metadata(name="w", namespace="runai-a", uid="u"), spec=spec), "a")

    assert sharing_options(pod.metadata.annotations).mode is mode


def test_a_job_may_choose_its_compute_mode() -> None:
    """A job sets its compute mode by an annotation."""
    spec = WorkloadSpec(compute=Compute(gpu=500), annotations={labels.GPU_COMPUTE_MODE: "strict"})
    pod = build_pod(Workload(metadata=Metadata(name="w", namespace="runai-a", uid="u"), spec=spec), "a")

    assert sharing_options(pod.metadata.annotations).mode is ComputeMode.STRICT
