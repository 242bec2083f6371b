"""What PyTorch's reductions hold while they run on a GPU.

The oracle of the split sums is arithmetic on PyTorch's rules: threads read 4 neighbouring outputs each, so a block is 32
threads wide and 4 high; it leaves (rows / 4) values to a thread, and the rest of 132 x 16 blocks on an H100 shares them,
down to 16 each.
"""

from collections import defaultdict

import pytest
import torch

from bisect_recompute.probe.gpu import GPUS
from bisect_recompute.probe.simulate.device import SimulatedGpu
from bisect_recompute.probe.simulate.memory import MemoryTracker

META = torch.device("meta")


def peak_of(reduce, *shape, dtype=torch.bfloat16, gpu="h100", change=lambda tensor: tensor):
    """Bytes of the largest total while ``reduce`` runs, over those of its operand."""
    tracker = MemoryTracker(defaultdict(lambda: None))
    with SimulatedGpu(tracker, GPUS[gpu]):
        operand = change(torch.empty(shape, dtype=dtype, device=META))
        before = tracker.peak = tracker.allocated
        reduce(operand)
        return tracker.peak - before


def over_rows(tensor):
    return tensor.sum(dim=0)


@pytest.mark.parametrize(
    ("outputs", "gpu", "parts"),
    # 120 blocks of 128 outputs: 2112 / 120 each on H100, 1728 / 120 on A100; of 60 and 30, never more than 512 / 16.
    [(15360, "h100", 18), (15360, "a100", 15), (7680, "h100", 32), (7680, "a100", 29), (3840, "h100", 32)],
)
def test_the_gradient_of_a_bias_is_staged_once_per_thread(outputs, gpu, parts):
    staged = outputs * 4 * parts * 32 * 4
    result, counters = -(-outputs * 2 // 512) * 512, 512
    assert peak_of(over_rows, 2048, outputs, gpu=gpu) == staged + counters + result


@pytest.mark.parametrize(
    ("reduce", "shape", "held"),
    [
        (lambda t: t.sum(dim=-1), (2048, 15360), 4096),  # each output is one block's: only the result
        (over_rows, (512, 4096), 8192),  # 128 values to a thread are too few to share
        (over_rows, (2048, 3), 512),
    ],
)
def test_what_one_block_does_is_not_staged(reduce, shape, held):
    assert peak_of(reduce, *shape) == held


def test_neighbouring_dimensions_are_one():
    rows = peak_of(lambda t: t.sum(dim=(0, 1)), 512, 4, 15360)
    assert rows == peak_of(over_rows, 2048, 15360)
    assert rows == peak_of(lambda t: t.sum(dim=1), 2048, 15360, change=torch.t)


def test_truths_are_summed_as_integers():
    """6000 truths as int64 beside the result; nothing of that for what is a float already."""
    assert peak_of(torch.sum, 6000, dtype=torch.bool) == 48128 + 512
    assert peak_of(torch.sum, 6000, dtype=torch.float32) == 512
    assert peak_of(lambda t: t.sum(dtype=torch.float32), 6000) == 512


def test_no_unknown_float_counts_as_zero():
    """Where numbers differ from 0 takes a byte each, and then as much as the sum of truths."""
    counts = []
    peak = peak_of(lambda t: counts.append(t.count_nonzero().item()), 3, 2000, dtype=torch.float32)
    assert (counts, peak) == ([6000], 6144 + 48128 + 512)
    peak_of(lambda t: counts.append(torch.zeros_like(t).count_nonzero().item()), 5)
    assert counts == [6000, 0]
