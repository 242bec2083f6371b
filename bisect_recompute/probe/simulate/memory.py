"""Counts the bytes of the tensors that live on the simulated GPU.

Every storage on the ``meta`` device stands for one block of CUDA memory. PyTorch's caching allocator rounds each request
up to 512 bytes (c10/cuda/CUDACachingAllocator: kMinBlockSize), and ``torch.cuda.memory_allocated`` counts rounded blocks.
"""

from __future__ import annotations

import re
import sys
import weakref
from collections import Counter

import torch

from bisect_recompute.probe.result import LiveTensors
from bisect_recompute.probe.simulate import allocator

BLOCK = 512
LAYER_NUMBER = re.compile(r"\.\d+(?=\.|$)")


class Block:
    """One storage: its rounded size in bytes and where it came from."""

    __slots__ = ("bytes", "phase", "shape", "dtype", "module", "code", "line", "category", "address", "alive")

    def __init__(self, nbytes, phase, shape, dtype, module, code, line, address):
        self.bytes = nbytes
        self.phase = phase
        self.shape = shape
        self.dtype = dtype
        self.module = module
        self.code = code
        self.line = line
        self.category = None
        self.address = address
        self.alive = True


class _Reference(weakref.ref):
    __slots__ = ("key",)


class MemoryTracker:
    """Keeps the list of allocations and frees, from which totals, peaks and what was alive then are read."""

    def __init__(self, source_files):
        """``source_files[code]`` is the repository path of a code object, None for code to look past."""
        self.phase = "build"
        self.modules: list[str] = []
        self.allocated = 0
        self.peak = 0
        self.events: list[tuple[Block, int]] = []
        self._source_files = source_files
        self._live: dict[int, tuple[_Reference, Block]] = {}
        self.on_free = lambda storage: None
        self._hidden = 0
        self._next_address = 1 << 40
        self._forget = self._make_forget()

    def _make_forget(self):
        live, events = self._live, self.events

        def forget(reference):
            _, block = live.pop(reference.key)
            self.on_free(reference.key)
            block.alive = False
            if block.bytes:
                self.allocated -= block.bytes
                events.append((block, -block.bytes))

        return forget

    def see(self, tensor: torch.Tensor) -> Block:
        """Notes the tensor's storage if it is new."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._live.get(key)
        if known is not None:
            return known[1]
        return self._hold(storage, self._block(storage.nbytes(), tuple(tensor.shape), tensor.dtype))

    def _hold(self, storage: torch.UntypedStorage, block: Block) -> Block:
        reference = _Reference(storage, self._forget)
        reference.key = storage._cdata
        self._live[reference.key] = (reference, block)
        return block

    def block_of(self, tensor: torch.Tensor) -> Block | None:
        known = self._live.get(tensor.untyped_storage()._cdata)
        return known[1] if known else None

    def leave_out(self, tensor: torch.Tensor):
        """GPU memory that does not come from PyTorch's allocator."""
        self._hold(tensor.untyped_storage(), self._block(0, tuple(tensor.shape), tensor.dtype))

    def reserve(self, nbytes: int, what: str):
        """Memory that the CUDA libraries hold through the caching allocator until the process ends."""
        block = self._block(nbytes, (nbytes,), torch.uint8)
        block.category, block.module = "temporary", what

    def resized(self, storage: torch.UntypedStorage):
        """A storage was given another size in place (``untyped_storage().resize_``)."""
        known = self._live.get(storage._cdata)
        if known is None:
            return
        block, now = known[1], _rounded(storage.nbytes())
        if now != block.bytes and not self._hidden:
            if block.bytes:
                self._count(block, -block.bytes)
            if now:
                self._count(block, now)
        block.bytes = now

    def _block(self, nbytes, shape, dtype) -> Block:
        size = _rounded(nbytes)
        code, line = self._origin()
        block = Block(size, self.phase, shape, dtype, self.modules[-1] if self.modules else "", code, line,
                      self._next_address)
        self._next_address += max(size, BLOCK)
        if size and not self._hidden:
            self._count(block, size)
        elif size:
            block.bytes = 0
            self._deferred.append((block, size))
        return block

    def _count(self, block: Block, delta: int):
        self.allocated += delta
        self.events.append((block, delta))
        if self.allocated > self.peak:
            self.peak = self.allocated

    def _origin(self):
        frame = sys._getframe(3)
        source_files = self._source_files
        while frame is not None:
            path = source_files[frame.f_code]
            if path is not None:
                return path, frame.f_lineno
            frame = frame.f_back
        return "", 0

    # A compiled (fused) function writes only what it returns or saves; what its body makes in between stays in registers.
    def begin_fused(self):
        if not self._hidden:
            self._deferred: list[tuple[Block, int]] = []
            self._scattered: set[Block] = set()
            self._copies: list[Block] = []
        self._hidden += 1

    @property
    def fused(self) -> bool:
        """A compiled function runs."""
        return self._hidden > 0

    def written_in_fused(self, tensor: torch.Tensor, scatters: bool):
        """An operand of the compiled function is written in place. Inductor works on copies and writes the result back:
        in one kernel where every element depends on its own place alone, but a scattered write (``index_put_``) needs a
        buffer of its own when more is computed from it."""
        block = self.block_of(tensor)
        if not self._hidden or block is None or not block.bytes:
            return
        if scatters:
            self._scattered.add(block)
        elif block in self._scattered:
            self._scattered.discard(block)
            self._copies.append(self._block(block.bytes, block.shape, block.dtype))

    def end_fused(self):
        self._hidden -= 1
        if self._hidden:
            return
        for block, size in self._deferred:
            if block.alive:
                block.bytes = size
                self._count(block, size)
        for block in self._copies:
            block.alive = False
            self._count(block, -block.bytes)
        self._deferred = []

    def replay(self, expandable_segments: bool) -> list[int]:
        """From now on events say what PyTorch's allocator gives for each request. Returns the bytes that are reserved
        after each event."""
        replayed = allocator.replay(self.events, expandable_segments)
        self.events = replayed.events
        return replayed.reserved

    def peak_between(self, start: int, end: int) -> tuple[int, int]:
        """Largest allocated bytes over events ``start``..``end`` and the index of the event that reached it."""
        total = sum(delta for _, delta in self.events[:start])
        best, at = total, start - 1
        for index in range(start, end):
            total += self.events[index][1]
            if total > best:
                best, at = total, index
        return best, at

    def living(self):
        return [block for _, block in self._live.values()]

    def alive_at(self, index: int) -> dict[Block, int]:
        """Blocks alive after event ``index`` and their bytes."""
        alive: dict[Block, int] = {}
        for block, delta in self.events[: index + 1]:
            alive[block] = alive.get(block, 0) + delta
        return {block: size for block, size in alive.items() if size}


