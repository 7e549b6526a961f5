"""Programs see the container's limit and usage instead of the GPU's."""

from __future__ import annotations

from native.rig import CONTEXT, Rig, line


def test_cuda_reports_the_limit(rig: Rig) -> None:
    """The driver API reports the limit as the GPU's size and the rest of it as free."""
    output = rig.python("cuda = Cuda(); print(cuda.total() // MIB, *(n // MIB for n in cuda.info()))", limit=4096)
    assert output == ["4096", str(4096 - CONTEXT), "4096"]


def test_free_is_at_most_what_the_gpu_has(rig: Rig) -> None:
    """On a GPU that others have filled, a container sees the memory that is really free."""
    neighbour = rig.start("Cuda().alloc(15000 * MIB); print('full'); input()", limit=None, preload=False)
    assert line(neighbour) == "full"
    output = rig.python("print(Cuda().info()[0] // MIB)", limit=4096)
    neighbour.communicate("\n")
    assert output == [str(16384 - 15000 - 2 * CONTEXT)]


def test_nvml_reports_the_limit(rig: Rig) -> None:
    """NVML reports the limit as total, the container's usage as used, the rest as free, and nothing reserved."""
    output = rig.python(
        """
        cuda, nvml = Cuda(), Nvml()
        cuda.alloc(100 * MIB)
        old, new = (f(nvml.device(cuda.uuid())) for f in (nvml.memory, nvml.memory_v2))
        print(*(n // MIB for n in (old.total, old.used, old.free, new.total, new.used, new.free, new.reserved)))
        """,
        limit=4096,
    )
    figures = ["4096", str(CONTEXT + 100), str(4096 - CONTEXT - 100)]
    assert output == [*figures, *figures, "0"]


def test_only_the_containers_processes_are_listed(rig: Rig) -> None:
    """Processes of other containers on the GPU are not listed."""
    stranger = rig.start("Cuda(); print('there'); input()", limit=None, preload=False)
    assert line(stranger) == "there"
    output = rig.python(
        """
        cuda, nvml = Cuda(), Nvml()
        print(*nvml.processes(nvml.device(cuda.uuid())), os.getpid())
        """,
    )
    stranger.communicate("\n")
    assert len(output) == 2
    assert output[0] == output[1]


def test_readers_take_no_slot(rig: Rig) -> None:
    """A program that only reads, like nvidia-smi, sees the container's usage and takes no slot."""
    worker = rig.start("Cuda().alloc(100 * MIB); print('there'); input()")
    assert line(worker) == "there"
    output = rig.python(
        """
        nvml = Nvml()
        uuid = Cuda(context=False).uuid()
        print(nvml.memory(nvml.device(uuid)).used // MIB, len(Ledger(sys.argv[1]).slots()))
        """,
        rig.ledger,
    )
    worker.communicate("\n")
    assert output == [str(CONTEXT + 100), "1"]


def test_missing_out_parameters(rig: Rig) -> None:
    """A query with NULL for one or both results does not crash."""
    output = rig.python(
        """
        cuda, total = Cuda(), size_t()
        print(cuda.status("cuMemGetInfo_v2", None, c.byref(total)), total.value // MIB)
        print(cuda.status("cuMemGetInfo_v2", None, None))
        """,
        limit=4096,
    )
    assert output == ["0", "4096", "0"]
