"""Every way to look up a replaced driver function returns the library's; all other functions are the driver's."""

from __future__ import annotations

from pathlib import Path

import pytest

from native.rig import HERE, SOURCE, Rig, compile_library

# `where` returns the file that contains a function; `proc` does so for cuGetProcAddress
WHERE = """
class Info(c.Structure):
    _fields_ = [("file", c.c_char_p), ("base", ptr), ("name", c.c_char_p), ("address", ptr)]
def where(address):
    info = Info()
    dladdr = c.CDLL(None).dladdr
    dladdr.argtypes = [ptr, ptr]
    assert dladdr(address, c.addressof(info)), address
    return os.path.basename(info.file.decode())
def proc(cuda, name, version=13000, flags=0):
    found = ptr()
    code = cuda.lib.cuGetProcAddress_v2(name.encode(), c.byref(found), version, u64(flags), None)
    return where(found.value) if found.value else code
"""
OURS = "libgpushare.so"


def entries(group: str) -> list[str]:
    """The names of a list of entries.h."""
    text = (SOURCE / "entries.h").read_text()
    definition = text.split(f"#define {group}(X)")[1].split("\n\n")[0]
    return [part.split(")")[0] for part in definition.split("X(")[1:]]


@pytest.mark.parametrize("version", [11030, 12000, 13000])
@pytest.mark.parametrize("flags", [0, 2])
def test_proc_address_is_replaced(rig: Rig, version: int, flags: int) -> None:
    """For every version and stream mode, functions that allocate memory are the library's."""
    output = rig.python(
        WHERE + "cuda = Cuda()\nprint(*(proc(cuda, n, int(sys.argv[1]), int(sys.argv[2])) for n in sys.argv[3:]))",
        *(version, flags, "cuMemAlloc", "cuMemAllocAsync", "cuMemCreate"),
        *("cuMemGetInfo", "cuArrayCreate", "cuGetProcAddress"),
    )
    assert set(output) == {OURS}


def test_timesharing_leaves_launches_alone(rig: Rig) -> None:
    """In timesharing mode a program launches kernels through the driver's own function."""
    output = rig.python(
        WHERE + "cuda = Cuda()\nprint(proc(cuda, 'cuLaunchKernel'), where(c.cast(cuda.lib.cuLaunchKernel, ptr).value))"
    )
    assert output == ["libcuda.so.1", "libcuda.so.1"]


def test_fair_gates_launches(rig: Rig) -> None:
    """In fair mode launches go through the lease gate."""
    output = rig.python(WHERE + "print(proc(Cuda(), 'cuLaunchKernel'))", GPUSHARE_MODE="fair")
    assert output == [OURS]


def test_unknown_functions_of_the_driver_are_refused(rig: Rig) -> None:
    """An unknown version of an allocating function is refused, and its name is recorded in the ledger."""
    result = rig.try_python(WHERE + "print(proc(Cuda(), 'cuMemAlloc'))", FAKE_NEW_ABI="cuMemAlloc")
    assert result.out.split() == ["500"]
    assert "gpushare: this driver's cuMemAlloc is unknown; update aliquot" in result.err
    assert b"cuMemAlloc" in rig.ledger.read_bytes()[728:800]


def test_unknown_functions_that_take_no_memory_pass(rig: Rig) -> None:
    """A driver function that cannot allocate memory is not replaced, known or unknown."""
    output = rig.python(WHERE + "print(proc(Cuda(), 'cuDeviceGetName'))", FAKE_NEW_ABI="cuDeviceGetName")
    assert output == ["libcuda.so.1"]


@pytest.mark.parametrize(
    "name,owner", [("libcudart.so.13", OURS), ("libcublasLt.so.13", OURS), ("libnvidia-ptxjit.so.1", "libcuda.so.1")]
)
def test_lookups_by_the_driver_are_not_replaced(rig: Rig, tmp_path: Path, name: str, owner: str) -> None:
    """CUDA's runtime libraries get the library's functions; parts of the driver get the driver's."""
    compile_library(tmp_path / name, [HERE / "caller.c"])
    output = rig.python(
        WHERE + "cuda, lib = Cuda(), c.CDLL(sys.argv[1])\n"
        "lib.ask.restype, lib.ask.argtypes = ptr, [ptr, c.c_char_p]\n"
        "print(where(lib.ask(cuda.lib._handle, b'cuMemAlloc_v2')))",
        tmp_path / name,
    )
    assert output == [owner]


def test_rtld_next_keeps_its_meaning(rig: Rig, tmp_path: Path) -> None:
    """RTLD_NEXT in another preloaded library finds the next definition, as it does without libgpushare."""
    compile_library(tmp_path / "libprofiler.so", [HERE / "caller.c"])
    preload = rig.environment()["LD_PRELOAD"]
    output = rig.python(
        WHERE + "lib = c.CDLL(sys.argv[1])\nlib.ask_next.restype, lib.ask_next.argtypes = ptr, [c.c_char_p]\n"
        "print(where(lib.ask_next(b'malloc')).startswith('libc.'), lib.ask_next(b'only_here'))\n"
        "print(where(lib.ask_next(b'cuMemAlloc_v2')))",
        tmp_path / "libprofiler.so",
        LD_PRELOAD=f"{tmp_path / 'libprofiler.so'} {preload}",
    )
    assert output == ["True", "None", OURS]


