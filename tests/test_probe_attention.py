"""Transformer Engine's own attention module on the simulated GPU: what it keeps for backward, from the shapes."""

import json
import subprocess
import sys

import pytest

BATCH, SEQUENCE, HEADS, HEAD_DIM = 2, 512, 8, 128
BF16, FP32, ROUND = 2, 4, 512
TOKENS = BATCH * SEQUENCE
OUTPUT = TOKENS * HEADS * HEAD_DIM * BF16
STATISTICS = TOKENS * HEADS * FP32

PROGRAM = f"""
import json, os
from bisect_recompute.probe.gpu import GPUS
from bisect_recompute.probe.simulate import runtime
runtime.prepare(GPUS["h100"])
import torch
from transformer_engine.pytorch import DotProductAttention
from bisect_recompute.probe.simulate.device import SimulatedGpu
from bisect_recompute.probe.simulate.memory import MemoryTracker

class Files(dict):
    __missing__ = lambda self, code: None

def kept(flash, fused, packed):
    os.environ["NVTE_FLASH_ATTN"], os.environ["NVTE_FUSED_ATTN"] = str(int(flash)), str(int(fused))
    import transformer_engine.pytorch.attention.dot_product_attention.dot_product_attention as cache
    cache._attention_backends["backend_selection_requires_update"] = True
    shape = ({TOKENS},) if packed else ({SEQUENCE}, {BATCH})
    qkv = torch.empty((*shape, {HEADS}, 3 * {HEAD_DIM}), dtype=torch.bfloat16, device="cuda", requires_grad=True)
    q, k, v = qkv.split({HEAD_DIM}, dim=-1)
    if packed:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    module = DotProductAttention({HEADS}, {HEAD_DIM}, attention_dropout=0.0, qkv_format="thd" if packed else "sbhd",
                                 attn_mask_type="padding_causal" if packed else "causal")
    lengths = {{}}
    if packed:
        starts = torch.arange(0, {TOKENS} + 1, {SEQUENCE}, dtype=torch.int32, device="cuda")
        lengths = dict(cu_seqlens_q=starts, cu_seqlens_kv=starts, max_seqlen_q={SEQUENCE}, max_seqlen_kv={SEQUENCE})
    module(q, k, v, **lengths)  # what is cached stays from here on
    before = gpu.tracker.allocated
    out = module(q, k, v, **lengths)
    held = gpu.tracker.allocated - before
    torch.autograd.grad(out, qkv, torch.empty_like(out))
    return {{"backend": gpu.attention_backend, "kept": held}}

SimulatedGpu.current = gpu = SimulatedGpu(MemoryTracker(Files()), GPUS["h100"])
with gpu:
    found = {{
        "flash": kept(True, False, False), "fused": kept(False, True, False), "both": kept(True, True, False),
        "flash packed": kept(True, False, True), "fused packed": kept(False, True, True),
    }}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def rounded(*sizes: int) -> int:
    return sum(-(-size // ROUND) * ROUND for size in sizes)


def test_fused_attention_keeps_its_output_and_one_number_a_row(found):
    assert found["fused"]["backend"] == "fused (cuDNN)"
    assert found["fused"]["kept"] == rounded(OUTPUT, STATISTICS, 16)


def test_flash_attention_keeps_its_operands_and_output_with_the_batch_first_too(found):
    assert found["flash"]["backend"] == "flash-attn 2.7.4.post1"
    assert found["flash"]["kept"] == rounded(3 * OUTPUT, OUTPUT, STATISTICS, 16, OUTPUT)


def test_hopper_prefers_the_fused_kernel_where_both_are_installed(found):
    assert found["both"] == found["fused"]


@pytest.mark.parametrize("backend", ["flash packed", "fused packed"])
def test_packed_sequences_need_no_copies(found, backend):
    assert found[backend]["kept"] == rounded(OUTPUT, STATISTICS, 16)
    assert found[backend]["backend"].startswith(backend[:5])
