"""Stand-in for the flash-attn package, version 2: what its functions return, keep for backward and need in between.

Shapes: q, k, v and out [batch, sequence, heads, head size], or [tokens, heads, head size] where sequences are packed
(varlen); softmax_lse fp32 [batch, heads, sequence] or [heads, tokens]. Not modelled: the fp32 accumulators of split-KV
kernels, which small batches without dropout may use.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import sys
import types

import torch

from bisect_recompute.probe.simulate import flops
from bisect_recompute.probe.simulate.device import SimulatedGpu

VERSION = "2.7.4.post1"
ROUND_SEQUENCE, ROUND_HEAD = 128, 32


def _empty(shape, dtype):
    return torch.empty(shape, dtype=dtype, device="cuda")


def _forward(q, k, v, causal):
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = (q.shape[1], q.shape[0]) if q.dim() == 3 else (q.shape[0], q.shape[2], q.shape[1])
    _count(q, k, v, causal, backward=False)
    return out, _empty(lse, torch.float32), _empty((0,), q.dtype), _empty((2,), torch.int64)


def _backward(q, k, v, causal):
    """The kernels add up dq in fp32, and dk and dv per query head where heads share them."""
    heads, size = q.shape[-2], -(-q.shape[-1] // ROUND_HEAD) * ROUND_HEAD
    rows = q.shape[0] + ROUND_SEQUENCE if q.dim() == 3 else q.shape[0] * -(-q.shape[1] // ROUND_SEQUENCE) * ROUND_SEQUENCE
    held = [_empty((rows, heads, size), torch.float32), _empty((rows, heads), torch.float32)]
    if k.shape[-2] != heads:
        held += [_empty((*k.shape[:-2], heads, k.shape[-1]), k.dtype) for _ in range(2)]
    _count(q, k, v, causal, backward=True)
    return held[1]


def _count(q, k, v, causal, backward):
    batch, queries, keys = (1, q.shape[0], k.shape[0]) if q.dim() == 3 else (q.shape[0], q.shape[1], k.shape[1])
    gpu = SimulatedGpu.current
    gpu.attention_backend = f"flash (flash-attn {VERSION})"
    gpu.add_flops(flops.attention((batch, q.shape[-2], queries, q.shape[-1]), v.shape[-1], keys, causal, backward))


def _flash_attn_forward(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, *args, **kwargs):
    return _forward(q, k, v, causal)


def _flash_attn_backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p=0.0, softmax_scale=None, causal=False,
                         *args, **kwargs):
    return _backward(q, k, v, causal)


def _flash_attn_varlen_forward(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
                               softmax_scale=None, causal=False, *args, **kwargs):
    return _forward(q, k, v, causal)


def _flash_attn_varlen_backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
                                max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False, *args, **kwargs):
    return _backward(q, k, v, causal)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal):
        out, lse, _, rng_state = _forward(q, k, v, causal)
        ctx.save_for_backward(q, k, v, out, lse, rng_state)
        ctx.causal = causal
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, *_ = ctx.saved_tensors
        gradients = [torch.empty_like(t) for t in (q, k, v)]
        held = _backward(q, k, v, ctx.causal)
        del held
        return (*gradients, None)


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, **kwargs):
    return _Attention.apply(q, k, v, causal)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
                           softmax_scale=None, causal=False, **kwargs):
    return _Attention.apply(q, k, v, causal)


def install():
    """Before Transformer Engine is imported: it looks for the package's version once."""
    functions = {f.__name__: f for f in (
        _flash_attn_forward, _flash_attn_backward, _flash_attn_varlen_forward, _flash_attn_varlen_backward, flash_attn_func,
        flash_attn_varlen_func,
    )}
    modules = {
        "flash_attn": {"__version__": VERSION, "flash_attn_func": flash_attn_func},
        "flash_attn.flash_attn_interface": functions,
        "flash_attn_2_cuda": {"varlen_bwd": _flash_attn_varlen_backward},
    }
    for name, content in modules.items():
        module = types.ModuleType(name)
        module.__dict__.update(content)
        module.__path__ = []
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = module
    real_version = importlib.metadata.version
    importlib.metadata.version = lambda name: VERSION if name in ("flash-attn", "flash_attn") else real_version(name)
