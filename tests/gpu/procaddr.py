"""`procaddr`: every way to look up a driver function that can allocate memory returns the library's."""

from __future__ import annotations

import re
from typing import Any

from lab import ROOT, Lab, Tenant
from table import Table

# Reads the driver's symbol table, resolves every name in every version, and reports the file that contains each result.
RESOLVE = """
import re, struct

class Info(c.Structure):
    _fields_ = [("file", c.c_char_p), ("base", ptr), ("name", c.c_char_p), ("address", ptr)]

libc = c.CDLL(None)
libc.dladdr.argtypes = [ptr, ptr]
libc.dlsym.restype, libc.dlsym.argtypes = ptr, [ptr, c.c_char_p]

def file_and_offset(address):
    info = Info()
    if not libc.dladdr(address, c.addressof(info)): return ["?", 0]
    return [os.path.basename(info.file.decode()), address - (info.base or 0)]

def exported(path):
    with open(path, "rb") as f: raw = f.read()
    at, size, count = struct.unpack_from("<Q", raw, 40)[0], *struct.unpack_from("<HH", raw, 58)
    heads = [struct.unpack_from("<IIQQQQIIQQ", raw, at + i * size) for i in range(count)]
    symbols = next(h for h in heads if h[1] == 11)
    strings = heads[symbols[6]]
    for i in range(symbols[4], symbols[4] + symbols[5], 24):
        name, kind, other, section, value, length = struct.unpack_from("<IBBHQQ", raw, i)
        if section and kind & 15 in (2, 10):
            end = raw.index(b"\\0", strings[4] + name)
            yield raw[strings[4] + name:end].decode()

cuda = Cuda(context=False)
with open("/proc/self/maps") as f:
    path = next(line.split()[-1] for line in f if re.search(r"/libcuda[.]so", line))
names = sorted(n for n in set(exported(path)) if re.match("cu[A-Z]", n))
symbols = {n: file_and_offset(libc.dlsym(cuda.lib._handle, n.encode())) for n in names}
bases = {re.sub(r"(_v[0-9]+|_pt[sd][sz])+$", "", n) for n in names}
for header in ("/usr/local/cuda/include/cuda.h", "/usr/include/cuda.h"):
    if os.path.exists(header):
        with open(header, errors="replace") as f: text = f.read()
        bases |= set(re.findall(r"CUresult CUDAAPI (cu[A-Z][A-Za-z0-9]+?)(?:_v[0-9]+)?[(]", text))
own = c.c_int()
cuda.call("cuDriverGetVersion", c.byref(own))
answers = []
for base in sorted(bases):
    for version in sorted({11030, 12000, 13000, own.value}):
        for flags in (1, 2):
            found = ptr()
            code = cuda.lib.cuGetProcAddress_v2(base.encode(), c.byref(found), version, u64(flags), None)
            answers.append([base, version, flags, code, file_and_offset(found.value) if found.value else None])
nvml = Nvml()
views = {n: file_and_offset(libc.dlsym(nvml.lib._handle, n.encode()))[0] for n in sys.argv[1:] if hasattr(nvml.lib, n)}
report(file=os.path.basename(path), symbols=symbols, answers=answers, views=views, versions=own.value)
"""
OURS = "libgpushare.so"


def entries(group: str) -> set[str]:
    """The names of a list of the library's entries.h."""
    text = (ROOT / "native" / "gpushare" / "entries.h").read_text()
    definition = text.split(f"#define {group}(X)")[1].split("\n\n")[0]
    return set(re.findall(r"X\((\w+)\)", definition))


def procaddr(lab: Lab, table: Table) -> None:
    memory, compute, views = entries("MEMORY_ENTRIES"), entries("COMPUTE_ENTRIES"), entries("NVML_ENTRIES")
    with lab.start(RESOLVE, *views) as program:
        plain = program.receive()
    names_at: dict[tuple[str, int], set[str]] = {}
    for name, where in plain["symbols"].items():
        names_at.setdefault(tuple(where), set()).add(name)
    resolved = [answer for answer in plain["answers"] if answer[4]]
    unlisted = sorted({answer[0] for answer in resolved if tuple(answer[4]) not in names_at})
    table.info("names × versions × stream modes", f"{len(plain['answers'])}, {len(resolved)} resolve")
    table.check("resolve to no exported symbol", not unlisted, ", ".join(unlisted) or 0, 0)
    for mode, covered in (("timesharing", memory), ("fair", memory | compute)):
        with lab.tenant(lab.small_limit, mode=mode).start(RESOLVE, *views) as program:
            _compare(table, mode, covered, names_at, plain, program.receive())


def _compare(
    table: Table, mode: str, covered: set[str], names_at: dict[tuple[str, int], set[str]], plain: Any, limited: Any
) -> None:
    there = covered & set(plain["symbols"])
    missed = sorted(n for n in there if limited["symbols"][n][0] != OURS)
    table.check(
        f"{mode}: exported names that are ours", not missed, f"{len(there) - len(missed)} {missed or ''}", len(there)
    )
    taken = sorted(n for n, where in limited["symbols"].items() if n not in covered and where[0] == OURS)
    table.check(f"{mode}: others that are ours", not taken, ", ".join(taken) or 0, 0)
    ours, leaks, refused, touched = 0, [], [], []
    for before, after in zip(plain["answers"], limited["answers"], strict=True):
        if not before[4]:
            continue
        ask = f"{before[0]} {before[1]}/{before[2]}"
        file = after[4][0] if after[4] else None
        if names_at.get(tuple(before[4]), set()) & covered:
            ours += file == OURS
            leaks += [ask] if file != OURS else []
        elif file is None:
            refused.append(ask)
        elif after[4] != before[4]:
            touched.append(ask)
    table.check(f"{mode}: cuGetProcAddress answers ours", not leaks, f"{ours} {leaks[:3] or ''}", ours + len(leaks))
    table.check(f"{mode}: refused as unknown", not refused, ", ".join(refused[:5]) or 0, 0)
    table.check(f"{mode}: others changed", not touched, ", ".join(touched[:5]) or 0, 0)
    strangers = sorted(n for n, file in limited["views"].items() if file != OURS)
    table.check(
        f"{mode}: NVML names that are ours",
        not strangers,
        f"{len(limited['views']) - len(strangers)} {strangers or ''}",
        len(limited["views"]),
    )
    if mode == "timesharing":
        launch = {
            n: limited["symbols"][n] == plain["symbols"][n] for n in plain["symbols"] if n.startswith("cuLaunchKernel")
        }
        table.check(
            "launches are the driver's own pointer",
            all(launch.values()),
            f"{sum(launch.values())} of {len(launch)}",
            "all",
        )


def tenants_launch_pointer(tenant: Tenant) -> str:
    """The file that contains a tenant's cuLaunchKernel, looked up as cudart does."""
    with tenant.start("address, cuda = ptr(), Cuda()\n" + _WHERE) as program:
        return str(program.receive()["file"])


_WHERE = """
class Info(c.Structure):
    _fields_ = [("file", c.c_char_p), ("base", ptr), ("name", c.c_char_p), ("address", ptr)]
cuda.call("cuGetProcAddress_v2", b"cuLaunchKernel", c.byref(address), 12000, u64(0), None)
info, libc = Info(), c.CDLL(None)
libc.dladdr.argtypes = [ptr, ptr]
libc.dladdr(address.value, c.addressof(info))
report(file=os.path.basename(info.file.decode()))
"""
