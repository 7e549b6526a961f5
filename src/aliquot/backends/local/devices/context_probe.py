"""Makes a CUDA context on the first GPU it sees, says so, and keeps it until its input ends: see calibration.py.

A program of its own, because a context belongs to a process for good. Standard library only.
"""

from __future__ import annotations

import ctypes
import sys


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    done = cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
    done = done and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    sys.stdout.write("made\n" if done else "not made\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
