"""The GPU's settings, which no test may change, and the facts about the machine for the report."""

from __future__ import annotations

import ctypes as c
import hashlib
import platform
import re
from collections.abc import Callable
from importlib import metadata
from typing import Any

from lab import ROOT, Lab

GRAPHICS, MEMORY = 0, 2  # clocks


def settings(lab: Lab) -> dict[str, str]:
    """The administrator's settings of the GPU, without those that this driver does not report."""
    nvml = lab.nvml()
    device = nvml.device(lab.uuid)
    first, second = c.c_uint(), c.c_uint()
    queries: dict[str, tuple[str, tuple[Any, ...]]] = {
        "compute mode": ("nvmlDeviceGetComputeMode", (c.byref(first),)),
        "MIG, pending MIG": ("nvmlDeviceGetMigMode", (c.byref(first), c.byref(second))),
        "persistence": ("nvmlDeviceGetPersistenceMode", (c.byref(first),)),
        "ECC, pending ECC": ("nvmlDeviceGetEccMode", (c.byref(first), c.byref(second))),
        "power limit": ("nvmlDeviceGetPowerManagementLimit", (c.byref(first),)),
        "application clock": ("nvmlDeviceGetApplicationsClock", (GRAPHICS, c.byref(first))),
        "application memory clock": ("nvmlDeviceGetApplicationsClock", (MEMORY, c.byref(first))),
        "largest clock": ("nvmlDeviceGetMaxClockInfo", (GRAPHICS, c.byref(first))),
        "largest memory clock": ("nvmlDeviceGetMaxClockInfo", (MEMORY, c.byref(first))),
    }
    settings_by_name = {}
    for name, (call, args) in queries.items():
        first.value = second.value = 0
        function = getattr(nvml.lib, call, None)
        if function is not None and function(device, *args) == 0:
            settings_by_name[name] = f"{first.value}, {second.value}" if "," in name else str(first.value)
    return settings_by_name


def machine(lab: Lab) -> list[tuple[str, str]]:
    nvml = lab.nvml()
    device = nvml.device(lab.uuid)
    cuda = c.c_int()
    has_cuda = getattr(nvml.lib, "nvmlSystemGetCudaDriverVersion_v2", lambda _: 1)(c.byref(cuda)) == 0
    rows = [
        ("GPU", f"{_text(lambda t: nvml.lib.nvmlDeviceGetName(device, t, 96))}, {lab.total >> 20} MiB for programs"),
        ("driver", _text(lambda t: nvml.lib.nvmlSystemGetDriverVersion(t, 96))),
        ("CUDA of the driver", f"{cuda.value // 1000}.{cuda.value % 1000 // 10}" if has_cuda else "unknown"),
        ("one context", f"{lab.context / (1 << 20):g} MiB"),
        ("kernel", platform.release()),
        ("Python", platform.python_version()),
        *((name, version(name)) for name in ("torch", "jax", "cupy", "triton")),
        ("library", library(lab)),
    ]
    if lab.fake_driver:
        rows.insert(0, ("NOT A REAL GPU", "the fake driver of tests/native"))
    return rows


def library(lab: Lab) -> str:
    """Its contract and package version, and enough of its hash to distinguish two builds."""
    source = (ROOT / "src" / "aliquot" / "__init__.py").read_text()
    package = re.search(r'__version__ = "([^"]+)"', source)
    digest = hashlib.sha256(lab.library.read_bytes()).hexdigest()[:16]
    return f"{lab.library.name} of aliquot {package[1] if package else '?'}, sha256 {digest}"


def version(name: str) -> str:
    """The version of a distribution, without importing it; CuPy's name contains the version of CUDA."""
    for distribution in metadata.distributions():
        if re.fullmatch(rf"{name}(-cuda\w+)?", distribution.metadata["Name"] or "", re.IGNORECASE):
            return distribution.version
    return "none"


def _text(ask: Callable[[Any], int]) -> str:
    text = c.create_string_buffer(96)
    try:
        return text.value.decode() if ask(text) == 0 else "unknown"
    except AttributeError:
        return "unknown"
