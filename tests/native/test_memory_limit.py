"""A container gets its limit to the last block, whichever way it asks, and the driver's own error beyond it."""

from __future__ import annotations

import pytest

from native.rig import CONTEXT, Rig

WAYS = ["alloc", "pitch", "async", "from-pool", "create", "mapped", "array", "array3d", "mipmap", "graph"]
WAYS += ["managed", "heap"]


def test_limit_is_exact(rig: Rig) -> None:
    """In 2 MiB steps a program gets all of its 2048 MiB but its context, then error 2, and all of it back."""
    told = rig.python(
        """
        cuda = Cuda()
        frees, code = cuda.fill(cuda.alloc, 2 * MIB)
        full = cuda.info()[0]
        for free in frees: free()
        print(2 * len(frees), code, full, cuda.info()[0] // MIB)
        """,
        limit=2048,
    )
    assert told == [str(2048 - CONTEXT), "2", "0", str(2048 - CONTEXT)]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_ends_at_the_limit(rig: Rig, way: str) -> None:
    """However memory is taken, it ends within one step below the limit with error 2, and is given back whole."""
    used, code, back = rig.python(
        """
        cuda, ledger = Cuda(), Ledger(sys.argv[2])
        frees, code = cuda.fill(cuda.ways()[sys.argv[1]], 64 * MIB)
        print(ledger.total() // MIB, code)
        for free in reversed(frees): free()
        print(cuda.info()[0] // MIB)
        """,
        way,
        rig.ledger,
        limit=2048,
    )
    assert code == "2"
    assert 2048 - 96 < int(used) <= 2048
    assert int(back) == 2048 - CONTEXT


def test_after_a_refusal_the_program_goes_on(rig: Rig) -> None:
    """A refused request leaves nothing behind: a smaller one succeeds."""
    told = rig.python(
        """
        cuda = Cuda()
        code = cuda.status("cuMemAlloc_v2", c.byref(u64()), size_t(5000 * MIB))
        cuda.alloc(1000 * MIB)
        print(code, cuda.info()[0] // MIB)
        """,
        limit=2048,
    )
    assert told == ["2", str(2048 - CONTEXT - 1000)]


@pytest.mark.parametrize("size", ["0xffffffffffffffff", "0x7fffffffffffffff", "0xffffffffffe00001"])
@pytest.mark.parametrize("call", ["cuMemAlloc_v2", "cuMemAllocAsync", "cuMemAllocManaged"])
def test_absurd_sizes_are_refused(rig: Rig, call: str, size: str) -> None:
    """A size near the end of the number range is refused, not wrapped around into a small one."""
    told = rig.python(
        """
        cuda = Cuda()
        code = cuda.status(sys.argv[1], c.byref(u64()), size_t(int(sys.argv[2], 16)), None)
        print(code, cuda.info()[0] // MIB)
        """,
        call,
        size,
        limit=2048,
    )
    assert told == ["2", str(2048 - CONTEXT)]


def test_failed_driver_call_costs_nothing(rig: Rig) -> None:
    """When the driver itself fails, what was charged for the call is given back."""
    told = rig.python(
        """
        cuda = Cuda()
        code = cuda.status("cuMemAlloc_v2", c.byref(u64()), size_t(100 * MIB))
        print(code, cuda.info()[0] // MIB)
        """,
        limit=2048,
        FAKE_FAIL="cuMemAlloc_v2:1",
    )
    assert told == ["999", str(2048 - CONTEXT)]


def test_memory_without_an_allocation_call_counts(rig: Rig) -> None:
    """A module's own arrays are taken without an allocation call, and still count at the next request."""
    told = rig.python(
        """
        cuda = Cuda()
        cuda.call("cuModuleLoadData", c.byref(ptr()), b"bytes %d" % (1024 * MIB))
        code = cuda.status("cuMemAlloc_v2", c.byref(u64()), size_t(600 * MIB))
        print(code, cuda.info()[0] // MIB)
        """,
        limit=2048,
    )
    assert told == ["2", str(2048 - CONTEXT - 1024)]


