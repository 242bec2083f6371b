"""Stand-ins for the compiled extensions of Apex that NVIDIA's images carry and Megatron Core uses when they import."""

from __future__ import annotations

import sys
import types

import torch

from bisect_recompute.probe.simulate.device import SimulatedGpu


def _accumulate_weight_gradient(total_input, grad_output, main_grad):
    """main_grad [out, in] += grad_output [tokens, out]^T x total_input [tokens, in], in place."""
    SimulatedGpu.current.add_flops(2.0 * total_input.numel() * grad_output.shape[-1])


def _softmax(scores, *rest):
    return torch.empty_like(scores)


def _softmax_backward(grad, softmax, scale):
    return grad  # the kernel writes over the incoming gradient


def _batches_per_block(queries, keys, batch, heads):
    """128 threads a block, one warp a row, two rows a warp up to 128 keys."""
    warp = min(1 << max(keys - 1, 1).bit_length(), 32)
    return 128 // warp * (2 if keys <= 128 else 1)


def install():
    modules = {
        "fused_weight_gradient_mlp_cuda": {
            "wgrad_gemm_accum_fp32": _accumulate_weight_gradient, "wgrad_gemm_accum_fp16": _accumulate_weight_gradient,
        },
        **{
            name: {"forward": _softmax, "backward": _softmax_backward, "get_batch_per_block": _batches_per_block}
            for name in ("scaled_masked_softmax_cuda", "scaled_upper_triang_masked_softmax_cuda", "scaled_softmax_cuda")
        },
    }
    for name, functions in modules.items():
        module = types.ModuleType(name)
        module.__dict__.update(functions)
        sys.modules[name] = module
