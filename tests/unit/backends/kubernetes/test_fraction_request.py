"""Which GPU fractions a pod may ask for, and how others are refused."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.backends.kubernetes.fraction_request import FractionRequest, asks_for_fraction, parse_fraction_request
from aliquot.errors import Invalid
from aliquot.gpu.fractions import ComputeMode


def fraction_pod(annotations: dict[str, str], containers: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"metadata": {"annotations": annotations}, "spec": {"containers": containers or [{"name": "main"}]}}


def gpu(amount: str, name: str = "nvidia.com/gpu") -> list[dict[str, Any]]:
    return [{"name": "main", "resources": {"limits": {name: amount}}}]


@pytest.mark.parametrize("name", ["aliquot.dev/gpu-fraction", "gpu-fraction"])
def test_fraction(name: str) -> None:
    """A fraction is read from our annotation and from that of other systems."""
    assert parse_fraction_request(fraction_pod({name: "0.125"})) == FractionRequest(milli=125)


def test_memory_on_several_devices() -> None:
    """An amount of memory is in MiB and applies to each device."""
    assert parse_fraction_request(
        fraction_pod({"gpu-memory": "2000", "gpu-fraction-num-devices": "2"})
    ) == FractionRequest(memory_mib=2000, devices=2)


def test_our_name_wins() -> None:
    """If both annotations are set, ours counts."""
    assert parse_fraction_request(fraction_pod({"gpu-fraction": "0.1", "aliquot.dev/gpu-fraction": "0.2"})).milli == 200


def test_mode() -> None:
    """The compute mode can be chosen."""
    assert (
        parse_fraction_request(fraction_pod({"gpu-fraction": "0.5", "aliquot.dev/gpu-compute": "strict"})).mode
        is ComputeMode.STRICT
    )


def test_other_annotations() -> None:
    """A pod without these annotations does not ask for a fraction."""
    assert not asks_for_fraction({"other": "0.5"})


def test_zero_gpus_with_a_fraction() -> None:
    """An explicit limit of 0 GPUs does not contradict a fraction."""
    assert parse_fraction_request(fraction_pod({"gpu-fraction": "0.5"}, gpu("0"))).milli == 500


@pytest.mark.parametrize(
    "requested, message",
    [
        (fraction_pod({"gpu-fraction": "half"}), "['gpu-fraction']: must be a number such as 4 or 0.5, not 'half'"),
        (fraction_pod({"gpu-fraction": "0.3333"}), "['gpu-fraction']: must have at most three decimals, not '0.3333'"),
        (fraction_pod({"gpu-fraction": "0"}), "must be more than 0 and less than 1, not '0'"),
        (fraction_pod({"gpu-fraction": "1"}), "for whole GPUs set the limit nvidia.com/gpu"),
        (fraction_pod({"gpu-fraction": "-0.5"}), "must not be negative"),
        (fraction_pod({"gpu-memory": "4G"}), "['gpu-memory']: must be a whole number of MiB such as 4096, not '4G'"),
        (fraction_pod({"gpu-memory": "0"}), "must be a whole number of MiB"),
        (fraction_pod({"gpu-memory": "٤"}), "must be a whole number of MiB"),
        (
            fraction_pod({"gpu-fraction": "0.5", "gpu-memory": "10"}),
            "only one of a fraction and an amount of GPU memory",
        ),
        (
            fraction_pod({"gpu-fraction": "0.5", "aliquot.dev/gpu-devices": "17"}),
            "must be a number of GPUs from 1 to 16",
        ),
        (fraction_pod({"gpu-fraction": "0.5", "aliquot.dev/gpu-compute": "mps"}), "mps is not supported on Kubernetes"),
        (
            fraction_pod({"gpu-fraction": "0.5", "aliquot.dev/gpu-compute": "x"}),
            "one of timesharing, fair, strict, not 'x'",
        ),
        (
            fraction_pod({"gpu-fraction": "0.5", "aliquot.dev/gpu-fraction-limit": "0.4"}),
            "not be less than the fraction",
        ),
        (fraction_pod({"gpu-memory": "50", "aliquot.dev/gpu-memory-limit": "40"}), "not be less than the amount"),
        (
            fraction_pod({"gpu-fraction": "0.5"}, gpu("1")),
            "spec.containers[0].resources: must not ask for nvidia.com/gpu",
        ),
        (fraction_pod({"gpu-fraction": "0.5"}, gpu("1", "nvidia.com/mig-1g.5gb")), "nvidia.com/mig-1g.5gb"),
        ({**fraction_pod({"gpu-fraction": "0.5"}), "spec": {"nodeName": "n1"}}, "spec.nodeName: must be empty"),
    ],
)
def test_refused(requested: dict[str, Any], message: str) -> None:
    """An invalid request is refused in one line with its path and what to write instead."""
    with pytest.raises(Invalid) as refused:
        parse_fraction_request(requested)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_all_faults_at_once() -> None:
    """Several faults are reported together."""
    with pytest.raises(Invalid) as refused:
        parse_fraction_request(fraction_pod({"gpu-fraction": "x", "aliquot.dev/gpu-compute": "y"}, gpu("1")))
    assert len(refused.value.faults) == 3
