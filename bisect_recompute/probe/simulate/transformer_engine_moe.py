"""Transformer Engine's kernels for mixtures of experts: grouped matrix products and the fused router.

What they allocate follows its sources (``csrc/extensions/router.cpp``): probabilities in the dtype of the logits, a
bool routing map and an fp32 intermediate, all [tokens, experts]. The map routes evenly, like every top-k over unknown
scores.
"""

from __future__ import annotations

import functools

import torch

from bisect_recompute.probe.simulate.device import SimulatedGpu
from bisect_recompute.probe.simulate.traffic import nbytes


def te_general_grouped_gemm(A, transa, B, transb, D, output_dtype, m_splits, bias, bias_dtype, single_output, gelu_in,
                            grad, workspace, workspace_size, accumulate, use_split_accumulator, math_sm_count):
    """One product per expert, into the tensors D that the caller has made; returns the bias (grad: its gradient)."""
    gpu = SimulatedGpu.current
    count = sum(2.0 * b.numel() * (a.shape[0] if transa and not transb else a.shape[-1]) for a, b in zip(A, B))
    gpu.add_flops(count, nbytes(A) + nbytes(B) + nbytes(D), A[0].dtype)
    for written in D:
        gpu.values.forget(written)
    return bias


@functools.lru_cache(None)
def _evenly(tokens: int, experts: int, k: int):
    def routing_map():
        chosen = (torch.arange(tokens * k) % experts).view(tokens, k)
        return torch.zeros((tokens, experts), dtype=torch.bool).scatter(1, chosen, True)

    return routing_map


def _routed(logits: torch.Tensor, topk: int, routing_map_format) -> torch.Tensor:
    if int(routing_map_format) != 0:
        raise NotImplementedError("routing maps as bits (BITMAP_U8) are not simulated")
    routing_map = torch.empty(logits.shape, dtype=torch.bool, device="cuda")
    SimulatedGpu.current.values.apply(routing_map, _evenly(logits.shape[:-1].numel(), logits.shape[-1], topk))
    return routing_map


def _fp32_like(logits: torch.Tensor) -> torch.Tensor:
    return torch.empty(logits.shape, dtype=torch.float32, device="cuda")


def fused_topk_with_score_function_fwd(logits, topk, use_pre_softmax, num_groups, group_topk, scaling_factor,
                                       score_function, expert_bias, routing_map_format=0, topk_indices=None):
    """Returns (probabilities, routing map, intermediate)."""
    if topk_indices is not None:
        raise NotImplementedError("the fused router's dense indices are not simulated")
    probs = torch.empty_like(logits, memory_format=torch.contiguous_format)
    return probs, _routed(logits, topk, routing_map_format), _fp32_like(logits)


def fused_topk_with_score_function_bwd(*args, **kwargs):
    """Writes into the gradient that the caller has made."""


def fused_score_for_moe_aux_loss_fwd(logits, topk, score_function, routing_map_format=0):
    """Returns (scores fp32, routing map, intermediate)."""
    return _fp32_like(logits), _routed(logits, topk, routing_map_format), _fp32_like(logits)


def fused_score_for_moe_aux_loss_bwd(*args, **kwargs):
    """Writes into the gradient that the caller has made."""


def fused_moe_aux_loss_fwd(probs, tokens_per_expert, total_num_tokens, num_experts, num_rows, num_cols, topk, coeff):
    """Returns (loss, constant), one number each."""
    loss = torch.empty((), dtype=probs.dtype, device="cuda")
    return loss, torch.empty((), dtype=torch.float32, device="cuda")


fused_moe_aux_loss_fwd_graph_safe = fused_moe_aux_loss_fwd


def fused_moe_aux_loss_bwd(Const_buf, tokens_per_expert, num_rows, num_cols, grad_aux_loss):
    return torch.empty((num_rows, num_cols), dtype=grad_aux_loss.dtype, device="cuda")
