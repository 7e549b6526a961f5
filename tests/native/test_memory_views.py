"""What programs see of the card: the container's limit and the container's use."""

from __future__ import annotations

from native.rig import CONTEXT, Rig, line


def test_cuda_reports_the_limit(rig: Rig) -> None:
    """The driver API reports the limit as the card's size and what is left of it as free."""
    told = rig.python("cuda = Cuda(); print(cuda.total() // MIB, *(n // MIB for n in cuda.info()))", limit=4096)
    assert told == ["4096", str(4096 - CONTEXT), "4096"]


def test_free_is_never_more_than_the_card_has(rig: Rig) -> None:
    """A container on a card that others have filled sees what is really free."""
    neighbour = rig.start("Cuda().alloc(15000 * MIB); print('full'); input()", limit=None, preload=False)
    assert line(neighbour) == "full"
    told = rig.python("print(Cuda().info()[0] // MIB)", limit=4096)
    neighbour.communicate("\n")
    assert told == [str(16384 - 15000 - 2 * CONTEXT)]


def test_nvml_reports_the_limit(rig: Rig) -> None:
    """NVML's total is the limit, used is the container's use, free the rest, and nothing is reserved."""
    told = rig.python(
        """
        cuda, nvml = Cuda(), Nvml()
        cuda.alloc(100 * MIB)
        old, new = (f(nvml.device(cuda.uuid())) for f in (nvml.memory, nvml.memory_v2))
        print(*(n // MIB for n in (old.total, old.used, old.free, new.total, new.used, new.free, new.reserved)))
        """,
        limit=4096,
    )
    one = ["4096", str(CONTEXT + 100), str(4096 - CONTEXT - 100)]
    assert told == [*one, *one, "0"]


def test_process_list_is_the_containers(rig: Rig) -> None:
    """Processes of other containers on the card are not listed."""
    stranger = rig.start("Cuda(); print('there'); input()", limit=None, preload=False)
    assert line(stranger) == "there"
    told = rig.python(
        """
        cuda, nvml = Cuda(), Nvml()
        print(*nvml.processes(nvml.device(cuda.uuid())), os.getpid())
        """,
    )
    stranger.communicate("\n")
    assert len(told) == 2
    assert told[0] == told[1]


def test_readers_take_no_slot(rig: Rig) -> None:
    """A program that only reads, like nvidia-smi, sees the others' use and takes no slot."""
    worker = rig.start("Cuda().alloc(100 * MIB); print('there'); input()")
    assert line(worker) == "there"
    told = rig.python(
        """
        nvml = Nvml()
        uuid = Cuda(context=False).uuid()
        print(nvml.memory(nvml.device(uuid)).used // MIB, len(Ledger(sys.argv[1]).slots()))
        """,
        rig.ledger,
    )
    worker.communicate("\n")
    assert told == [str(CONTEXT + 100), "1"]


def test_missing_out_parameters(rig: Rig) -> None:
    """A program that asks only for the total, or for nothing, gets an answer and no crash."""
    told = rig.python(
        """
        cuda, total = Cuda(), size_t()
        print(cuda.status("cuMemGetInfo_v2", None, c.byref(total)), total.value // MIB)
        print(cuda.status("cuMemGetInfo_v2", None, None))
        """,
        limit=4096,
    )
    assert told == ["0", "4096", "0"]
