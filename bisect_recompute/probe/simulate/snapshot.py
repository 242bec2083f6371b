"""A simulated step as a PyTorch memory snapshot, the pickle that https://pytorch.org/memory_viz opens.

Its trace has an ``alloc``, ``free_requested`` and ``free_completed`` event for each block, in the order in which they happened;
the time of an event is its number, in microseconds. A block's frames are the line of the commit's code that made it, and the
module that ran.
"""

from __future__ import annotations

import pickle
from pathlib import Path

STREAM = 0


def write(path: Path, events: list, capacity_bytes: int):
    """``events``: (block, bytes given out; negative: freed). Raises OSError."""
    trace = []
    for time, (block, size) in enumerate(events):
        event = {"addr": block.address, "size": abs(size), "stream": STREAM, "time_us": time, "frames": _frames(block)}
        if size > 0:
            trace.append({"action": "alloc", **event})
        else:
            trace.append({"action": "free_requested", **event})
            trace.append({"action": "free_completed", **event})
    alive = {}
    for block, size in events:
        alive[block] = alive.get(block, 0) + size
    snapshot = {
        "device_traces": [trace],
        "segments": [_segment(block, size) for block, size in alive.items() if size],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "total_memory": capacity_bytes},
        "external_annotations": [],
    }
    with open(path, "wb") as file:
        pickle.dump(snapshot, file)


def _frames(block) -> list[dict]:
    dtype = str(block.dtype).removeprefix("torch.")
    what = f"{block.module or block.phase} {list(block.shape)} {dtype}"
    return [{"filename": block.code or "?", "line": block.line, "name": what}]


def _segment(block, size: int) -> dict:
    """Each living block as a segment of its own: where blocks lie within segments is not part of the trace."""
    return {
        "device": 0, "address": block.address, "total_size": size, "allocated_size": size, "active_size": size,
        "requested_size": size, "stream": STREAM, "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False,
        "frames": _frames(block),
        "blocks": [{"address": block.address, "size": size, "requested_size": size, "state": "active_allocated",
                    "frames": _frames(block)}],
    }
