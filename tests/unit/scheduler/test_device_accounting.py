"""Devices of pods that do not say which they hold: counted on free ones, and always on the same."""

from __future__ import annotations

from typing import Any

from aliquot import labels
from aliquot.api import Pod, decode
from aliquot.scheduler.device_accounting import DeviceAccounting


def pod(name: str, gpus: int = 1, devices: str = "", node: str = "n1", phase: str = "Running") -> Pod:
    annotations = {labels.DEVICES: devices} if devices else {}
    asks = {"limits": {"nvidia.com/gpu": str(gpus)}}
    data: dict[str, Any] = {
        "metadata": {"name": name, "namespace": "x", "uid": name, "annotations": annotations},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "c", "resources": asks}],
        },
        "status": {"phase": phase},
    }
    return decode(Pod, data)


def indices(devices: DeviceAccounting, name: str) -> list[int]:
    return [share.index for share in devices.inferred[name][1]]


def test_lowest_that_are_free() -> None:
    """Who names devices has those; who does not is counted on others."""
    devices = DeviceAccounting()
    devices.update(pod("named", devices='[{"index":0,"milli":1000},{"index":2,"milli":1000}]'))
    devices.update(pod("two", gpus=2))
    assert indices(devices, "two") == [1, 3]
    assert "named" not in devices.inferred


def test_stays_where_it_was_counted() -> None:
    """Although a lower device is free later."""
    devices = DeviceAccounting()
    first, second = pod("first"), pod("second")
    devices.update(first)
    devices.update(second)
    devices.remove(first)
    devices.update(second)
    assert indices(devices, "second") == [1]
    devices.update(pod("third"))
    assert indices(devices, "third") == [0]


def test_who_has_ended_holds_nothing() -> None:
    """Its devices are free for the next."""
    devices = DeviceAccounting()
    devices.update(pod("job"))
    devices.update(pod("job", phase="Succeeded"))
    assert devices.in_use("n1") == {}
    assert devices.inferred == {}


def test_parts_of_one_device_are_counted_together() -> None:
    """As long as one of them is there the device is in use."""
    devices = DeviceAccounting()
    one, other = (pod(name, devices='[{"index":3,"milli":500}]') for name in ("one", "other"))
    devices.update(one)
    devices.update(other)
    assert devices.in_use("n1") == {3: 2}
    devices.remove(one)
    assert devices.in_use("n1") == {3: 1}
    devices.remove(other)
    assert devices.in_use("n1") == {}
