"""PyTorch's caching allocator (c10/cuda/CUDACachingAllocator.cpp), replayed over a list of allocations and frees.

It decides two numbers. *Allocated*: a block that is only slightly larger than what was asked for is given out whole, and
``torch.cuda.max_memory_allocated`` counts what was given. *Reserved*: whole segments come from CUDA and stay; what lies idle
between live blocks is fragmentation. Modelled is the default configuration on one stream, and ``expandable_segments:True``;
not modelled are the retry after ``cudaMalloc`` fails, ``max_split_size_mb`` and garbage collection of segments.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass

MIB = 1 << 20
MIN_BLOCK = 512
SMALL = MIB
"""Largest request of the pool of small blocks; also the largest remainder that a large block keeps."""
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
MIN_LARGE = 10 * MIB
"""From here on a segment is as large as the request, rounded up to 2 MiB."""
LARGE_ROUNDING = 2 * MIB


class Chunk:
    """A piece of a segment, between its neighbours there."""

    __slots__ = ("size", "address", "before", "after", "free")

    def __init__(self, size: int, address: int, before: Chunk | None = None, after: Chunk | None = None):
        self.size, self.address, self.before, self.after = size, address, before, after
        self.free = True


class Pool:
    """Free chunks by size, then address; the best fit is given."""

    def __init__(self, small: bool, expandable: bool):
        self.expandable = expandable
        # Without limits on splitting a remainder of the large pool is kept whole up to 1 MiB.
        self._least_remainder = MIN_BLOCK if small or expandable else SMALL + 1
        self._page = SMALL_SEGMENT if small else LARGE_SEGMENT
        self._free: list[tuple[int, int]] = []
        self._chunks: dict[int, Chunk] = {}
        self._last: Chunk | None = None  # of the one segment that grows

    def take(self, size: int) -> Chunk | None:
        at = bisect.bisect_left(self._free, (size, 0))
        if at == len(self._free):
            return None
        chunk = self._chunks.pop(self._free.pop(at)[1])
        return self._split(chunk, size)

    def _split(self, chunk: Chunk, size: int) -> Chunk:
        chunk.free = False
        if chunk.size - size >= self._least_remainder:
            rest = Chunk(chunk.size - size, chunk.address + size, chunk, chunk.after)
            if chunk.after is not None:
                chunk.after.before = rest
            elif chunk is self._last:
                self._last = rest
            chunk.size, chunk.after = size, rest
            self._keep(rest)
        return chunk

    def _keep(self, chunk: Chunk):
        chunk.free = True
        self._chunks[chunk.address] = chunk
        bisect.insort(self._free, (chunk.size, chunk.address))

    def _drop(self, chunk: Chunk):
        del self._chunks[chunk.address]
        del self._free[bisect.bisect_left(self._free, (chunk.size, chunk.address))]

    def give_back(self, chunk: Chunk):
        """Neighbours that are free become one with it."""
        for other in (chunk.before, chunk.after):
            if other is None or not other.free:
                continue
            self._drop(other)
            first, second = (other, chunk) if other is chunk.before else (chunk, other)
            first.size += second.size
            first.after = second.after
            if second.after is not None:
                second.after.before = first
            if second is self._last:
                self._last = first
            chunk = first
        self._keep(chunk)

    def new_segment(self, size: int, address: int) -> tuple[int, Chunk]:
        """(bytes from CUDA, the chunk)."""
        if size <= SMALL:
            whole = SMALL_SEGMENT
        else:
            whole = LARGE_SEGMENT if size < MIN_LARGE else -(-size // LARGE_ROUNDING) * LARGE_ROUNDING
        return whole, self._split(Chunk(whole, address), size)

    def grow(self, size: int, address: int) -> tuple[int, Chunk]:
        """The one expandable segment is mapped page by page at its end."""
        tail = self._last if self._last is not None and self._last.free else None
        missing = size - (tail.size if tail else 0)
        mapped = -(-missing // self._page) * self._page
        if tail is not None:
            self._drop(tail)
            tail.size += mapped
        else:
            end = self._last.address + self._last.size if self._last is not None else address
            tail = Chunk(mapped, end, self._last)
            if self._last is not None:
                self._last.after = tail
            self._last = tail
        return mapped, self._split(tail, size)


class CachingAllocator:
    """Bytes ``allocated`` (given out) and ``reserved`` (taken from CUDA)."""

    def __init__(self, expandable_segments: bool = False):
        self._pools = {small: Pool(small, expandable_segments) for small in (True, False)}
        self._expandable = expandable_segments
        self._next_address = 0
        self.allocated = self.reserved = 0

    def malloc(self, size: int) -> Chunk:
        """``size`` in bytes, more than 0."""
        size = -(-size // MIN_BLOCK) * MIN_BLOCK
        pool = self._pools[size <= SMALL]
        chunk = pool.take(size)
        if chunk is None:
            taken, chunk = (pool.grow if self._expandable else pool.new_segment)(size, self._next_address)
            # Segments are not neighbours; a growing one has an address range as large as the GPU.
            self._next_address += (1 << 50) if self._expandable else taken + MIN_BLOCK
            self.reserved += taken
        self.allocated += chunk.size
        return chunk

    def free(self, chunk: Chunk, size: int):
        """``size``: what was asked for, which tells its pool."""
        self.allocated -= chunk.size
        self._pools[size <= SMALL].give_back(chunk)


@dataclass(frozen=True)
class Replay:
    events: list[tuple[object, int]]
    """The given ones with the bytes that were really given out (negative: freed)."""
    reserved: list[int]
    """Bytes taken from CUDA so far, after each event."""


def replay(events: Iterable[tuple[object, int]], expandable_segments: bool = False) -> Replay:
    """``events``: (key, bytes asked for) in order, negative bytes for a free of what the key holds."""
    allocator = CachingAllocator(expandable_segments)
    held: dict[object, tuple[Chunk, int]] = {}
    given, reserved = [], []
    for key, delta in events:
        if delta > 0:
            chunk = allocator.malloc(delta)
            held[key] = chunk, delta
            given.append((key, chunk.size))
        else:
            chunk, size = held.pop(key)
            given.append((key, -chunk.size))
            allocator.free(chunk, size)
        reserved.append(allocator.reserved)
    return Replay(given, reserved)
