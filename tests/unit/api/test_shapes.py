"""How single fields are read and written."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from aliquot.api import (
    DEFAULT_POOL,
    Lease,
    Metadata,
    Project,
    Quota,
    Terms,
    Weights,
    Workload,
    from_json,
    terms_in_pool,
    to_json,
)
from aliquot.api.field_types import EMPTY_MAP
from aliquot.api.lease import LeaseSpec


def project(**spec: Any) -> Any:
    return from_json(
        {"apiVersion": "aliquot.dev/v1", "kind": "Project", "metadata": {"name": "a"}, "spec": spec}, strict=True
    )


def test_written_form_names_its_kind_first() -> None:
    """A written object begins with apiVersion and kind, and leaves out what was not said."""
    assert list(to_json(Project(metadata=Metadata(name="a"))).items()) == [
        ("apiVersion", "aliquot.dev/v1"),
        ("kind", "Project"),
        ("metadata", {"name": "a"}),
    ]


def test_inside_are_integers_in_base_units() -> None:
    """Half a GPU is 500 thousandths, 4Gi are bytes, and both are written as they were read."""
    made = project(quota={"gpu": 2.5, "cpu": "500m", "memory": "4Gi"})

    assert made.spec.quota == Quota(gpu=2500, cpu=500, memory=4 << 30)
    assert to_json(made)["spec"] == {"quota": {"gpu": 2.5, "cpu": 0.5, "memory": "4Gi"}}


def test_absent_quota_is_no_gpu_and_unlimited_rest() -> None:
    """A project without a quota is guaranteed no GPU, and has no bound on cores and memory."""
    assert project().spec.quota == Quota(gpu=0, cpu=None, memory=None)


def test_one_number_sets_all_weights() -> None:
    """A single over-quota weight holds for GPUs, cores and memory."""
    assert project(overQuotaWeight=2).spec.over_quota_weight == Weights(gpu=2000, cpu=2000, memory=2000)


def test_bare_quota_is_the_one_of_the_default_pool() -> None:
    """The quota beside pools holds in pool default, the others in theirs, and in an unnamed pool there is none."""
    made = project(quota={"gpu": 4}, overQuota=False, pools={"h100": {"quota": {"gpu": 2}}})

    assert terms_in_pool(made.spec) == Terms(quota=Quota(gpu=4000), over_quota=False)
    assert terms_in_pool(made.spec, DEFAULT_POOL).quota.gpu == 4000
    assert terms_in_pool(made.spec, "h100") == Terms(quota=Quota(gpu=2000))
    assert terms_in_pool(made.spec, "a100") == Terms()


@pytest.mark.parametrize(("written", "seconds"), [("90s", 90), ("5m", 300), (0, 0), (-1, -1), ("never", -1)])
def test_grace_may_be_for_ever(written: object, seconds: int) -> None:
    """How long a group may run short of members is a duration, or for ever."""
    data = {
        "apiVersion": "aliquot.dev/v1",
        "kind": "SchedulingPolicy",
        "metadata": {"name": "p"},
        "spec": {"staleGangGrace": written},
    }

    assert from_json(data, strict=True).spec.stale_gang_grace == seconds


@pytest.mark.parametrize(("written", "kept"), [(4, 4), (0.5, "0.5"), ("512Mi", "512Mi"), (-1, -1)])
def test_bounds_of_a_policy_are_numbers_or_amounts(written: object, kept: object) -> None:
    """A policy's least and greatest values may be numbers or amounts of memory."""
    rules = {"compute.gpu": {"max": written}}
    data = {"apiVersion": "aliquot.dev/v1", "kind": "Policy", "metadata": {"name": "p"}, "spec": {"rules": rules}}

    assert from_json(data, strict=True).spec.rules["compute.gpu"].max == kept


def test_type_is_always_written() -> None:
    """A workload's type can be selected by, so it is written even when nobody chose it."""
    assert to_json(Workload(metadata=Metadata(name="a")))["spec"] == {"type": "training"}


def test_lease_times_have_microseconds() -> None:
    """Kubernetes reads a lease's times only with six decimals."""
    lease = Lease(metadata=Metadata(name="leader"), spec=LeaseSpec(holder_identity="a", renew_time=5.0))

    assert to_json(lease)["spec"]["renewTime"] == "1970-01-01T00:00:05.000000Z"


def test_names_with_capitals_are_kubernetes_own() -> None:
    """Kubernetes' odd capitals (podIP, hostIPC) are read and written as it has them."""
    spec, status = {"hostIPC": True}, {"podIP": "10.0.0.1", "containerStatuses": [{"name": "m", "imageID": "i"}]}
    pod = from_json({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec, "status": status})

    assert pod.spec.host_ipc
    assert pod.status.pod_ip == "10.0.0.1"
    assert to_json(pod)["spec"] == spec
    assert to_json(pod)["status"] == status


def test_absent_parts_are_shared() -> None:
    """Objects that say nothing share one empty part, so that ten thousand of them stay small."""
    first, second = (
        from_json({"apiVersion": "aliquot.dev/v1", "kind": "Project", "metadata": {"name": n}}) for n in "ab"
    )

    assert first.spec is second.spec
    assert first.metadata.labels is second.metadata.labels


def test_shared_emptiness_cannot_be_filled() -> None:
    """The empty mapping that all objects share refuses to be changed, and stays one when copied to another process."""
    with pytest.raises(TypeError, match="make a new mapping"):
        EMPTY_MAP["a"] = 1
    assert pickle.loads(pickle.dumps(EMPTY_MAP)) is EMPTY_MAP
