"""Helpers for programs that run in a tenant: `from tenant_program import *`. Standard library only, like cu.py.

A program and the suite exchange lines: `report` writes one line of JSON; `step` also waits for a line from the suite.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import sys
import time
from collections.abc import Sequence

from cu import *  # noqa: F403
from cu import MIB, Cuda, Ledger, c, ptr, u64

FAKE_DRIVER = "GPU_SUITE_DRIVER" in os.environ
LEDGER = "/run/gpushare/ledger"

# Every thread multiplies and adds `rounds` times. A kernel that only waited for time to pass would make progress while
# another tenant computes.
PTX = b"""
.version 7.0
.target sm_75
.address_size 64
.visible .entry burn(.param .u64 out, .param .u32 rounds)
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [out];
    ld.param.u32 %r1, [rounds];
    cvta.to.global.u64 %d2, %d1;
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, 0;
again:
    mad.lo.u32 %r2, %r2, 1664525, 1013904223;
    xor.b32 %r2, %r2, %r3;
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p0, %r3, %r1;
    @%p0 bra again;
    setp.eq.u32 %p1, %r2, 12345;
    @%p1 st.global.u32 [%d2], %r2;
    ret;
}
"""
GIGABYTE_PTX = b"""
.version 7.0
.target sm_75
.address_size 64
.visible .global .align 16 .b8 big[1073741824];
.visible .entry touch()
{
    .reg .b32 %r<2>;
    .reg .b64 %d<2>;
    mov.u64 %d1, big;
    mov.u32 %r1, 1;
    st.global.u32 [%d1], %r1;
    ret;
}
"""
SMS, THREADS = 16, 256  # device attribute: number of multiprocessors; threads per block


def report(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def step(**facts: object) -> str:
    """Reports, then waits for the suite. Returns the suite's line."""
    report(**facts)
    return sys.stdin.readline().strip()


def ledger_mib(path: str = LEDGER) -> int:
    return int(Ledger(path).total() // MIB)


class Kernel:
    """A kernel; calling it launches it. It takes about `microseconds` on the whole GPU."""

    def __init__(self, cuda: Cuda, microseconds: float, rounds_per_us: float, blocks: int = 0) -> None:
        self.cuda = cuda
        if FAKE_DRIVER:  # the value of a function handle is the run time
            self.function, self.grid, self.params = ptr(int(microseconds)), 1, None
            return
        module, self.function, count = ptr(), ptr(), c.c_int()
        cuda.call("cuModuleLoadData", c.byref(module), PTX)
        cuda.call("cuModuleGetFunction", c.byref(self.function), module, b"burn")
        cuda.call("cuDeviceGetAttribute", c.byref(count), SMS, cuda.device)
        self.grid = blocks or count.value * 8
        self.out, self.rounds = u64(), c.c_uint32(max(1, int(microseconds * rounds_per_us)))
        cuda.call("cuMemAlloc_v2", c.byref(self.out), c.c_size_t(4))
        self.params = (ptr * 2)(c.addressof(self.out), c.addressof(self.rounds))

    def __call__(self, stream: object = None) -> None:
        self.cuda.call("cuLaunchKernel", self.function, self.grid, 1, 1, THREADS, 1, 1, 0, stream, self.params, None)


def driver_addresses(names: Sequence[str]) -> list[int]:
    """Addresses of the driver's own functions, from the symbol table of its file: no library can intercept this."""
    with open("/proc/self/maps") as maps:
        lines = [line.split() for line in maps if "libcuda.so" in line]
    base, path = min(int(line[0].split("-")[0], 16) for line in lines), lines[0][5]
    with open(path, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    (table,), (size, count) = struct.unpack_from("<Q", data, 40), struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + size * index) for index in range(count)]
    symbols = next(section for section in sections if section[1] == 11)  # SHT_DYNSYM
    texts = sections[symbols[6]][4]
    addresses = {}
    for at in range(symbols[4], symbols[4] + symbols[5], 24):
        name, value = struct.unpack_from("<I4xQ", data, at)
        start = texts + name
        addresses[data[start : data.find(b"\0", start)].decode()] = base + value
    return [addresses[name] for name in names]


def rounds_per_us(cuda: Cuda, blocks: int = 0) -> float:
    """Rounds per microsecond of each thread when the whole GPU is busy."""
    if FAKE_DRIVER:
        return 1.0
    kernel = Kernel(cuda, 1, 100_000, blocks)
    for _ in range(3):  # the clock rises under load
        kernel()
        cuda.sync()
    start = time.perf_counter()
    for _ in range(10):
        kernel()
    cuda.sync()
    return 1e6 / ((time.perf_counter() - start) * 1e6)
