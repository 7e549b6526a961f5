"""`exact`, `apis`, `hidden`: a tenant gets exactly its limit with every allocation function, and no more."""

from __future__ import annotations

from lab import Lab
from table import Table

OUT_OF_MEMORY = 2

EXACT = """
cuda, nvml = Cuda(), Nvml()
device = nvml.device(cuda.uuid())
start, total = cuda.info()
frees, code = cuda.fill(cuda.alloc, 2 * MIB)
seen = nvml.memory_v2(device)
step(got=2 * len(frees), code=code, free=cuda.info()[0] // MIB, total=total // MIB, whole=cuda.total() // MIB,
     smi=[seen.total // MIB, seen.used // MIB, seen.free // MIB, seen.reserved // MIB])
for free in frees: free()
report(before=start // MIB, after=cuda.info()[0] // MIB)
"""


def exact(lab: Lab, table: Table) -> None:
    limit = lab.small_limit
    tenant = lab.tenant(limit)
    with tenant.start(EXACT) as program:
        full = program.receive()
        ledger, held = tenant.ledger_mib(), lab.held(program)
        back = program.resume_and_receive()
    context = lab.context // (1 << 20)
    table.info(f"obtained in 2 MiB steps under {limit} MiB", f"{full['got']} MiB and a context of {held - full['got']}")
    table.near("obtained and context", full["got"] + context, limit, 2, " MiB")
    table.near("ledger", ledger, limit, 2, " MiB")
    table.near("driver, seen from outside", held, limit, 2, " MiB")
    table.equal("error code", full["code"], OUT_OF_MEMORY)
    table.at_most("free when full", full["free"], 2, " MiB")
    table.equal("total: cuMemGetInfo, cuDeviceTotalMem", [full["total"], full["whole"]], [limit, limit])
    table.equal("NVML in the tenant: total, reserved", [full["smi"][0], full["smi"][3]], [limit, 0])
    table.near("NVML in the tenant: used", full["smi"][1], limit, 2, " MiB")
    table.near("free again after freeing", back["after"], back["before"], 2, " MiB")


ALLOCATORS = """
cuda = Cuda()
base = cuda.info()[0]
for name, take in cuda.allocators().items():
    size = 256 * MIB if name == "graph" else 64 * MIB
    frees, code = cuda.fill(take, size)
    cuda.sync()
    step(allocator=name, step=size // MIB, got=len(frees) * size // MIB, code=code, free=cuda.info()[0] // MIB)
    for free in reversed(frees): free()
    cuda.sync()
    step(allocator=name, missing=(base - cuda.info()[0]) // MIB)
report(allocator=None)
"""
# Each step reports the MiB that the ledger should have gained and waits while the suite compares it with the driver.
SPECIAL = """
cuda = Cuda()
def expect(what, **more): step(what=what, **more)

start = cuda.info()[0]
handle, at = cuda.physical(64 * MIB), cuda.reserve(64 * MIB)
cuda.call("cuMemMap", u64(at), size_t(64 * MIB), size_t(0), handle, u64(0))
again = u64()
cuda.call("cuMemRetainAllocationHandle", c.byref(again), ptr(at))
cuda.call("cuMemRelease", handle)
cuda.call("cuMemUnmap", u64(at), size_t(64 * MIB))
expect("retained handle, unmapped", wanted=64)
cuda.call("cuMemRelease", again)
expect("retained handle released", wanted=0)

handle, at = cuda.physical(64 * MIB), cuda.reserve(128 * MIB)
for place in (at, at + 64 * MIB): cuda.call("cuMemMap", u64(place), size_t(64 * MIB), size_t(0), handle, u64(0))
cuda.call("cuMemRelease", handle)
cuda.call("cuMemUnmap", u64(at), size_t(64 * MIB))
expect("one of two maps unmapped", wanted=64)
cuda.call("cuMemUnmap", u64(at + 64 * MIB), size_t(64 * MIB))
expect("both unmapped", wanted=0)

for place in (at, at + 64 * MIB):
    handle = cuda.physical(64 * MIB)
    cuda.call("cuMemMap", u64(place), size_t(64 * MIB), size_t(0), handle, u64(0))
    cuda.call("cuMemRelease", handle)
expect("two blocks mapped side by side", wanted=128)
cuda.call("cuMemUnmap", u64(at), size_t(128 * MIB))
expect("one unmap over both", wanted=0)

pool, p = cuda.make_pool(), u64()
cuda.call("cuMemAllocFromPoolAsync", c.byref(p), size_t(64 * MIB), pool, None)
cuda.sync()
expect("from a pool", wanted=64)
cuda.call("cuMemPoolDestroy", pool)
cuda.sync()
expect("pool destroyed with live memory", wanted=None)
code = cuda.status("cuMemFreeAsync", p, None)
cuda.sync()
cuda.info()  # no call announces that the memory is freed: the library notices at the next query
expect("its memory freed", wanted=0, note=f"code {code}")

cuda.call("cuDevicePrimaryCtxReset_v2", 0)
cuda.call("cuDevicePrimaryCtxRetain", c.byref(cuda.context), 0)
cuda.call("cuCtxSetCurrent", cuda.context)
expect("device reset and taken anew", wanted=0, lost=(start - cuda.info()[0]) // MIB)

class Old(c.Structure):
    _fields_ = [("width", c.c_uint), ("height", c.c_uint), ("format", c.c_int), ("channels", c.c_uint)]
small, pitch, total = c.c_uint(), c.c_uint(), c.c_uint()
codes = {}
for name, args in {
    "cuMemAlloc": (c.byref(small), c.c_uint(64 * MIB)),
    "cuMemAllocPitch": (c.byref(small), c.byref(pitch), c.c_uint(65536), c.c_uint(1024), c.c_uint(4)),
    "cuArrayCreate": (c.byref(ptr()), c.byref(Old(4096, 1024, 0x20, 4))),
    "cuDeviceTotalMem": (c.byref(total), 0),
}.items():
    if hasattr(cuda.lib, name): codes[name] = cuda.status(name, *args)
expect("2.x symbols", wanted=None, note=str(codes), total=total.value // MIB)
report(what=None)
"""


