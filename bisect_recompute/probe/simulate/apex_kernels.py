"""Stand-ins for the compiled extensions of Apex that NVIDIA's images carry and Megatron Core uses when they import."""

from __future__ import annotations

import torch

from bisect_recompute.probe.simulate.device import SimulatedGpu, one_kernel
from bisect_recompute.probe.simulate.placeholders import register


def _accumulate_weight_gradient(total_input, grad_output, main_grad):
    """main_grad [out, in] += grad_output [tokens, out]^T x total_input [tokens, in], in place."""
    SimulatedGpu.current.add_flops(2.0 * total_input.numel() * grad_output.shape[-1])


@one_kernel
def _softmax(scores, *rest):
    return torch.empty_like(scores)


@one_kernel
def _softmax_backward(grad, softmax, scale):
    return grad  # the kernel writes over the incoming gradient


def _batches_per_block(queries, keys, batch, heads):
    """128 threads a block, one warp a row, two rows a warp up to 128 keys."""
    warp = min(1 << max(keys - 1, 1).bit_length(), 32)
    return 128 // warp * (2 if keys <= 128 else 1)


class _LayerNorm(torch.autograd.Function):
    """Apex's layer normalisation: keeps the input (or, memory-efficient, the output) and two fp32 numbers a row."""

    @staticmethod
    @one_kernel
    def _run(ctx, x, weight, bias, memory_efficient):
        rows = x.shape[:-1].numel() if x.dim() > 1 else 1
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        statistics = [torch.empty(rows, dtype=torch.float32, device="cuda") for _ in range(1 if memory_efficient else 2)]
        ctx.save_for_backward(out if memory_efficient else x, weight, bias, *statistics)
        return out

    @staticmethod
    @one_kernel
    def _gradients(ctx, grad):
        kept, weight, bias, *_ = ctx.saved_tensors
        return torch.empty_like(kept), torch.empty_like(weight), torch.empty_like(bias)


class FastLayerNormFN(_LayerNorm):
    @staticmethod
    def forward(ctx, x, gamma, beta, epsilon, memory_efficient=False):
        return _LayerNorm._run(ctx, x, gamma, beta, memory_efficient)

    @staticmethod
    def backward(ctx, grad):
        return (*_LayerNorm._gradients(ctx, grad), None, None)


class FusedLayerNormAffineFunction(_LayerNorm):
    @staticmethod
    def forward(ctx, input, weight, bias, normalized_shape, eps, memory_efficient=False):
        return _LayerNorm._run(ctx, input, weight, bias, memory_efficient)

    @staticmethod
    def backward(ctx, grad):
        return (*_LayerNorm._gradients(ctx, grad), None, None, None)


class _Rotary(torch.autograd.Function):
    """A rotated copy; backward needs the angles alone."""

    @staticmethod
    @one_kernel
    def forward(ctx, t, freqs):
        ctx.save_for_backward(freqs)
        return torch.empty_like(t, memory_format=torch.contiguous_format)

    @staticmethod
    @one_kernel
    def backward(ctx, grad):
        return torch.empty_like(grad, memory_format=torch.contiguous_format), None


def fused_apply_rotary_pos_emb(t, freqs, transpose_output_memory=False):
    return _Rotary.apply(t, freqs)


def fused_apply_rotary_pos_emb_thd(t, cu_seqlens, freqs):
    return _Rotary.apply(t, freqs)


def install():
    modules = {
        "apex": {}, "apex.contrib": {}, "apex.normalization": {}, "apex.contrib.layer_norm": {},
        "apex.contrib.layer_norm.layer_norm": {"FastLayerNormFN": FastLayerNormFN},
        "apex.normalization.fused_layer_norm": {"FusedLayerNormAffineFunction": FusedLayerNormAffineFunction},
        "apex.transformer": {},
        "apex.transformer.functional": {
            "fused_apply_rotary_pos_emb": fused_apply_rotary_pos_emb,
            "fused_apply_rotary_pos_emb_thd": fused_apply_rotary_pos_emb_thd,
        },
        "fused_weight_gradient_mlp_cuda": {
            "wgrad_gemm_accum_fp32": _accumulate_weight_gradient, "wgrad_gemm_accum_fp16": _accumulate_weight_gradient,
        },
        **{
            name: {"forward": _softmax, "backward": _softmax_backward, "get_batch_per_block": _batches_per_block}
            for name in ("scaled_masked_softmax_cuda", "scaled_upper_triang_masked_softmax_cuda", "scaled_softmax_cuda")
        },
    }
    register(modules)
