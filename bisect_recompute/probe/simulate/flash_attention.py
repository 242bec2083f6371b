"""Stand-in for the flash-attn package that NVIDIA's PyTorch containers carry: each kernel allocates what the real one does.

Signatures, buffers and their shapes: Dao-AILab/flash-attention v2.7.4.post1, flash_attn/flash_attn_interface.py and
csrc/flash_attn/flash_api.cpp. Transformer Engine calls both the autograd functions and, for context parallelism, the
kernels below them.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import sys

import torch

from bisect_recompute.probe.simulate import flops
from bisect_recompute.probe.simulate.device import SimulatedGpu
from bisect_recompute.probe.simulate.placeholders import register

VERSION = "2.7.4.post1"
LARGEST_HEAD = 256
NAME = f"flash-attn {VERSION}"


def _empty(shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="cuda")


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _rounded_head(head_dim: int) -> int:
    return _up(head_dim, 32) if head_dim <= 192 else LARGEST_HEAD


def _multiprocessors() -> int:
    return torch.cuda.get_device_properties().multi_processor_count


def _row_major_heads(*tensors):
    return [t if t.stride(-1) == 1 else t.contiguous() for t in tensors]


def _check(q, k, v):
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only supports fp16 and bf16")
    if q.shape[-1] % 8 or q.shape[-1] > LARGEST_HEAD or v.shape[-1] != q.shape[-1] or q.shape[-2] % k.shape[-2]:
        raise RuntimeError(f"FlashAttention takes no heads of shape q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")


# --- kernels ---------------------------------------------------------------------------------------------------------


def _flash_attn_forward(q, k, v, dropout_p, softmax_scale, causal, window_size_left=-1, window_size_right=-1, softcap=0.0,
                        alibi_slopes=None, return_softmax=False):
    """q [b, sq, h, d], k and v [b, sk, hk, d] -> (out like q, softmax_lse fp32 [b, h, sq], probabilities, rng_state)."""
    q, k, v = _row_major_heads(q, k, v)
    _check(q, k, v)
    batch, queries, heads, head_dim = q.shape
    keys = k.shape[1]
    out = torch.empty_like(q)
    lse = _empty((batch, heads, queries))
    probabilities = _probabilities(q.dtype, batch, heads, queries, keys, return_softmax)
    parts = 1 if dropout_p else splits(batch * heads * -(-queries // 64), keys, head_dim, 2 * _multiprocessors())
    if parts > 1:  # partial results, freed when the kernel has been launched
        held = [_empty((parts, batch, heads, queries)), _empty((parts, batch, heads, queries, _rounded_head(head_dim)))]
        del held
    _count((batch, heads, queries, head_dim), keys, causal, backward=False)
    return out, lse, probabilities, _empty((2,), torch.int64)


def _flash_attn_varlen_forward(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale,
                               causal, window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None,
                               return_softmax=False, block_table=None, leftpad_k=None, seqused_k=None, zero_tensors=False):
    """Packed sequences, q [total, h, d], k and v [total, hk, d] -> (out like q, softmax_lse fp32 [h, total], ...)."""
    if block_table is not None:
        raise NotImplementedError("flash-attn over a paged cache is not simulated")
    q, k, v = _row_major_heads(q, k, v)
    _check(q, k, v)
    batch, heads = cu_seqlens_q.numel() - 1, q.shape[1]
    out = torch.empty_like(q)
    lse = _empty((heads, q.shape[0]))
    probabilities = _probabilities(q.dtype, batch, heads, max_seqlen_q, max_seqlen_k, return_softmax)
    _count_packed(q, k, batch, causal, backward=False)
    return out, lse, probabilities, _empty((2,), torch.int64)


def _flash_attn_backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal, window_size_left=-1,
                         window_size_right=-1, softcap=0.0, alibi_slopes=None, deterministic=False, rng_state=None):
    """Writes dq, dk and dv; returns fp32 [b, h, sq up to a multiple of 128]."""
    dout, q, k, v, out = _row_major_heads(dout, q, k, v, out)
    batch, queries, heads, head_dim = q.shape
    rows = _up(queries, 128)
    softmax_d = _empty((batch, heads, rows))
    _accumulate_gradients(deterministic, batch, heads, (batch, rows, heads, _rounded_head(head_dim)), k)
    _count((batch, heads, queries, head_dim), k.shape[1], causal, backward=True)
    return softmax_d


def _flash_attn_varlen_backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
                                max_seqlen_k, dropout_p, softmax_scale, causal, window_size_left=-1, window_size_right=-1,
                                softcap=0.0, alibi_slopes=None, deterministic=False, rng_state=None, zero_tensors=False):
    """Writes dq, dk and dv; returns fp32 [h, total + 128 rows a sequence]."""
    dout, q, k, v, out = _row_major_heads(dout, q, k, v, out)
    batch, (total, heads, head_dim) = cu_seqlens_q.numel() - 1, q.shape
    rows = total + 128 * batch
    softmax_d = _empty((heads, rows))
    _accumulate_gradients(deterministic, batch, heads, (rows, heads, _rounded_head(head_dim)), k)
    _count_packed(q, k, batch, causal, backward=True)
    return softmax_d


def _accumulate_gradients(deterministic, batch, heads, shape, k):
    """What the backward kernel holds while it runs: dq in fp32 (deterministic: one for each group of multiprocessors), and
    with grouped queries dk and dv of every query head, of which each sum goes through dk's and dv's own memory."""
    parts = (-(-_multiprocessors() // (batch * heads)),) if deterministic else ()
    held = [_empty((*parts, *shape))]
    if k.shape[-2] != heads:
        expanded = (*k.shape[:-2], heads, k.shape[-1])
        held += [_empty(expanded, k.dtype), _empty(expanded, k.dtype)]


def _probabilities(dtype, batch, heads, queries, keys, wanted):
    return _empty((batch, heads, _up(queries, 128), _up(keys, 128)) if wanted else (0,), dtype)


def splits(blocks: int, keys: int, head_dim: int, slots: int) -> int:
    """Into how many parts the forward kernel splits the keys where ``blocks`` of queries leave slots of the GPU empty: the
    fewest that reach 85 % of the best occupancy; not at all where the blocks fill 80 % of the slots."""
    key_blocks = -(-keys // (256 if head_dim <= 64 else 128 if head_dim <= 128 else 64))
    if blocks >= 0.8 * slots:
        return 1
    occupancy = {}
    for parts in range(1, min(128, slots, key_blocks) + 1):
        if parts == 1 or -(-key_blocks // parts) != -(-key_blocks // (parts - 1)):
            occupancy[parts] = blocks * parts / slots / -(-blocks * parts // slots)
    best = max(occupancy.values(), default=0.0)
    return next((parts for parts, reached in occupancy.items() if reached >= 0.85 * best), 1)


def _count(shape, keys, causal, backward):
    gpu = SimulatedGpu.current
    gpu.attention_backend = NAME
    gpu.add_flops(flops.attention(shape, shape[-1], keys, causal, backward), attention=True)


def _count_packed(q, k, batch, causal, backward):
    """Sequences of equal length stand for the packed ones."""
    _count((1, q.shape[1], q.shape[0], q.shape[2]), -(-k.shape[0] // batch), causal, backward)


# --- autograd functions ----------------------------------------------------------------------------------------------


def _padded(*tensors):
    """Heads of a multiple of 8."""
    missing = -tensors[0].shape[-1] % 8
    return [torch.nn.functional.pad(t, [0, missing]) if missing else t for t in tensors]


class FlashAttnFunc(torch.autograd.Function):
    """Keeps q, k, v, the output and its statistics; ``packed``: (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)."""

    @staticmethod
    def forward(ctx, q, k, v, packed, dropout_p, causal, deterministic, return_softmax, enabled):
        grad = enabled and any(x.requires_grad for x in (q, k, v))
        head_dim = q.shape[-1]
        q, k, v = _padded(q, k, v)
        kernel = _flash_attn_varlen_forward if packed else _flash_attn_forward
        out, lse, probabilities, rng_state = kernel(
            q, k, v, *packed, dropout_p, None, causal, return_softmax=return_softmax and dropout_p > 0
        )
        if grad:
            ctx.save_for_backward(q, k, v, out, lse, rng_state, *packed[:2])
            ctx.longest, ctx.settings = packed[2:], (dropout_p, causal, deterministic)
        out = out[..., :head_dim]
        return (out, lse, probabilities) if return_softmax else out

    @staticmethod
    def backward(ctx, dout, *rest):
        q, k, v, out, lse, rng_state, *starts = ctx.saved_tensors
        dropout_p, causal, deterministic = ctx.settings
        gradients = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        kernel = _flash_attn_varlen_backward if starts else _flash_attn_backward
        kernel(*_padded(dout), q, k, v, out, lse, *gradients, *starts, *ctx.longest, dropout_p, None, causal,
               deterministic=deterministic, rng_state=rng_state)
        return (*(g[..., : dout.shape[-1]] for g in gradients), *[None] * 6)


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                    alibi_slopes=None, deterministic=False, return_attn_probs=False):
    return FlashAttnFunc.apply(q, k, v, (), dropout_p, causal, deterministic, return_attn_probs, torch.is_grad_enabled())


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
                           causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
                           return_attn_probs=False, block_table=None):
    if block_table is not None:
        raise NotImplementedError("flash-attn over a paged cache is not simulated")
    packed = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return FlashAttnFunc.apply(q, k, v, packed, dropout_p, causal, deterministic, return_attn_probs, torch.is_grad_enabled())


# --- the package -----------------------------------------------------------------------------------------------------


def _undescribed(name: str):
    def function(*args, **kwargs):
        raise NotImplementedError(f"flash-attn's {name} is not simulated")

    function.__name__ = name
    return function


class _Distribution(importlib.metadata.Distribution):
    def read_text(self, filename):
        return f"Metadata-Version: 2.1\nName: flash-attn\nVersion: {VERSION}\n" if filename == "METADATA" else None

    def locate_file(self, path):
        return path


class _DistributionFinder:
    """Answers ``importlib.metadata`` for flash-attn, and finds no module."""

    def find_spec(self, name, path=None, target=None):
        return None

    def find_distributions(self, context=importlib.metadata.DistributionFinder.Context()):
        wanted = None if context.name is None else context.name.lower().replace("_", "-")
        return [_Distribution()] if wanted in (None, "flash-attn") else []


def install():
    functions = {"flash_attn_func": flash_attn_func, "flash_attn_varlen_func": flash_attn_varlen_func,
                 "flash_attn_with_kvcache": _undescribed("flash_attn_with_kvcache")}
    kernels = {kernel.__name__: kernel for kernel in (
        _flash_attn_forward, _flash_attn_varlen_forward, _flash_attn_backward, _flash_attn_varlen_backward)}
    rotary = {"apply_rotary_emb": _undescribed("apply_rotary_emb")}
    modules = {
        "flash_attn": {"__version__": VERSION, **functions}, "flash_attn.flash_attn_interface": functions | kernels,
        "flash_attn.layers": {}, "flash_attn.layers.rotary": rotary,
        "flash_attn_2_cuda": {"varlen_bwd": _undescribed("varlen_bwd")},
    }
    register(modules)
    sys.meta_path.insert(0, _DistributionFinder())