def test_functions_of_other_libraries_are_not_replaced(rig: Rig, tmp_path: Path) -> None:
    """A library other than the driver keeps its own function of the same name."""
    source = tmp_path / "other.c"
    source.write_text('__attribute__((visibility("default"))) int cuMemAlloc_v2(void) { return 77; }')
    compile_library(tmp_path / "libstub.so", [source])
    assert rig.python("print(c.CDLL(sys.argv[1]).cuMemAlloc_v2())", tmp_path / "libstub.so") == ["77"]


def test_second_link_namespace_is_limited(rig: Rig) -> None:
    """Lookups in a driver that is loaded into another link namespace return the library's functions."""
    output = rig.python(
        WHERE
        + """
        libc = c.CDLL(None)
        libc.dlmopen.restype, libc.dlmopen.argtypes = ptr, [c.c_long, c.c_char_p, c.c_int]
        libc.dlsym.restype, libc.dlsym.argtypes = ptr, [ptr, c.c_char_p]
        handle = libc.dlmopen(-1, b"libcuda.so.1", 2)
        print(where(libc.dlsym(handle, b"cuMemAlloc_v2")))
        """.replace("\n        ", "\n"),
    )
    assert output == [OURS]


def with_modes(names: str, suffix: str = "_ptsz") -> set[str]:
    """Names that also exist for per-thread default streams."""
    return {n + s for n in names.split() for s in ("", suffix)}


# the functions that the design lists
NAMES = """
cuGetProcAddress cuGetProcAddress_v2
cuMemAlloc_v2 cuMemAllocPitch_v2 cuMemFree_v2 cuMemAlloc cuMemAllocPitch cuMemFree cuMemGetInfo cuDeviceTotalMem
cuMemAllocManaged cuMemPoolCreate cuMemPoolDestroy cuMemPoolTrimTo cuMemPoolSetAttribute cuMemGetInfo_v2
cuMemCreate cuMemRelease cuMemMap cuMemUnmap cuMemRetainAllocationHandle cuMemImportFromShareableHandle
cuArrayCreate_v2 cuArray3DCreate_v2 cuMipmappedArrayCreate cuArrayDestroy cuMipmappedArrayDestroy cuArrayCreate
cuArray3DCreate cuGraphAddMemAllocNode cuGraphAddNode cuGraphAddNode_v2 cuGraphInstantiateWithFlags
cuDeviceGraphMemTrim cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2
cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2 cuCtxCreate cuCtxCreate_v2 cuCtxCreate_v3 cuCtxCreate_v4
cuCtxDestroy cuCtxDestroy_v2 cuGreenCtxCreate cuGreenCtxDestroy cuCtxSetLimit cuModuleLoad cuModuleLoadData
cuModuleLoadDataEx cuModuleLoadFatBinary cuLibraryLoadData cuLibraryLoadFromFile cuDeviceTotalMem_v2
cuLaunchCooperativeKernelMultiDevice cuLaunch cuLaunchGrid cuLaunchGridAsync cuCtxSynchronize cuCtxSynchronize_v2
cuEventSynchronize nvmlDeviceGetMemoryInfo nvmlDeviceGetMemoryInfo_v2 nvmlDeviceGetProcessUtilization
nvmlDeviceGetComputeRunningProcesses nvmlDeviceGetComputeRunningProcesses_v2 nvmlDeviceGetComputeRunningProcesses_v3
nvmlDeviceGetMPSComputeRunningProcesses nvmlDeviceGetMPSComputeRunningProcesses_v2
nvmlDeviceGetMPSComputeRunningProcesses_v3 nvmlDeviceGetGraphicsRunningProcesses
nvmlDeviceGetGraphicsRunningProcesses_v2 nvmlDeviceGetGraphicsRunningProcesses_v3
"""
DESIGNED = (
    set(NAMES.split())
    | with_modes("cuMemAllocAsync cuMemAllocFromPoolAsync cuMemFreeAsync cuGraphInstantiateWithParams cuGraphLaunch")
    | with_modes("cuLaunchKernel cuLaunchKernelEx cuLaunchCooperativeKernel cuStreamSynchronize cuStreamBeginCapture")
    | with_modes("cuStreamBeginCapture_v2 cuStreamBeginCaptureToGraph cuStreamEndCapture")
    | with_modes("cuMemcpyDtoH_v2", "_ptds")
)


def test_the_design_is_covered() -> None:
    """The lists contain every function of the design once, and nothing else."""
    names = [n for group in ("MEMORY_ENTRIES", "COMPUTE_ENTRIES", "NVML_ENTRIES") for n in entries(group)]
    assert len(names) == len(set(names))
    assert set(names) == DESIGNED
