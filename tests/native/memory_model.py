"""A model of the memory that the processes of one container hold: the driver's rounding and what is charged."""

from __future__ import annotations

from dataclasses import dataclass, field

MIB = 1 << 20
BLOCK, CHUNK, CONTEXT = 2 * MIB, 32 * MIB, 518 * MIB
OWNED = ("alloc", "pitch", "managed", "array", "array3d", "mipmap")  # freed with their context


def up(n: int, to: int) -> int:
    return -(-n // to) * to


@dataclass
class SharedBlock:
    """A block that small allocations share: filled from the front, freed with the last allocation."""

    context: int
    free: int = BLOCK
    live: int = 0


@dataclass
class Allocation:
    allocator: str
    bytes: int  # held for this allocation alone, or taken from its pool
    context: int
    block: SharedBlock | None = None


@dataclass
class Process:
    allocations: dict[str, Allocation] = field(default_factory=dict)
    blocks: list[SharedBlock] = field(default_factory=list)
    contexts: int = -1  # in addition to the first; -1: none yet
    used: dict[str, int] = field(default_factory=lambda: {"async": 0, "graph": 0})

    def managed(self) -> int:
        return sum(p.bytes for p in self.allocations.values() if p.allocator == "managed")

    def held(self) -> int:
        """Bytes charged: the context, large allocations, blocks of small ones, and pools in their steps."""
        alone = sum(p.bytes for p in self.allocations.values() if not p.block and p.allocator not in self.used)
        pools = sum(up(n, CHUNK) for n in self.used.values())
        blocks = BLOCK * sum(b.live > 0 for b in self.blocks)
        return (CONTEXT if self.contexts >= 0 else 0) + alone + pools + blocks

    def _block(self, size: int) -> SharedBlock:
        """The first block with enough space, as the driver chooses, or a new one."""
        for block in self.blocks:
            if block.live and block.context == self.contexts and block.free >= size:
                return block
        fresh = SharedBlock(self.contexts)
        for i, block in enumerate(self.blocks):
            if not block.live:
                self.blocks[i] = fresh
                return fresh
        self.blocks.append(fresh)
        return fresh

    def take(self, allocator: str, n: int, name: str) -> None:
        allocation = Allocation(allocator, size_of(allocator, n), self.contexts)
        if allocator in self.used:
            self.used[allocator] += allocation.bytes
        elif allocator in ("alloc", "pitch") and allocation.bytes < BLOCK:
            allocation.block = self._block(allocation.bytes)
            allocation.block.free -= allocation.bytes
            allocation.block.live += 1
        else:
            allocation.bytes = up(allocation.bytes, BLOCK)
        self.allocations[name] = allocation

    def free(self, name: str) -> None:
        allocation = self.allocations.pop(name)
        if allocation.allocator in self.used:
            self.used[allocation.allocator] -= allocation.bytes
        if allocation.block:
            allocation.block.live -= 1

    def end(self) -> None:
        for name in [n for n, p in self.allocations.items() if p.allocator in OWNED and p.context == self.contexts]:
            self.free(name)
        self.contexts -= 1


def size_of(allocator: str, n: int) -> int:
    match allocator:
        case "alloc" | "async":
            return up(n, 512)
        case "pitch":
            return up(min(n, 65536), 512) * max(1, n // 65536)
        case "from-pool":
            return up(n, CHUNK)  # in a pool of its own
        case "array":
            return up(65536 * up(max(8, n // 65536), 8), BLOCK)
        case "array3d":
            return up(MIB * max(1, n // MIB), BLOCK)
        case "mipmap":
            whole = up(32768 * up(max(8, n // 32768), 8), BLOCK)
            return whole + whole // 3
    return n