def _rounded(nbytes: int) -> int:
    return -(-nbytes // BLOCK) * BLOCK


CATEGORY_OF_PHASE = {
    "build": "temporary",  # parameters and gradients are marked by name; what is left are workspaces
    "ddp": "temporary",
    "optimizer": "optimizer_state",
    "forward": "activations",
    "recompute": "activations",
    "backward": "temporary",
    "step": "temporary",
}


def category(block: Block) -> str:
    return block.category or CATEGORY_OF_PHASE[block.phase]


def by_category(alive: dict[Block, int]) -> dict[str, int]:
    totals = Counter({name: 0 for name in ("parameters", "gradients", "optimizer_state", "activations", "temporary")})
    for block, size in alive.items():
        totals[category(block)] += size
    return dict(totals)


def grouped(alive: dict[Block, int], most: int) -> tuple[LiveTensors, ...]:
    """The ``most`` largest groups of like tensors, largest first."""
    bytes_of, count_of = Counter(), Counter()
    for block, size in alive.items():
        key = (LAYER_NUMBER.sub(".*", block.module), block.shape, str(block.dtype).removeprefix("torch."), block.code,
               block.line, category(block))
        bytes_of[key] += size
        count_of[key] += 1
    return tuple(
        LiveTensors(module=key[0], shape=key[1], dtype=key[2], bytes=size, count=count_of[key], file=key[3], line=key[4],
                    category=key[5])
        for key, size in bytes_of.most_common(most)
    )
