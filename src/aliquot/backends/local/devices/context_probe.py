"""Creates a CUDA context on the first GPU it sees, reports it, and holds it until its input ends (context_memory.py).

A separate program, because a context stays with its process for good. Standard library only.
"""

from __future__ import annotations

import ctypes
import sys


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    created = cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
    created = created and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    sys.stdout.write("made\n" if created else "not made\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
