"""Which files' tensors make the difference between two measurements."""

from __future__ import annotations

from collections import Counter

from bisect_recompute.probe.result import ProbeResult

NOTABLE = 0.1


def moved_files(good: ProbeResult, bad: ProbeResult) -> set[str]:
    """Files that make tensors of which more or fewer are alive at the bad peak; what is under a tenth of the largest such
    difference is left out. Lines are not compared: unrelated edits move them."""
    if not good.memory or not bad.memory:
        return set()
    bytes_of: Counter = Counter()
    for sign, memory in ((1, bad.memory), (-1, good.memory)):
        for tensor in memory.tensors:
            bytes_of[tensor.file, tensor.module, tensor.shape, tensor.dtype] += sign * tensor.bytes
    largest = max(map(abs, bytes_of.values()), default=0)
    return {key[0] for key, size in bytes_of.items() if size and key[0] and abs(size) >= NOTABLE * largest}