def apis(lab: Lab, table: Table) -> None:
    tenant = lab.tenant(lab.small_limit)
    with tenant.start(ALLOCATORS) as program:
        full = program.receive()
        while full["allocator"]:
            ledger, held = tenant.ledger_mib(), lab.held(program)
            missing = program.resume_and_receive()["missing"]
            bound = (
                f"{tenant.limit - full['step'] - 32} to {tenant.limit}, code 2, driver ≤ {tenant.limit + 2}, all back"
            )
            good = tenant.limit - full["step"] - 32 <= ledger <= tenant.limit and full["code"] == OUT_OF_MEMORY
            figure = f"ledger {ledger} MiB, code {full['code']}, driver {held} MiB, {missing} MiB not back"
            # the driver's own heaps and streams may keep a block or two
            table.check(full["allocator"], good and held <= tenant.limit + 2 and abs(missing) <= 4, figure, bound)
            full = program.resume_and_receive()
    tenant = lab.tenant(lab.small_limit)
    with tenant.start(SPECIAL) as program:
        start = None
        reported = program.receive()
        while reported["what"]:
            ledger, held = tenant.ledger_mib(), lab.held(program)
            start = lab.context // (1 << 20) if start is None else start
            beyond, wanted = ledger - start, reported["wanted"]
            good = abs(ledger - held) <= 2 and (wanted is None or abs(beyond - wanted) <= 2)
            good = good and reported.get("total", 0) <= tenant.limit and abs(reported.get("lost", 0)) <= 2
            figure = f"ledger +{beyond} MiB, driver +{held - start} MiB {reported.get('note', '')}"
            table.check(reported["what"], good, figure, "as the driver" if wanted is None else f"{wanted} ± 2 MiB")
            reported = program.resume_and_receive()


HIDDEN = """
cuda, kind = Cuda(), sys.argv[1]
before = cuda.info()[0]
if kind == "module":
    module, function = ptr(), ptr()
    cuda.call("cuModuleLoadData", c.byref(module), b"bytes 1073741824" if FAKE_DRIVER else GIGABYTE_PTX)
    if not FAKE_DRIVER:
        cuda.call("cuModuleGetFunction", c.byref(function), module, b"touch")
        cuda.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
    code = 0
elif kind == "stack":
    code = cuda.status("cuCtxSetLimit", 0, size_t(16384))
    if not FAKE_DRIVER:
        Kernel(cuda, 1, 1)()
else:
    streams = [ptr() for _ in range(64)]
    for s in streams: cuda.call("cuStreamCreate", c.byref(s), 1)
    code = 0
cuda.sync()
time.sleep(0.002)  # the library queries the driver at most once per millisecond
after = cuda.info()[0]
step(code=code, seen=(before - after) // MIB)
refused = cuda.status("cuMemAlloc_v2", c.byref(u64()), size_t(after + 2 * MIB))
report(refused=refused)
"""


def hidden(lab: Lab, table: Table) -> None:
    """Memory allocated without an allocation call is seen at the next query and charged at the next request."""
    large = lab.small_limit if lab.total > 64 << 30 else 8192
    # kind, description, limit in MiB, least MiB that must be seen
    for kind, words, limit, least in (
        ("module", "1 GiB array of a module", 2048, 1024),
        ("stack", "16 KiB of stack for every thread", large, 1000),
        ("streams", "64 streams", 2048, 2),
    ):
        tenant = lab.tenant(limit)
        with tenant.start(HIDDEN, kind) as program:
            seen = program.receive()
            ledger, held = tenant.ledger_mib(), lab.held(program)
            refused = program.resume_and_receive()["refused"]
        good = seen["seen"] >= least and abs(ledger - held) <= 2
        figure = f"{seen['seen']} MiB seen, ledger {ledger}, driver {held} MiB"
        table.check(words, good, figure, f"≥ {least} MiB in one query, ledger = driver ± 2")
        table.equal(f"{words}: what does not fit any more", refused, OUT_OF_MEMORY)
    with lab.tenant(2048).start(HIDDEN, "stack") as program:
        reported = program.receive()
    table.equal("16 KiB of stack where it does not fit: code", reported["code"], OUT_OF_MEMORY)
