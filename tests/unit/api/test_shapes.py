"""Encoding and decoding of single fields."""

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


def project_from_json(**spec: Any) -> Any:
    return from_json(
        {"apiVersion": "aliquot.dev/v1", "kind": "Project", "metadata": {"name": "a"}, "spec": spec}, strict=True
    )


def test_written_form_names_its_kind_first() -> None:
    """An encoded object begins with apiVersion and kind, and has no fields with default values."""
    assert list(to_json(Project(metadata=Metadata(name="a"))).items()) == [
        ("apiVersion", "aliquot.dev/v1"),
        ("kind", "Project"),
        ("metadata", {"name": "a"}),
    ]


def test_inside_are_integers_in_base_units() -> None:
    """Quantities are integers in base units in Python, and are written as they were read."""
    obj = project_from_json(quota={"gpu": 2.5, "cpu": "500m", "memory": "4Gi"})

    assert obj.spec.quota == Quota(gpu=2500, cpu=500, memory=4 << 30)
    assert to_json(obj)["spec"] == {"quota": {"gpu": 2.5, "cpu": 0.5, "memory": "4Gi"}}


def test_absent_quota_is_no_gpu_and_unlimited_rest() -> None:
    """A project without a quota has no guaranteed GPUs, and unlimited cores and memory."""
    assert project_from_json().spec.quota == Quota(gpu=0, cpu=None, memory=None)


def test_one_number_sets_all_weights() -> None:
    """A single over-quota weight applies to GPUs, cores and memory."""
    assert project_from_json(overQuotaWeight=2).spec.over_quota_weight == Weights(gpu=2000, cpu=2000, memory=2000)


def test_bare_quota_is_the_one_of_the_default_pool() -> None:
    """The top-level quota is that of pool default, `pools` has the others, and any other pool has no quota."""
    obj = project_from_json(quota={"gpu": 4}, overQuota=False, pools={"h100": {"quota": {"gpu": 2}}})

    assert terms_in_pool(obj.spec) == Terms(quota=Quota(gpu=4000), over_quota=False)
    assert terms_in_pool(obj.spec, DEFAULT_POOL).quota.gpu == 4000
    assert terms_in_pool(obj.spec, "h100") == Terms(quota=Quota(gpu=2000))
    assert terms_in_pool(obj.spec, "a100") == Terms()


@pytest.mark.parametrize(("written", "seconds"), [("90s", 90), ("5m", 300), (0, 0), (-1, -1), ("never", -1)])
def test_stale_gang_grace_may_be_forever(written: object, seconds: int) -> None:
    """The stale gang grace is a duration, or forever."""
    data = {
        "apiVersion": "aliquot.dev/v1",
        "kind": "SchedulingPolicy",
        "metadata": {"name": "p"},
        "spec": {"staleGangGrace": written},
    }

    assert from_json(data, strict=True).spec.stale_gang_grace == seconds


@pytest.mark.parametrize(("written", "kept"), [(4, 4), (0.5, "0.5"), ("512Mi", "512Mi"), (-1, -1)])
def test_bounds_of_a_policy_are_numbers_or_amounts(written: object, kept: object) -> None:
    """Minimum and maximum of a policy rule may be numbers or amounts of memory."""
    rules = {"compute.gpu": {"max": written}}
    data = {"apiVersion": "aliquot.dev/v1", "kind": "Policy", "metadata": {"name": "p"}, "spec": {"rules": rules}}

    assert from_json(data, strict=True).spec.rules["compute.gpu"].max == kept


def test_type_is_always_written() -> None:
    """The type of a workload is written even if it is the default, because users select by it."""
    assert to_json(Workload(metadata=Metadata(name="a")))["spec"] == {"type": "training"}


def test_lease_times_have_microseconds() -> None:
    """The times of a lease have six decimals, as Kubernetes requires."""
    lease = Lease(metadata=Metadata(name="leader"), spec=LeaseSpec(holder_identity="a", renew_time=5.0))

    assert to_json(lease)["spec"]["renewTime"] == "1970-01-01T00:00:05.000000Z"


def test_kubernetes_wire_names() -> None:
    """Kubernetes' wire names with capitals (podIP, hostIPC) are read and written."""
    spec, status = {"hostIPC": True}, {"podIP": "10.0.0.1", "containerStatuses": [{"name": "m", "imageID": "i"}]}
    pod = from_json({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec, "status": status})

    assert pod.spec.host_ipc
    assert pod.status.pod_ip == "10.0.0.1"
    assert to_json(pod)["spec"] == spec
    assert to_json(pod)["status"] == status


def test_defaults_are_shared() -> None:
    """Objects share their default values, so that ten thousand of them stay small."""
    first, second = (
        from_json({"apiVersion": "aliquot.dev/v1", "kind": "Project", "metadata": {"name": n}}) for n in "ab"
    )

    assert first.spec is second.spec
    assert first.metadata.labels is second.metadata.labels


def test_shared_empty_map_is_immutable() -> None:
    """The shared empty map cannot be changed, and pickling preserves its identity."""
    with pytest.raises(TypeError, match="make a new mapping"):
        EMPTY_MAP["a"] = 1
    assert pickle.loads(pickle.dumps(EMPTY_MAP)) is EMPTY_MAP
