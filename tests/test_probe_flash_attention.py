"""flash-attn on the simulated GPU: what its functions keep and hold, from the shapes. No split keys but where said."""

import json
import subprocess
import sys
import textwrap

import pytest

from bisect_recompute.probe.simulate.flash_attention import splits

BATCH, SEQUENCE, HEADS, GROUPS, HEAD_DIM = 8, 1000, 16, 4, 80
BF16, FP32, ROUND = 2, 4, 512
SEQUENCE_UP, HEAD_DIM_UP = 1024, 96  # multiples of 128 and of 32
MULTIPROCESSORS = 132  # of an H100

PROGRAM = """
import importlib.metadata, json
from bisect_recompute.probe.gpu import GPUS
from bisect_recompute.probe.simulate import runtime
runtime.prepare(GPUS["h100"])
import torch
from bisect_recompute.probe.simulate.device import SimulatedGpu
from bisect_recompute.probe.simulate.memory import MemoryTracker
from flash_attn import flash_attn_func, flash_attn_varlen_func

def measure(attend, q, k, v):
    gpu = SimulatedGpu.current
    tracker = gpu.tracker
    at_rest = tracker.allocated
    out = attend(q, k, v)
    kept = tracker.allocated - at_rest
    dout = torch.empty_like(out)
    tracker.peak = before = tracker.allocated
    torch.autograd.grad(out, (q, k, v), dout)
    return {"kept": kept, "held": tracker.peak - before, "backend": gpu.attention_backend}

class Files(dict):
    __missing__ = lambda self, code: None

def heads(count, *rows):
    return torch.empty((*rows, count, %(d)d), dtype=torch.bfloat16, device="cuda", requires_grad=True)

SimulatedGpu.current = gpu = SimulatedGpu(MemoryTracker(Files()), GPUS["h100"])
b, s, h, g = %(b)d, %(s)d, %(h)d, %(g)d
with gpu:
    starts = torch.arange(0, (b + 1) * s, s, dtype=torch.int32, device="cuda")
    qkv = heads(h, b, s), heads(g, b, s), heads(g, b, s)
    packed = heads(h, b * s), heads(h, b * s), heads(h, b * s)
    few = heads(h, 1, 256), heads(h, 1, 2560), heads(h, 1, 2560)
    found = {
        "grouped": measure(lambda q, k, v: flash_attn_func(q, k, v, causal=True), *qkv),
        "deterministic": measure(lambda q, k, v: flash_attn_func(q, k, v, deterministic=True), *qkv),
        "packed": measure(lambda q, k, v: flash_attn_varlen_func(q, k, v, starts, starts, s, s), *packed),
    }
    before = gpu.tracker.peak = gpu.tracker.allocated
    flash_attn_func(*few)
    found["few queries"] = gpu.tracker.peak - before
print(json.dumps({**found, "version": importlib.metadata.version("flash-attn")}))
"""


@pytest.fixture(scope="module")
def found():
    sizes = {"b": BATCH, "s": SEQUENCE, "h": HEADS, "g": GROUPS, "d": HEAD_DIM}
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(PROGRAM) % sizes], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def rounded(*sizes: int) -> int:
    return sum(-(-size // ROUND) * ROUND for size in sizes)


Q = BATCH * SEQUENCE * HEADS * HEAD_DIM * BF16
KV = BATCH * SEQUENCE * GROUPS * HEAD_DIM * BF16
STATISTICS = BATCH * SEQUENCE * HEADS * FP32
GRADIENTS = (Q, KV, KV)


def test_the_output_one_number_a_row_and_the_generators_state_are_kept(found):
    assert found["grouped"]["kept"] == found["packed"]["kept"] == rounded(Q, STATISTICS, 16)


def test_backward_holds_dq_in_fp32_and_dk_and_dv_of_every_query_head(found):
    softmax = BATCH * HEADS * SEQUENCE_UP * FP32
    assert found["grouped"]["held"] == rounded(*GRADIENTS, softmax, softmax * HEAD_DIM_UP, Q, Q)


def test_a_deterministic_backward_holds_dq_once_for_each_group_of_multiprocessors(found):
    groups = -(-MULTIPROCESSORS // (BATCH * HEADS))
    softmax = BATCH * HEADS * SEQUENCE_UP * FP32
    assert groups == 2
    assert found["deterministic"]["held"] == rounded(*GRADIENTS, softmax, groups * softmax * HEAD_DIM_UP, Q, Q)


def test_packed_sequences_have_128_rows_more_each(found):
    softmax = (BATCH * SEQUENCE + 128 * BATCH) * HEADS * FP32
    assert found["packed"]["held"] == rounded(Q, Q, Q, softmax, softmax * HEAD_DIM_UP)


def test_few_queries_split_the_keys_into_partial_results_in_fp32(found):
    """4 blocks of queries x 16 heads fill 64 of 264 slots; 20 blocks of keys in 4 parts fill 97 % of them."""
    rows = 256 * HEADS
    partial = 4 * rows * FP32
    assert found["few queries"] == rounded(rows * HEAD_DIM * BF16, rows * FP32, partial, partial * HEAD_DIM_UP)


def test_the_documented_example_of_splitting():
    """48 heads on 108 slots: 2 splits have an efficiency of 0.89, 3 of 0.67 (flash-attention's own example)."""
    assert splits(48, 128 * 12, 128, 108) == 2
    assert splits(87, 128 * 12, 128, 108) == 1  # more than 80 % of the slots
    assert splits(48, 128, 128, 108) == 1  # one block of keys cannot be split


def test_what_importlib_says_is_the_version_of_the_containers(found):
    assert found["version"] == "2.7.4.post1"
    assert found["grouped"]["backend"] == "flash-attn 2.7.4.post1"
