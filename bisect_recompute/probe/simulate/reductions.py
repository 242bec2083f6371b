"""What PyTorch's reduction kernels hold while they run (aten/src/ATen/native/cuda/Reduce.cuh, native/ReduceOpsUtils.h).

A sum that few thread blocks could do is split over the GPU, and partial results meet in a buffer. It is taken once per thread
of a block's width, not once per output: the gradient of a bias, [2048, 15360] bf16 summed over its rows, takes 135 MiB on an
H100. Sums of integers and truths first convert the whole operand to the dtype of the result.
"""

from __future__ import annotations

import math

import torch

from bisect_recompute.probe.simulate.memory import MemoryTracker
from bisect_recompute.probe.simulate.values import Values

aten = torch.ops.aten
META = torch.device("meta")
HALF = (torch.bfloat16, torch.float16)

MOST_THREADS = 512
"""Of a block, over outputs that one thread reads at once."""
WARP = 32
THREADS_PER_MULTIPROCESSOR = 2048
FEWEST_VALUES, MOST_VALUES = 16, 256
"""Per thread."""


def staging_bytes(shape, strides, dims, itemsize: int, accumulator: int, multiprocessors: int) -> tuple[int, int]:
    """(partial results, counters of finished blocks) for a sum over ``dims``; ``itemsize`` and ``accumulator`` are bytes of
    an operand's element and of what it is added up in. (0, 0): every output is one block's."""
    reduced = _merged([(strides[d], n) for d, n in enumerate(shape) if d in dims and n > 1])
    kept = _merged([(strides[d], n) for d, n in enumerate(shape) if d not in dims and n > 1])
    inputs, outputs = math.prod(n for _, n in reduced), math.prod(n for _, n in kept)
    along_fastest = not kept or bool(reduced) and reduced[0][0] < kept[0][0]
    vector = 1
    if along_fastest:
        contiguous = not reduced or reduced[0][0] == 1
        step = (8 if itemsize == 2 else 4) if contiguous and inputs >= 128 and len(reduced) == 1 else 1
        width, height = inputs // step, outputs
    else:
        if kept[0][0] == 1:
            vector = math.gcd(4, kept[0][1], *(stride for stride, _ in reduced + kept[1:]))
        width, height = outputs // vector, inputs
    width, height = _block(width, height, MOST_THREADS // vector)
    values = -(-inputs // width) if along_fastest else inputs
    if values < min(height * 16, MOST_VALUES):
        return 0, 0
    values = -(-values // height)
    grid = -(-(outputs // vector) // (1 if along_fastest else width))
    target = multiprocessors * (THREADS_PER_MULTIPROCESSOR // (width * height))
    if values < MOST_VALUES or grid > target:
        return 0, 0
    parts = max(min(-(-target // grid), -(-values // FEWEST_VALUES)), -(-values // MOST_VALUES))
    if parts == 1:
        return 0, 0
    return accumulator * outputs * parts * (1 if along_fastest else width * vector), 4 * grid


def _merged(dimensions: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(stride, size) from the fastest on; neighbours that are one run of memory become one."""
    merged: list[tuple[int, int]] = []
    for stride, size in sorted(dimensions):
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = (merged[-1][0], merged[-1][1] * size)
        else:
            merged.append((stride, size))
    return merged


def _block(width: int, height: int, most: int) -> tuple[int, int]:
    def power_of_2(n):
        return 1 << (min(max(n, 1), most).bit_length() - 1)

    widest, highest = power_of_2(width), power_of_2(height)
    height = min(highest, most // min(widest, WARP))
    return min(widest, most // height), height


class Reductions:
    def __init__(self, values: Values, tracker: MemoryTracker, multiprocessors: int):
        self.values, self.tracker, self._multiprocessors = values, tracker, multiprocessors

    def reduce(self, func, tensor, dim=None, *args, **kwargs):
        out = func(tensor, dim, *args, **kwargs) if dim is not None else func(tensor, **kwargs)
        if tensor.is_meta and tensor.numel():
            self._stage(tensor, dim, out)
        return out

    def _stage(self, tensor, dim, out):
        self.tracker.see(out)
        if tensor.dtype != out.dtype and not (tensor.dtype in HALF and out.dtype == torch.float32):
            tensor = self._hold(tensor.shape, out.dtype)
        dims = range(tensor.dim()) if dim is None or dim == [] else dim if isinstance(dim, (list, tuple)) else [dim]
        dims, size = {d % max(tensor.dim(), 1) for d in dims}, tensor.element_size()
        staged = staging_bytes(tensor.shape, tensor.stride(), dims, size, max(size, 4), self._multiprocessors)
        _held = [self._hold((count,), torch.uint8) for count in staged if count]

    def count_nonzero(self, func, tensor, dim=None):
        """The sum of a bool tensor of the operand's shape. Of floats that are not known none is zero."""
        if not tensor.is_meta:
            return func(tensor, dim) if dim is not None else func(tensor)
        nonzero = tensor if tensor.dtype is torch.bool else self._hold(tensor.shape, torch.bool)
        dims = list(range(tensor.dim())) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
        count = torch.sum(nonzero, dims)
        self._stage(nonzero, dims, count)
        if tensor.dtype.is_floating_point and not self.values.known(tensor):
            self.values.assign(count, torch.full(count.shape, tensor.numel() // max(count.numel(), 1)))
        return count

    def _hold(self, shape, dtype) -> torch.Tensor:
        """Memory as long as it is referred to."""
        tensor = torch.empty(shape, dtype=dtype, device=META)
        self.tracker.see(tensor)
        return tensor

    def answers(self) -> dict:
        return {
            aten.sum.default: self.reduce,
            aten.sum.dim_IntList: self.reduce,
            aten.mean.default: self.reduce,
            aten.mean.dim: self.reduce,
            aten.count_nonzero.default: self.count_nonzero,
            aten.count_nonzero.dim_IntList: self.count_nonzero,
        }
