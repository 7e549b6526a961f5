"""Pods that name no devices are counted on free devices, and keep them."""

from __future__ import annotations

from aliquot import labels
from aliquot.api import Pod
from aliquot.scheduler.device_accounting import DeviceAccounting
from support.objects import pod


def bound_pod(name: str, gpus: int = 1, devices: str = "", node: str = "n1", phase: str = "Running") -> Pod:
    annotations = {labels.DEVICES: devices} if devices else {}
    return pod(name, uid=name, annotations=annotations, gpus=gpus, node=node, phase=phase)


def indices(devices: DeviceAccounting, name: str) -> list[int]:
    return [share.index for share in devices.inferred[name][1]]


def test_lowest_free_devices() -> None:
    """A pod that names its devices holds those; a pod that does not is counted on others."""
    devices = DeviceAccounting()
    devices.update(bound_pod("named", devices='[{"index":0,"milli":1000},{"index":2,"milli":1000}]'))
    devices.update(bound_pod("two", gpus=2))
    assert indices(devices, "two") == [1, 3]
    assert "named" not in devices.inferred


def test_keeps_its_devices() -> None:
    """A pod keeps its devices although a lower one becomes free."""
    devices = DeviceAccounting()
    first, second = bound_pod("first"), bound_pod("second")
    devices.update(first)
    devices.update(second)
    devices.remove(first)
    devices.update(second)
    assert indices(devices, "second") == [1]
    devices.update(bound_pod("third"))
    assert indices(devices, "third") == [0]


def test_ended_pod_holds_nothing() -> None:
    """The devices of a pod that has ended are free."""
    devices = DeviceAccounting()
    devices.update(bound_pod("job"))
    devices.update(bound_pod("job", phase="Succeeded"))
    assert devices.in_use("n1") == {}
    assert devices.inferred == {}


def test_shared_device() -> None:
    """A shared device is in use until the last of its pods is gone."""
    devices = DeviceAccounting()
    first, second = (bound_pod(name, devices='[{"index":3,"milli":500}]') for name in ("first", "second"))
    devices.update(first)
    devices.update(second)
    assert devices.in_use("n1") == {3: 2}
    devices.remove(first)
    assert devices.in_use("n1") == {3: 1}
    devices.remove(second)
    assert devices.in_use("n1") == {}
