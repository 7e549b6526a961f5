"""Pods that name no devices are counted on free devices, and keep them."""

from __future__ import annotations

from typing import Any

from aliquot import labels
from aliquot.api import Pod, decode
from aliquot.scheduler.device_accounting import DeviceAccounting


def pod(name: str, gpus: int = 1, devices: str = "", node: str = "n1", phase: str = "Running") -> Pod:
    annotations = {labels.DEVICES: devices} if devices else {}
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}}
    data: dict[str, Any] = {
        "metadata": {"name": name, "namespace": "x", "uid": name, "annotations": annotations},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "c", "resources": resources}],
        },
        "status": {"phase": phase},
    }
    return decode(Pod, data)


def indices(devices: DeviceAccounting, name: str) -> list[int]:
    return [share.index for share in devices.inferred[name][1]]


def test_lowest_free_devices() -> None:
    """A pod that names its devices holds those; a pod that does not is counted on others."""
    devices = DeviceAccounting()
    devices.update(pod("named", devices='[{"index":0,"milli":1000},{"index":2,"milli":1000}]'))
    devices.update(pod("two", gpus=2))
    assert indices(devices, "two") == [1, 3]
    assert "named" not in devices.inferred


def test_keeps_its_devices() -> None:
    """A pod keeps its devices although a lower one becomes free."""
    devices = DeviceAccounting()
    first, second = pod("first"), pod("second")
    devices.update(first)
    devices.update(second)
    devices.remove(first)
    devices.update(second)
    assert indices(devices, "second") == [1]
    devices.update(pod("third"))
    assert indices(devices, "third") == [0]


def test_ended_pod_holds_nothing() -> None:
    """The devices of a pod that has ended are free."""
    devices = DeviceAccounting()
    devices.update(pod("job"))
    devices.update(pod("job", phase="Succeeded"))
    assert devices.in_use("n1") == {}
    assert devices.inferred == {}


def test_shared_device() -> None:
    """A shared device is in use until the last of its pods is gone."""
    devices = DeviceAccounting()
    first, second = (pod(name, devices='[{"index":3,"milli":500}]') for name in ("first", "second"))
    devices.update(first)
    devices.update(second)
    assert devices.in_use("n1") == {3: 2}
    devices.remove(first)
    assert devices.in_use("n1") == {3: 1}
    devices.remove(second)
    assert devices.in_use("n1") == {}
