"""Transformer Engine's attention kernels: cuDNN's fused attention and what context parallelism does around it.

Buffers and shapes: transformer_engine/pytorch/csrc/extensions/attention.cpp and
transformer_engine/common/fused_attn/fused_attn_f16_arbitrary_seqlen.cu. Not counted: cuDNN's own workspace.
"""

from __future__ import annotations

import torch

from bisect_recompute.probe.simulate import flops
from bisect_recompute.probe.simulate.device import SimulatedGpu


def _empty(shape, dtype):
    return torch.empty(shape, dtype=dtype, device="cuda")


def _unquantized(*quantizers):
    if any(quantizer is not None for quantizer in quantizers):
        raise NotImplementedError("FP8 attention is not simulated")


def _packed(layout) -> bool:
    return layout.name.removeprefix("NVTE_").startswith("T")


def _seq_first(name: str) -> bool:
    return name.removeprefix("NVTE_").startswith("S")


def _count(layout, mask, q, k, v, cu_seqlens_q, backward: bool):
    """Packed sequences count as if they were of equal length."""
    gpu = SimulatedGpu.current
    gpu.attention_backend = "fused (cuDNN)"
    if _packed(layout):
        batch, queries, keys = 1, q.shape[0], -(-k.shape[0] // (cu_seqlens_q.numel() - 1))
    else:
        seq, batch_axis = (0, 1) if _seq_first(layout.name) else (1, 0)
        batch, queries, keys = q.shape[batch_axis], q.shape[seq], k.shape[seq]
    shape = (batch, q.shape[-2], queries, q.shape[-1])
    gpu.add_flops(flops.attention(shape, v.shape[-1], keys, "CAUSAL" in mask.name, backward), attention=True)


def fused_attn_fwd(
    max_seqlen_q, max_seqlen_kv, is_training, attn_scale, dropout, set_zero, layout, o_format, scale_format, bias_type,
    mask, softmax_type, window, bottom_right, cu_seqlens_q, cu_seqlens_kv, q, k, v, fake_dtype, cu_seqlens_q_padded,
    cu_seqlens_kv_padded, page_table_k, page_table_v, s_quantizer, o_quantizer, bias, softmax_offset, rng_gen,
    rng_elts_per_thread, return_max_logit=False, cuda_graph=False,
):
    """Returns [output, softmax statistics fp32 [b, h, sq, 1] ([tokens, h, 1] of packed sequences), maxima of the same
    shape where they are wanted, rng_state int64 [2], the bias and the softmax offset where there are such]."""
    _unquantized(s_quantizer, o_quantizer)
    if page_table_k is not None:
        raise NotImplementedError("attention over a paged cache is not simulated")
    if not _packed(layout) and _seq_first(o_format.name) != _seq_first(layout.name):
        raise NotImplementedError(f"fused attention from {layout.name} to {o_format.name} is not simulated")
    out = _empty((*q.shape[:-1], v.shape[-1]), q.dtype)
    _count(layout, mask, q, k, v, cu_seqlens_q, backward=False)
    heads = q.shape[-2]
    statistics = (q.shape[0], heads, 1) if _packed(layout) else (cu_seqlens_q.numel() - 1, heads, max_seqlen_q, 1)
    rng_state = _empty((2,), torch.int64)
    kept = [_empty(statistics, torch.float32) for _ in range(2 if return_max_logit else 1)]
    biased = bias_type.name not in ("NVTE_NO_BIAS", "NVTE_ALIBI")
    offset = softmax_type.name != "NVTE_VANILLA_SOFTMAX"
    return [out, *kept, rng_state, *([bias] if biased else []), *([softmax_offset] if offset else [])]


def fused_attn_bwd(
    max_seqlen_q, max_seqlen_kv, attn_scale, dropout, set_zero, layout, o_format, do_format, gradient_layout,
    scale_format, do_scale_format, bias_type, mask, softmax_type, window, bottom_right, deterministic, cu_seqlens_q,
    cu_seqlens_kv, q, k, v, o, d_o, fake_dtype, aux, cu_seqlens_q_padded=None, cu_seqlens_kv_padded=None,
    s_quantizer=None, dp_quantizer=None, dqkv_quantizer=None, cuda_graph=False,
):
    """Returns [dq, dk, dv, gradient of the bias, of the softmax offset fp32 [1, h, 1, 1]]."""
    _unquantized(s_quantizer, dp_quantizer, dqkv_quantizer)
    _count(layout, mask, q, k, v, cu_seqlens_q, backward=True)
    biased = bias_type.name not in ("NVTE_NO_BIAS", "NVTE_ALIBI")
    offset = softmax_type.name != "NVTE_VANILLA_SOFTMAX"
    return [
        *_gradients(gradient_layout, q, k, v), _empty(aux[-1].shape, q.dtype) if biased else None,
        _empty((1, q.shape[-2], 1, 1), torch.float32) if offset else None,
    ]


def _gradients(layout, q, k, v):
    """They share one buffer where q, k and v are slices of one."""
    name = layout.name
    if "3" in name:  # one buffer [..., 3, h, d] or [..., h, 3, d]
        axis = -3 if name.endswith("3HD") else -2
        return _empty(_with(q.shape, axis, 3), q.dtype).unbind(axis)
    if "2" in name:
        axis = -3 if name.endswith("2HD") else -2
        return (_empty(q.shape, q.dtype), *_empty(_with(k.shape, axis, 2), k.dtype).unbind(axis))
    return _empty(q.shape, q.dtype), _empty(k.shape, k.dtype), _empty(v.shape, v.dtype)


def _with(shape, axis: int, parts: int) -> list[int]:
    shape = list(shape)
    shape.insert(len(shape) + 1 + axis, parts)
    return shape


# --- for flash-attn ---------------------------------------------------------------------------------------------------


def fa_prepare_fwd(qkv):
    """[s, b, h, 3 d], given by its first third -> [3, b, s, h, d]."""
    sequence, batch, heads, head_dim = qkv.shape
    return _empty((3, batch, sequence, heads, head_dim), qkv.dtype)


def fa_prepare_bwd(q, k, v):
    """Three of [b, s, h, d] -> [s, b, h, 3 d]."""
    batch, sequence, heads, head_dim = q.shape
    return _empty((sequence, batch, heads, 3 * head_dim), q.dtype)


# --- context parallelism over packed sequences ------------------------------------------------------------------------


def thd_read_half_tensor(tensor, cu_seqlens, half):
    """Half of the tokens of [t, h, d] or [2, t, h, d], copied."""
    shape = list(tensor.shape)
    shape[tensor.dim() - 3] //= 2
    return _empty(shape, tensor.dtype)


def thd_read_second_half_lse(lse, cu_seqlens, lse_packed, second_half_lse_seqlen):
    return _empty((*lse.shape[:-1], second_half_lse_seqlen), lse.dtype)


def thd_get_partitioned_indices(cu_seqlens, total_tokens, world_size, rank):
    return _empty((total_tokens // world_size,), torch.int32)


def thd_sequence_order_to_cp_rank_order(tensor, cu_seqlens, cp_size, total_tokens):
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


thd_cp_rank_order_to_sequence_order = thd_sequence_order_to_cp_rank_order


def _in_place(*args):
    return None


thd_second_half_lse_correction = thd_out_correction = thd_grad_correction = _in_place
thd_copy_valid_tokens_from_per_split_to_rank_local = _in_place


def convert_thd_to_bshd(tensor, cu_seqlens, batch, longest):
    return _empty((batch, longest, *tensor.shape[1:]), tensor.dtype)


def convert_bshd_to_thd(tensor, cu_seqlens, tokens):
    return _empty((tokens, *tensor.shape[2:]), tensor.dtype)
