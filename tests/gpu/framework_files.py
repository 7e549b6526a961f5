"""Code that must be in a file: a Triton kernel, whose source Triton reads, and a multiprocessing worker."""

from __future__ import annotations

import os
from typing import Any


def reader(there: Any, back: Any) -> None:
    """Receives a tensor, reads one byte of it, and holds it until told to end."""
    import torch

    x = there.get(timeout=90)
    back.put((int(x[-1]), os.getpid()))
    torch.cuda.synchronize()
    there.get(timeout=90)


def added(x: Any, y: Any) -> Any:
    import torch

    out = torch.empty_like(x)
    add[(x.numel() + 1023) // 1024,](x, y, out, x.numel(), BLOCK=1024)
    return out


try:
    import triton
    import triton.language as tl
except ImportError:
    pass
else:

    @triton.jit  # type: ignore[untyped-decorator]  # Triton has no types
    def add(x, y, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton's language, not Python's
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < n
        tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)
