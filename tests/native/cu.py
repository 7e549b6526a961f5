"""The CUDA driver API and NVML from Python, used as an ordinary program does: loaded by name, symbols found by `dlsym`.

Runs unchanged on the fake driver and on a real GPU. Needs only the standard library: it also runs on machines where
Aliquot is not installed.
"""

from __future__ import annotations

import ctypes as c
import mmap
import os
import struct
import sys
from collections.abc import Callable

MIB = 1 << 20
u64 = c.c_uint64
size_t = c.c_size_t
ptr = c.c_void_p


class CudaError(Exception):
    """The driver returned an error."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} answered {code}")
        self.code = code


class Location(c.Structure):
    _fields_ = [("type", c.c_int), ("id", c.c_int)]


class AllocationProp(c.Structure):
    _fields_ = [
        ("type", c.c_int),
        ("handles", c.c_int),
        ("location", Location),
        ("win32", ptr),
        ("flags", c.c_uint8 * 8),
    ]


class PoolProps(c.Structure):
    _fields_ = [
        ("type", c.c_int), ("handles", c.c_int), ("location", Location), ("win32", ptr), ("max", size_t),
        ("reserved", c.c_uint8 * 56),
    ]  # fmt: skip


class AllocNode(c.Structure):
    _fields_ = [("pool", PoolProps), ("access", ptr), ("access_count", size_t), ("bytes", size_t), ("pointer", u64)]


class ArrayDesc(c.Structure):
    _fields_ = [("width", size_t), ("height", size_t), ("format", c.c_int), ("channels", c.c_uint)]


class Array3dDesc(c.Structure):
    _fields_ = [
        ("width", size_t), ("height", size_t), ("depth", size_t), ("format", c.c_int), ("channels", c.c_uint),
        ("flags", c.c_uint),
    ]  # fmt: skip


class Process(c.Structure):
    _fields_ = [("pid", c.c_uint), ("bytes", u64), ("gi", c.c_uint), ("ci", c.c_uint)]


class Memory(c.Structure):
    _fields_ = [("total", u64), ("free", u64), ("used", u64)]


class MemoryV2(c.Structure):
    _fields_ = [("version", c.c_uint), ("total", u64), ("reserved", u64), ("free", u64), ("used", u64)]


class Cuda:
    """One device with its primary context, through the `libcuda.so.1` that the loader finds."""

    def __init__(self, device: int = 0, context: bool = True) -> None:
        self.lib = c.CDLL("libcuda.so.1")
        self.device = device
        self.call("cuInit", 0)
        self.context = ptr()
        if context:
            self.call("cuDevicePrimaryCtxRetain", c.byref(self.context), device)
            self.call("cuCtxSetCurrent", self.context)

    def status(self, name: str, *args: object) -> int:
        return int(getattr(self.lib, name)(*args))

    def call(self, name: str, *args: object) -> None:
        code = self.status(name, *args)
        if code:
            raise CudaError(name, code)

    def info(self) -> tuple[int, int]:
        free, total = size_t(), size_t()
        self.call("cuMemGetInfo_v2", c.byref(free), c.byref(total))
        return free.value, total.value

    def total(self) -> int:
        total = size_t()
        self.call("cuDeviceTotalMem_v2", c.byref(total), self.device)
        return total.value

    def uuid(self) -> str:
        raw = (c.c_uint8 * 16)()
        self.call("cuDeviceGetUuid", raw, self.device)
        h = bytes(raw).hex()
        return f"GPU-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"

    def sync(self) -> None:
        self.call("cuCtxSynchronize")

    # --- allocators: each returns the function that frees the memory

    def alloc(self, n: int) -> Callable[[], None]:
        p = u64()
        self.call("cuMemAlloc_v2", c.byref(p), size_t(n))
        return lambda: self.call("cuMemFree_v2", p)

    def pitch(self, n: int) -> Callable[[], None]:
        p, pitch = u64(), size_t()
        rows = max(1, n // 65536)
        self.call("cuMemAllocPitch_v2", c.byref(p), c.byref(pitch), size_t(min(n, 65536)), size_t(rows), 4)
        return lambda: self.call("cuMemFree_v2", p)

    def managed(self, n: int) -> Callable[[], None]:
        p = u64()
        self.call("cuMemAllocManaged", c.byref(p), size_t(n), 1)
        return lambda: self.call("cuMemFree_v2", p)

    def asynchronous(self, n: int) -> Callable[[], None]:
        p = u64()
        self.call("cuMemAllocAsync", c.byref(p), size_t(n), None)

        def free() -> None:
            self.call("cuMemFreeAsync", p, None)
            self.sync()

        return free

    def make_pool(self) -> ptr:
        pool = ptr()
        props = PoolProps(type=1, location=Location(1, self.device))
        self.call("cuMemPoolCreate", c.byref(pool), c.byref(props))
        return pool

    def from_pool(self, n: int, pool: ptr | None = None) -> Callable[[], None]:
        own = pool or self.make_pool()
        p = u64()
        try:
            self.call("cuMemAllocFromPoolAsync", c.byref(p), size_t(n), own, None)
        except CudaError:
            if pool is None:
                self.call("cuMemPoolDestroy", own)
            raise

        def free() -> None:
            self.call("cuMemFreeAsync", p, None)
            self.sync()
            if pool is None:
                self.call("cuMemPoolDestroy", own)

        return free

    def create(self, n: int) -> Callable[[], None]:
        handle = self.physical(n)
        return lambda: self.call("cuMemRelease", handle)

    def physical(self, n: int) -> u64:
        handle = u64()
        prop = AllocationProp(type=1, location=Location(1, self.device))
        self.call("cuMemCreate", c.byref(handle), size_t(n), c.byref(prop), u64(0))
        return handle

    def reserve(self, n: int) -> int:
        address = u64()
        self.call("cuMemAddressReserve", c.byref(address), size_t(n), size_t(0), u64(0), u64(0))
        return address.value

    def mapped(self, n: int) -> Callable[[], None]:
        """Creates and maps memory and releases the handle: only the mapping keeps the memory."""
        handle = self.physical(n)
        at = self.reserve(n)
        self.call("cuMemMap", u64(at), size_t(n), size_t(0), handle, u64(0))
        self.call("cuMemRelease", handle)

        def free() -> None:
            self.call("cuMemUnmap", u64(at), size_t(n))
            self.call("cuMemAddressFree", u64(at), size_t(n))

        return free

    def array(self, n: int) -> Callable[[], None]:
        """An array of float4 (16 bytes each), 4096 wide."""
        a = ptr()
        desc = ArrayDesc(4096, max(8, n // (4096 * 16)), 0x20, 4)
        self.call("cuArrayCreate_v2", c.byref(a), c.byref(desc))
        return lambda: self.call("cuArrayDestroy", a)

    def array3d(self, n: int) -> Callable[[], None]:
        a = ptr()
        desc = Array3dDesc(1024, 64, max(1, n // MIB), 0x20, 4, 0)
        self.call("cuArray3DCreate_v2", c.byref(a), c.byref(desc))
        return lambda: self.call("cuArrayDestroy", a)

    def mipmap(self, n: int) -> Callable[[], None]:
        a = ptr()
        desc = Array3dDesc(2048, max(8, n // (2048 * 16)), 0, 0x20, 4, 0)
        self.call("cuMipmappedArrayCreate", c.byref(a), c.byref(desc), 8)
        return lambda: self.call("cuMipmappedArrayDestroy", a)

    def graph(self, n: int) -> Callable[[], None]:
        """A graph that allocates and frees; after its launch the driver keeps the memory until it is trimmed."""
        g, node, end, run = ptr(), ptr(), ptr(), ptr()
        self.call("cuGraphCreate", c.byref(g), 0)
        params = AllocNode(pool=PoolProps(type=1, location=Location(1, self.device)), bytes=n)
        try:
            self.call("cuGraphAddMemAllocNode", c.byref(node), g, None, size_t(0), c.byref(params))
        except CudaError:
            self.call("cuGraphDestroy", g)
            raise
        self.call("cuGraphInstantiateWithFlags", c.byref(run), g, u64(0))
        code = self.status("cuGraphLaunch", run, None)
        self.sync()

        def free() -> None:
            if not code:
                self.call("cuMemFreeAsync", u64(params.pointer), None)
                self.sync()
            self.call("cuGraphExecDestroy", run)
            self.call("cuGraphDestroy", g)
            self.call("cuDeviceGraphMemTrim", self.device)

        if code:
            free()
            raise CudaError("cuGraphLaunch", code)
        del end
        return free

    def heap(self, n: int) -> Callable[[], None]:
        before = size_t()
        self.call("cuCtxGetLimit", c.byref(before), 2)
        self.call("cuCtxSetLimit", 2, size_t(before.value + n))
        return lambda: self.call("cuCtxSetLimit", 2, before)

    def allocators(self) -> dict[str, Callable[[int], Callable[[], None]]]:
        return {
            "alloc": self.alloc, "pitch": self.pitch, "async": self.asynchronous, "from-pool": self.from_pool,
            "create": self.create, "mapped": self.mapped, "array": self.array, "array3d": self.array3d,
            "mipmap": self.mipmap, "graph": self.graph, "managed": self.managed, "heap": self.heap,
        }  # fmt: skip

    def fill(self, take: Callable[[int], Callable[[], None]], step: int) -> tuple[list[Callable[[], None]], int]:
        """Allocates `step` bytes at a time until it is refused. Returns the free functions and the error code."""
        frees: list[Callable[[], None]] = []
        while len(frees) < 200000:
            try:
                frees.append(take(step))
            except CudaError as e:
                return frees, e.code
        return frees, 0


class Nvml:
    """NVML, loaded by name."""

    def __init__(self) -> None:
        self.lib = c.CDLL("libnvidia-ml.so.1")
        self.check("nvmlInit_v2")

    def check(self, name: str, *args: object) -> None:
        code = int(getattr(self.lib, name)(*args))
        if code:
            raise CudaError(name, code)

    def device(self, uuid: str) -> ptr:
        handle = ptr()
        self.check("nvmlDeviceGetHandleByUUID", uuid.encode(), c.byref(handle))
        return handle

    def memory(self, device: ptr) -> Memory:
        m = Memory()
        self.check("nvmlDeviceGetMemoryInfo", device, c.byref(m))
        return m

    def memory_v2(self, device: ptr) -> MemoryV2:
        m = MemoryV2(version=c.sizeof(MemoryV2) | 2 << 24)
        self.check("nvmlDeviceGetMemoryInfo_v2", device, c.byref(m))
        return m

    def processes(self, device: ptr) -> dict[int, int]:
        processes, count = (Process * 256)(), c.c_uint(256)
        self.check("nvmlDeviceGetComputeRunningProcesses_v3", device, c.byref(count), processes)
        return {p.pid: p.bytes for p in processes[: count.value]}

    def self_bytes(self, device: ptr) -> int:
        return self.processes(device).get(os.getpid(), 0)


class Ledger:
    """Reads a ledger file; native/gpushare/README.md documents the layout."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as f:
            self.bytes = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)

    def at(self, form: str, offset: int) -> tuple[int, ...]:
        return struct.unpack_from("<" + form, self.bytes, offset)

    def total(self, device: int = 0) -> int:
        return self.at("Q", 192 + 32 * device + 24)[0]

    def counters(self) -> tuple[int, ...]:
        return self.at("4Q", 96)

    def slots(self, device: int = 0) -> dict[int, tuple[int, ...]]:
        slots = {}
        for s in range(256):
            base = 4096 + 448 * s
            state, pid = self.at("Ii", base)
            if state:
                slots[pid] = self.at("3Q", base + 64 + 24 * device)
        return slots

    def sum(self, device: int = 0) -> int:
        return sum(charged + overhead for charged, overhead, _ in self.slots(device).values())


def print_line(*words: object) -> None:
    sys.stdout.write(" ".join(str(w) for w in words) + "\n")
    sys.stdout.flush()
