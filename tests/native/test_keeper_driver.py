"""`keeper driver`: when the driver enforces the limit itself, the library limits managed memory only."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from native.rig import CONTEXT, HERE, Rig
from native.test_entry_points import OURS, WHERE, entries
from native.test_limits_file import limits

DRIVER = "libcuda.so.1"


@pytest.fixture
def container(rig: Rig) -> Rig:
    """A container prepared for a driver that limits control groups. The fake driver enforces nothing."""
    rig.extra = {"GPUSHARE_FOLDER": str(rig.folder)}
    (rig.folder / "limits").write_text(limits().replace("mode timesharing", "mode timesharing\nkeeper driver"))
    rig.ledger.write_bytes(bytes(131072))
    return rig


def test_only_managed_memory_is_intercepted(container: Rig) -> None:
    """Only the functions for managed memory, and the one that looks up others, are replaced."""
    names = entries("MEMORY_ENTRIES")
    output = container.python(
        WHERE
        + """
cuda = Cuda()
for name in sys.argv[1:]:
    if hasattr(cuda.lib, name): print(name, where(c.cast(getattr(cuda.lib, name), ptr).value))
""",
        *names,
    )
    owners = dict(zip(output[::2], output[1::2], strict=True))
    ours = {n for n, owner in owners.items() if owner == OURS}
    assert ours == {n for n in owners if n.startswith(("cuGetProcAddress", "cuMemAllocManaged", "cuMemFree"))}
    assert set(owners.values()) == {OURS, DRIVER}


def test_plain_memory_is_left_to_the_driver(container: Rig) -> None:
    """The library lets plain allocations beyond the limit pass and reports the whole GPU: the driver does both."""
    output = container.python(
        "cuda = Cuda(); cuda.alloc(4096 * MIB); print(cuda.info()[1] // MIB, cuda.total() // MIB)"
    )
    assert output == ["16384", "16384"]


def test_linked_programs_pass(container: Rig, tmp_path: Path) -> None:
    """Calls of a program that is linked to the driver reach the library first and are forwarded."""
    program = tmp_path / "linked"
    subprocess.run(["cc", HERE / "linked.c", "-o", program, container.built / DRIVER], check=True, timeout=60)
    output = subprocess.check_output([program], env=container.environment(), text=True, timeout=60)
    assert output.split() == [str((16384 - CONTEXT) // 64), "2"]


def test_managed_memory_is_limited(container: Rig) -> None:
    """Managed memory and the driver's memory for the process share the limit; freed memory can be used again."""
    output = container.python(
        """
        cuda = Cuda()
        plain = cuda.alloc(500 * MIB)
        frees, code = cuda.fill(cuda.managed, 2 * MIB)
        plain()
        more, _ = cuda.fill(cuda.managed, 2 * MIB)
        for free in frees + more: free()
        print(2 * len(frees), code, 2 * len(more), Ledger(sys.argv[1]).total() // MIB)
        """,
        container.ledger,
    )
    assert output == [str(2048 - CONTEXT - 500), "2", "500", str(CONTEXT + 500 - 500)]


def test_newer_functions_are_not_refused(container: Rig) -> None:
    """A function of a newer driver is limited by the driver, so it is not refused."""
    output = container.python(WHERE + "print(proc(Cuda(), 'cuMemAlloc'))", FAKE_NEW_ABI="cuMemAlloc")
    assert output == [DRIVER]


def test_nvml_is_not_touched(container: Rig) -> None:
    """NVML shows the real figures."""
    output = container.python("nvml = Nvml(); print(nvml.memory(nvml.device(Cuda().uuid())).total // MIB)")
    assert output == [str(16384 + 100)]


def test_leases_work_with_driver_limits(container: Rig) -> None:
    """Compute time is shared by leases, as it is without driver limits."""
    text = (container.folder / "limits").read_text()
    (container.folder / "limits").write_text(text.replace("timesharing", "fair"))
    output = container.python(
        WHERE + "cuda = Cuda(); print(*(proc(cuda, n) for n in ('cuLaunchKernel', 'cuGraphLaunch')))"
    )
    assert output == [OURS, OURS]


def test_unknown_keepers_fail_closed(container: Rig) -> None:
    """With an unknown keeper all GPU memory is refused."""
    text = (container.folder / "limits").read_text()
    (container.folder / "limits").write_text(text.replace("keeper driver", "keeper somebody"))
    assert "GPU memory is refused" in container.try_python("Cuda()").err
