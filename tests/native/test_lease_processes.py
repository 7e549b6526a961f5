"""Leases of compute time with real processes on the fake driver. test_lease_rules.py tests the rules."""

from __future__ import annotations

import pytest

from native.lease_implementations import Gate
from native.rig import Rig

SPIN = """
import time
cuda = Cuda()
print("ready", flush=True)
input()
launch, done, end = cuda.lib.cuLaunchKernel, 0, time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    for _ in range(5):
        launch(ptr(400), 1, 1, 1, 1, 1, 1, 0, None, None, None)
        done += 1
    cuda.sync()
print(done)
"""


def shares(rig: Rig, seconds: float, tenants: list[tuple[str, int]], mode: str = "fair") -> list[float]:
    """Runs one program per tenant at the same time; returns the fraction of GPU time that each got."""
    running = []
    for i, (tenant, weight) in enumerate(tenants):
        environment = {"GPUSHARE_TENANT": tenant, "GPUSHARE_WEIGHT": str(weight), "GPUSHARE_MODE": mode}
        environment["GPUSHARE_LEDGER"] = str(rig.folder / f"ledger-{tenant}")
        running.append(rig.start(SPIN, seconds, limit=2048, **environment))
        assert running[i].stdout.readline().strip() == "ready"  # type: ignore[union-attr]  # a pipe, always
    for process in running:
        process.stdin.write("\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
    done = [int(process.communicate(timeout=60)[0]) for process in running]
    return [n * 400e-6 / seconds for n in done]


def test_real_processes_share_by_weight(rig: Rig) -> None:
    """Two programs with weights 250 and 750 share the time in that ratio, with little overhead."""
    small, large = shares(rig, 4, [("a", 250), ("b", 750)])
    assert small / (small + large) == pytest.approx(0.25, abs=0.06)
    assert small + large > 0.7


def test_more_processes_do_not_get_more_time(rig: Rig) -> None:
    """Three processes of one tenant together get as much time as the one process of another tenant."""
    *many, _ = shares(rig, 4, [("many", 500), ("many", 500), ("many", 500), ("one", 500)])
    assert sum(many) < 0.56  # it would be 0.7 if only the process that hands over synchronized
    (path,) = rig.folder.glob("GPU-*")
    gate = Gate.from_buffer_copy(path.read_bytes())
    held = {t.name: t.held for t in gate.tenant}
    assert held[b"many"] / (held[b"many"] + held[b"one"]) == pytest.approx(0.5, abs=0.06)


def test_strict_process_gets_only_its_budget(rig: Rig) -> None:
    """A strict program that is alone on the GPU gets its quarter of the time and no more."""
    (got,) = shares(rig, 3, [("s", 250)], mode="strict")
    assert 0.1 < got < 0.29


def test_capture_is_not_gated(rig: Rig) -> None:
    """Launches do not wait during stream capture: a drain would invalidate the capture."""
    output = rig.python(
        """
        cuda = Cuda()
        cuda.call("cuStreamBeginCapture_v2", None, 0)
        for _ in range(200): cuda.call("cuLaunchKernel", ptr(1000), 1, 1, 1, 1, 1, 1, 0, None, None, None)
        graph = ptr()
        cuda.call("cuStreamEndCapture", None, c.byref(graph))
        print("captured")
        """,
        GPUSHARE_MODE="strict",
        GPUSHARE_WEIGHT="1",
    )
    assert output == ["captured"]