@pytest.mark.parametrize("bytes_each", [1, 512, 100_000, 349_697, 524_800, 700_000, 1_048_576, 1_300_000])
def test_small_pieces_end_at_the_limit(rig: Rig, bytes_each: int) -> None:
    """Pieces that pack badly into the driver's blocks get no block beyond the limit, and use the last one up."""
    told = rig.python(
        """
        cuda, ledger, nvml = Cuda(), Ledger(sys.argv[2]), Nvml()
        held = [cuda.alloc(int(sys.argv[1])) for _ in range(40)] + [cuda.alloc(600 * MIB)]
        frees, code = cuda.fill(cuda.alloc, max(4096, int(sys.argv[1])))
        full = ledger.total() // MIB, nvml.self_bytes(nvml.device(cuda.uuid())) // MIB
        for free in held + frees: free()
        print(code, *full, cuda.info()[0] // MIB)
        """,
        bytes_each,
        rig.ledger,
        limit=1200,
    )
    assert told == ["2", "1200", "1200", str(1200 - CONTEXT)]


def test_stacks_are_checked_before_they_are_taken(rig: Rig) -> None:
    """A stack size that the container has no room for is refused by error 2."""
    told = rig.python("print(Cuda().status('cuCtxSetLimit', 0, size_t(16384)))", limit=2048)
    assert told == ["2"]


def test_unmap_over_two_maps(rig: Rig) -> None:
    """Two blocks mapped side by side are given back by one unmap."""
    told = rig.python(
        """
        cuda = Cuda()
        at = cuda.reserve(128 * MIB)
        for i in range(2):
            handle = cuda.physical(64 * MIB)
            cuda.call("cuMemMap", u64(at + i * 64 * MIB), size_t(64 * MIB), size_t(0), handle, u64(0))
            cuda.call("cuMemRelease", handle)
        before = cuda.info()[0] // MIB
        cuda.call("cuMemUnmap", u64(at), size_t(128 * MIB))
        print(before, cuda.info()[0] // MIB)
        """,
        limit=2048,
    )
    assert told == [str(2048 - CONTEXT - 128), str(2048 - CONTEXT)]


def test_retained_handle_keeps_the_block(rig: Rig) -> None:
    """A block whose handle was retained from its address outlives its map, and is freed with the last release."""
    told = rig.python(
        """
        cuda = Cuda()
        at, handle, again = cuda.reserve(64 * MIB), cuda.physical(64 * MIB), u64()
        cuda.call("cuMemMap", u64(at), size_t(64 * MIB), size_t(0), handle, u64(0))
        cuda.call("cuMemRetainAllocationHandle", c.byref(again), ptr(at + 5 * MIB))
        cuda.call("cuMemRelease", handle)
        cuda.call("cuMemUnmap", u64(at), size_t(64 * MIB))
        held = cuda.info()[0] // MIB
        cuda.call("cuMemRelease", again)
        print(held, cuda.info()[0] // MIB)
        """,
        limit=2048,
    )
    assert told == [str(2048 - CONTEXT - 64), str(2048 - CONTEXT)]


def test_reset_gives_back_what_the_context_owned(rig: Rig) -> None:
    """After a device reset the container has its whole limit again."""
    told = rig.python(
        """
        cuda, ledger = Cuda(), Ledger(sys.argv[1])
        cuda.alloc(500 * MIB), cuda.alloc(1000), cuda.array(64 * MIB)
        cuda.call("cuDevicePrimaryCtxReset_v2", 0)
        print(ledger.total())
        """,
        rig.ledger,
        limit=2048,
    )
    assert told == ["0"]


def test_limit_below_one_context(rig: Rig) -> None:
    """A limit that cannot hold a context fails at its creation, with one line that names limit and need."""
    result = rig.try_python("Cuda()", limit=400)
    assert "cuDevicePrimaryCtxRetain answered 2" in result.err
    assert f"gpushare: limit 400 MiB is less than one CUDA context ({CONTEXT} MiB)" in result.err


def test_silent_nvml_leaves_the_calibrated_context(rig: Rig) -> None:
    """Where NVML does not tell what processes hold, the context counts at its calibrated size."""
    told = rig.python("print(Cuda().info()[0] // MIB)", limit=2048, FAKE_NVML="silent", GPUSHARE_CONTEXT_MIB="300")
    assert told == [str(2048 - 300)]


def test_threads_race_for_the_last_block(rig: Rig) -> None:
    """Many threads that fill up at once get the limit together, not a block more."""
    told = rig.python(
        """
        import threading
        cuda, ledger, got = Cuda(), Ledger(sys.argv[1]), []
        def work():
            cuda.call("cuCtxSetCurrent", cuda.context)
            got.extend(cuda.fill(cuda.alloc, 2 * MIB)[0])
        threads = [threading.Thread(target=work) for _ in range(8)]
        for t in threads: t.start()
        for t in threads: t.join()
        print(2 * len(got), ledger.total() // MIB)
        """,
        rig.ledger,
        limit=2048,
    )
    assert told == [str(2048 - CONTEXT), "2048"]
