"""A container gets exactly its limit with every allocator, and the driver's out-of-memory error beyond it."""

from __future__ import annotations

import pytest

from native.rig import CONTEXT, Rig

ALLOCATORS = ["alloc", "pitch", "async", "from-pool", "create", "mapped", "array", "array3d", "mipmap", "graph"]
ALLOCATORS += ["managed", "heap"]


def test_limit_is_exact(rig: Rig) -> None:
    """In steps of 2 MiB a program gets its 2048 MiB minus its context, then error 2; after freeing, all is free."""
    output = rig.python(
        """
        cuda = Cuda()
        frees, code = cuda.fill(cuda.alloc, 2 * MIB)
        full = cuda.info()[0]
        for free in frees: free()
        print(2 * len(frees), code, full, cuda.info()[0] // MIB)
        """,
        limit=2048,
    )
    assert output == [str(2048 - CONTEXT), "2", "0", str(2048 - CONTEXT)]


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_every_allocator_stops_at_the_limit(rig: Rig, allocator: str) -> None:
    """Every allocator fails with error 2 within one step of the limit, and all memory is refunded after freeing."""
    used, code, back = rig.python(
        """
        cuda, ledger = Cuda(), Ledger(sys.argv[2])
        frees, code = cuda.fill(cuda.allocators()[sys.argv[1]], 64 * MIB)
        print(ledger.total() // MIB, code)
        for free in reversed(frees): free()
        print(cuda.info()[0] // MIB)
        """,
        allocator,
        rig.ledger,
        limit=2048,
    )
    assert code == "2"
    assert 2048 - 96 < int(used) <= 2048
    assert int(back) == 2048 - CONTEXT


def test_a_program_continues_after_a_refusal(rig: Rig) -> None:
    """A refused allocation is not charged: a smaller one succeeds."""
    output = rig.python(
        """
        cuda = Cuda()
        code = cuda.status("cuMemAlloc_v2", c.byref(u64()), size_t(5000 * MIB))
        cuda.alloc(1000 * MIB)
        print(code, cuda.info()[0] // MIB)
        """,
        limit=2048,
    )
    assert output == ["2", str(2048 - CONTEXT - 1000)]


@pytest.mark.parametrize("size", ["0xffffffffffffffff", "0x7fffffffffffffff", "0xffffffffffe00001"])
@pytest.mark.parametrize("call", ["cuMemAlloc_v2", "cuMemAllocAsync", "cuMemAllocManaged"])
def test_absurd_sizes_are_refused(rig: Rig, call: str, size: str) -> None:
    """A size close to 2^64 is refused; it does not overflow to a small size."""
    output = rig.python(
        """
        cuda = Cuda()
        code = cuda.status(sys.argv[1], c.byref(u64()), size_t(int(sys.argv[2], 16)), None)
        print(code, cuda.info()[0] // MIB)
        """,
        call,
        size,
        limit=2048,
    )
    assert output == ["2", str(2048 - CONTEXT)]


def test_failed_driver_call_is_refunded(rig: Rig) -> None:
    """When the driver call fails, its charge is refunded."""
    output = rig.python(
        """
        cuda = Cuda()
        code = cuda.status("cuMemAlloc_v2", c.byref(u64()), size_t(100 * MIB))
        print(code, cuda.info()[0] // MIB)
        """,
        limit=2048,
        FAKE_FAIL="cuMemAlloc_v2:1",
    )
    assert output == ["999", str(2048 - CONTEXT)]


def test_memory_without_an_allocation_call_counts(rig: Rig) -> None:
    """A module's arrays are allocated without an allocation call and are charged at the next request."""
    output = rig.python(
        """
        cuda = Cuda()
        cuda.call("cuModuleLoadData", c.byref(ptr()), b"bytes %d" % (1024 * MIB))
        code = cuda.status("cuMemAlloc_v2", c.byref(u64()), size_t(600 * MIB))
        print(code, cuda.info()[0] // MIB)
        """,
        limit=2048,
    )
    assert output == ["2", str(2048 - CONTEXT - 1024)]


@pytest.mark.parametrize("bytes_each", [1, 512, 100_000, 349_697, 524_800, 700_000, 1_048_576, 1_300_000])
def test_small_allocations_stop_at_the_limit(rig: Rig, bytes_each: int) -> None:
    """Small allocations that pack badly into blocks get no block beyond the limit and fill the last one."""
    output = rig.python(
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
    assert output == ["2", "1200", "1200", str(1200 - CONTEXT)]


def test_stacks_are_checked_before_allocation(rig: Rig) -> None:
    """A stack size that does not fit into the container's limit is refused with error 2."""
    output = rig.python("print(Cuda().status('cuCtxSetLimit', 0, size_t(16384)))", limit=2048)
    assert output == ["2"]


def test_unmap_over_two_maps(rig: Rig) -> None:
    """One unmap over two adjacent mappings refunds both blocks."""
    output = rig.python(
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
    assert output == [str(2048 - CONTEXT - 128), str(2048 - CONTEXT)]


def test_retained_handle_keeps_the_block(rig: Rig) -> None:
    """A block with a retained handle outlives its mapping and is freed with the last release."""
    output = rig.python(
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
    assert output == [str(2048 - CONTEXT - 64), str(2048 - CONTEXT)]


def test_reset_refunds_the_contexts_memory(rig: Rig) -> None:
    """After a device reset nothing is charged."""
    output = rig.python(
        """
        cuda, ledger = Cuda(), Ledger(sys.argv[1])
        cuda.alloc(500 * MIB), cuda.alloc(1000), cuda.array(64 * MIB)
        cuda.call("cuDevicePrimaryCtxReset_v2", 0)
        print(ledger.total())
        """,
        rig.ledger,
        limit=2048,
    )
    assert output == ["0"]


def test_limit_below_one_context(rig: Rig) -> None:
    """With a limit smaller than a context, context creation fails, and a message shows both sizes."""
    result = rig.try_python("Cuda()", limit=400)
    assert "cuDevicePrimaryCtxRetain answered 2" in result.err
    assert f"gpushare: limit 400 MiB is less than one CUDA context ({CONTEXT} MiB)" in result.err


def test_context_size_without_nvml_figures(rig: Rig) -> None:
    """When NVML does not report the memory of processes, a context is charged at its calibrated size."""
    output = rig.python("print(Cuda().info()[0] // MIB)", limit=2048, FAKE_NVML="silent", GPUSHARE_CONTEXT_MIB="300")
    assert output == [str(2048 - 300)]


def test_threads_race_for_the_last_block(rig: Rig) -> None:
    """Threads that allocate at the same time get the limit together, and not a block more."""
    output = rig.python(
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
    assert output == [str(2048 - CONTEXT), "2048"]
