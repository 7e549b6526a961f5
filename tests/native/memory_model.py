"""What processes of one container should hold, in plain Python: the driver's rounding, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, field

MIB = 1 << 20
BLOCK, CHUNK, CONTEXT = 2 * MIB, 32 * MIB, 518 * MIB
OWNED = ("alloc", "pitch", "managed", "array", "array3d", "mipmap")  # ends with its context


def up(n: int, to: int) -> int:
    return -(-n // to) * to


@dataclass
class Small:
    """A block that small allocations share: filled from the front, freed with the last of them."""

    context: int
    free: int = BLOCK
    live: int = 0


@dataclass
class Piece:
    way: str
    bytes: int  # that the driver holds for it alone, or of its pool
    context: int
    block: Small | None = None


@dataclass
class Process:
    pieces: dict[str, Piece] = field(default_factory=dict)
    blocks: list[Small] = field(default_factory=list)
    contexts: int = -1  # beside the first; -1: none yet
    used: dict[str, int] = field(default_factory=lambda: {"async": 0, "graph": 0})

    def managed(self) -> int:
        return sum(p.bytes for p in self.pieces.values() if p.way == "managed")

    def held(self) -> int:
        """Charged to it: the context, whole pieces, blocks of small ones, and pools in their steps."""
        alone = sum(p.bytes for p in self.pieces.values() if not p.block and p.way not in self.used)
        pools = sum(up(n, CHUNK) for n in self.used.values())
        blocks = BLOCK * sum(b.live > 0 for b in self.blocks)
        return (CONTEXT if self.contexts >= 0 else 0) + alone + pools + blocks

    def _block(self, size: int) -> Small:
        """The driver takes the first block with room, else the first place for one."""
        for block in self.blocks:
            if block.live and block.context == self.contexts and block.free >= size:
                return block
        fresh = Small(self.contexts)
        for i, block in enumerate(self.blocks):
            if not block.live:
                self.blocks[i] = fresh
                return fresh
        self.blocks.append(fresh)
        return fresh

    def take(self, way: str, n: int, name: str) -> None:
        piece = Piece(way, size_of(way, n), self.contexts)
        if way in self.used:
            self.used[way] += piece.bytes
        elif way in ("alloc", "pitch") and piece.bytes < BLOCK:
            piece.block = self._block(piece.bytes)
            piece.block.free -= piece.bytes
            piece.block.live += 1
        else:
            piece.bytes = up(piece.bytes, BLOCK)
        self.pieces[name] = piece

    def free(self, name: str) -> None:
        piece = self.pieces.pop(name)
        if piece.way in self.used:
            self.used[piece.way] -= piece.bytes
        if piece.block:
            piece.block.live -= 1

    def end(self) -> None:
        for name in [n for n, p in self.pieces.items() if p.way in OWNED and p.context == self.contexts]:
            self.free(name)
        self.contexts -= 1


def size_of(way: str, n: int) -> int:
    match way:
        case "alloc" | "async":
            return up(n, 512)
        case "pitch":
            return up(min(n, 65536), 512) * max(1, n // 65536)
        case "from-pool":
            return up(n, CHUNK)  # a pool of its own
        case "array":
            return up(65536 * up(max(8, n // 65536), 8), BLOCK)
        case "array3d":
            return up(MIB * max(1, n // MIB), BLOCK)
        case "mipmap":
            whole = up(32768 * up(max(8, n // 32768), 8), BLOCK)
            return whole + whole // 3
    return n
