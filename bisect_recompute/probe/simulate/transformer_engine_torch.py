"""Stand-in for Transformer Engine's compiled extension: every kernel returns tensors of the right shape and dtype.

Transformer Engine's own Python code runs unchanged; only the calls that would launch a CUDA kernel end here. A kernel
that no one has described raises NotImplementedError with its name, so a gap is a failed probe and never a wrong number.
"""

from __future__ import annotations

import enum
import sys
import types

import torch

from bisect_recompute.probe.simulate import fused_attention, transformer_engine_moe
from bisect_recompute.probe.simulate.device import SimulatedGpu, one_kernel
from bisect_recompute.probe.simulate.user_buffers import CommOverlap, CommOverlapHelper, CommOverlapP2P  # noqa: F401


def _enum(name: str, members: str) -> type:
    return enum.IntEnum(name, members.split(), start=0)


DType = _enum("DType", "kByte kInt32 kFloat32 kFloat16 kBFloat16 kFloat8E4M3 kFloat8E5M2 kFloat4E2M1")
NVTE_Bias_Type = _enum("NVTE_Bias_Type", "NVTE_NO_BIAS NVTE_PRE_SCALE_BIAS NVTE_POST_SCALE_BIAS NVTE_ALIBI")
NVTE_Mask_Type = _enum(
    "NVTE_Mask_Type",
    "NVTE_NO_MASK NVTE_PADDING_MASK NVTE_CAUSAL_MASK NVTE_PADDING_CAUSAL_MASK NVTE_CAUSAL_BOTTOM_RIGHT_MASK "
    "NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK",
)
NVTE_Softmax_Type = _enum(
    "NVTE_Softmax_Type", "NVTE_VANILLA_SOFTMAX NVTE_OFF_BY_ONE_SOFTMAX NVTE_LEARNABLE_SOFTMAX"
)
NVTE_Fused_Attn_Backend = enum.IntEnum(
    "NVTE_Fused_Attn_Backend", {"NVTE_No_Backend": -1, "NVTE_F16_arbitrary_seqlen": 1, "NVTE_FP8": 2}
)
NVTE_QKV_Format = _enum(
    "NVTE_QKV_Format",
    "NVTE_SBHD NVTE_BSHD NVTE_THD NVTE_BSHD_2SBHD NVTE_SBHD_2BSHD NVTE_THD_2BSHD NVTE_THD_2SBHD NVTE_BHSD "
    "NVTE_QKV_Format_NOT_SET",
)
NVTE_QKV_Layout = _enum(
    "NVTE_QKV_Layout",
    "NVTE_SB3HD NVTE_SBH3D NVTE_SBHD_SB2HD NVTE_SBHD_SBH2D NVTE_SBHD_SBHD_SBHD NVTE_BS3HD NVTE_BSH3D NVTE_BSHD_BS2HD "
    "NVTE_BSHD_BSH2D NVTE_BSHD_BSHD_BSHD NVTE_T3HD NVTE_TH3D NVTE_THD_T2HD NVTE_THD_TH2D NVTE_THD_THD_THD "
    "NVTE_SBHD_BSHD_BSHD NVTE_BSHD_SBHD_SBHD NVTE_THD_BSHD_BSHD NVTE_THD_SBHD_SBHD NVTE_Paged_KV_BSHD_BSHD_BSHD "
    "NVTE_Paged_KV_BSHD_SBHD_SBHD NVTE_Paged_KV_SBHD_BSHD_BSHD NVTE_Paged_KV_SBHD_SBHD_SBHD "
    "NVTE_Paged_KV_THD_BSHD_BSHD NVTE_Paged_KV_THD_SBHD_SBHD NVTE_BHSD_BHSD_BHSD NVTE_QKV_Layout_NOT_SET",
)
NVTEScalingMode = _enum(
    "NVTEScalingMode",
    "NVTE_DELAYED_TENSOR_SCALING NVTE_MXFP8_1D_SCALING NVTE_BLOCK_SCALING_1D NVTE_BLOCK_SCALING_2D "
    "NVTE_NVFP4_1D_SCALING NVTE_INVALID_SCALING",
)
NVTERoutingMapFormat = _enum("NVTERoutingMapFormat", "BYTEMAP BITMAP_U8")
NVTEQBHistogramMode = _enum("NVTEQBHistogramMode", "TWO_KERNEL FUSED_ATOMIC")
FP8FwdTensors = _enum(
    "FP8FwdTensors",
    "GEMM1_INPUT GEMM1_WEIGHT GEMM1_OUTPUT GEMM2_INPUT GEMM2_WEIGHT GEMM2_OUTPUT GEMM3_INPUT GEMM3_WEIGHT GEMM3_OUTPUT",
)
FP8BwdTensors = _enum(
    "FP8BwdTensors", "GRAD_OUTPUT1 GRAD_INPUT1 GRAD_OUTPUT2 GRAD_INPUT2 GRAD_OUTPUT3 GRAD_INPUT3"
)
CommOverlapType = _enum("CommOverlapType", "RS AG")
CommOverlapAlgo = _enum(
    "CommOverlapAlgo",
    "BULK_OVERLAP_AG BULK_OVERLAP_RS SPLIT_PIPELINED_AG_P2P SPLIT_PIPELINED_RS SPLIT_PIPELINED_RS_P2P ATOMIC_GEMM_RS "
    "ATOMIC_GEMM_AG_P2P ATOMIC_GEMM_RS_P2P EXTERNAL_BULK_OVERLAP_AG",
)
Float8BlockScaleTensorFormat = _enum("Float8BlockScaleTensorFormat", "GEMM_READY COMPACT")


class FP8TensorMeta:
    scale = None
    scale_inv = None
    amax_history = None


TORCH_DTYPE = {
    DType.kByte: torch.uint8, DType.kInt32: torch.int32, DType.kFloat32: torch.float32, DType.kFloat16: torch.float16,
    DType.kBFloat16: torch.bfloat16,
}


def _dtype(te_dtype, default):
    return default if te_dtype is None else TORCH_DTYPE[int(te_dtype)]


def _empty(shape, dtype):
    return torch.empty(shape, dtype=dtype, device="cuda")


def _quantized(quantizer):
    if quantizer is not None:
        raise NotImplementedError("quantized outputs (FP8) are not simulated")


# --- queries ---------------------------------------------------------------------------------------------------------


def get_cublasLt_version():
    return 130000


def get_cudnn_version():
    return 91400


def get_num_cublas_streams():
    return 4


def get_stream_priority_range():
    return (0, -5)


def device_supports_multicast(*args):
    """NVLink SHARP of Hopper and later."""
    return torch.cuda.get_device_capability() >= (9, 0)


def ubuf_built_with_mpi():
    return False


def get_fused_attn_backend(*args, **kwargs):
    """(backend, reason against it): cuDNN's fused attention takes every bf16/fp16 shape that Megatron trains."""
    return NVTE_Fused_Attn_Backend.NVTE_F16_arbitrary_seqlen, ""


# --- matrix products -------------------------------------------------------------------------------------------------


def generic_gemm(A, transa, B, transb, D, quantizer, output_dtype, bias, bias_dtype, gelu, gelu_in, grad, workspace,
                 workspace_size, accumulate, use_split_accumulator, comm_overlap=None, comm_type=None,
                 extra_output=None, bulk_overlap=False, alpha=1.0, beta=None):
    """cuBLASLt's column-major product: D[..., m] = op(B)[..., k] x op(A)[m, k]; returns (D, bias gradient, GELU input,
    extra output)."""
    _quantized(quantizer)
    m = A.shape[0] if transa else A.shape[-1]
    k = A.numel() // m
    n = B.numel() // k
    if D is None:
        if transb:
            shape = (B.shape[-1], m)
        else:
            shape = (*B.shape[:-1], m)
        D = _empty(shape, _dtype(output_dtype, A.dtype))
    else:
        SimulatedGpu.current.values.forget(D)
    SimulatedGpu.current.add_flops(
        2.0 * m * n * k, A.nbytes + B.nbytes + D.nbytes * (2 if accumulate else 1), A.dtype,
        link=comm_overlap.seconds() if comm_overlap is not None else 0.0,
    )
    bias_grad = _empty((B.shape[-1],), _dtype(bias_dtype, B.dtype)) if grad and bias is not None else None
    if gelu and not grad:
        gelu_in = _empty(D.shape, _dtype(bias_dtype, D.dtype))
    return D, bias_grad, gelu_in, extra_output


def bulk_overlap_ag_with_external_gemm(*args):
    """An all-gather within a user buffer."""


# --- normalisation ---------------------------------------------------------------------------------------------------


def layernorm_fwd(x, weight, bias, eps, out, quantizer, otype, sm_margin, zero_centered_gamma):
    _quantized(quantizer)
    rows = x.shape[:-1].numel()
    y = out if out is not None else _empty(x.shape, _dtype(otype, x.dtype))
    return y, _empty((rows,), torch.float32), _empty((rows,), torch.float32)


def rmsnorm_fwd(x, weight, eps, out, quantizer, otype, sm_margin, zero_centered_gamma):
    _quantized(quantizer)
    y = out if out is not None else _empty(x.shape, _dtype(otype, x.dtype))
    return y, None, _empty((x.shape[:-1].numel(),), torch.float32)


def layernorm_bwd(dz, x, mu, rsigma, gamma, sm_margin, zero_centered_gamma):
    return torch.empty_like(x), torch.empty_like(gamma), torch.empty_like(gamma)


def rmsnorm_bwd(dz, x, rsigma, gamma, sm_margin, zero_centered_gamma):
    return torch.empty_like(x), torch.empty_like(gamma)


# --- rotary embedding and softmax -------------------------------------------------------------------------------------


def fused_rope_forward(input, freqs, *rest):
    return torch.empty_like(input, memory_format=torch.contiguous_format)


def fused_rope_backward(grad, freqs, *rest):
    return torch.empty_like(grad, memory_format=torch.contiguous_format)


def scaled_upper_triang_masked_softmax_forward(x, scale):
    return torch.empty_like(x)


def _softmax_backward_in_place(grad, softmax, scale):
    return grad


scaled_upper_triang_masked_softmax_backward = _softmax_backward_in_place
scaled_softmax_backward = _softmax_backward_in_place
scaled_masked_softmax_backward = _softmax_backward_in_place
scaled_aligned_causal_masked_softmax_backward = _softmax_backward_in_place
scaled_softmax_forward = scaled_upper_triang_masked_softmax_forward
scaled_aligned_causal_masked_softmax_forward = scaled_upper_triang_masked_softmax_forward


def scaled_masked_softmax_forward(x, mask, scale):
    return torch.empty_like(x)


# --- activations -----------------------------------------------------------------------------------------------------


def _activation(x, quantizer=None, *rest):
    _quantized(quantizer)
    return torch.empty_like(x)


def _gated_activation(x, quantizer=None, *rest):
    _quantized(quantizer)
    return _empty((*x.shape[:-1], x.shape[-1] // 2), x.dtype)


def _activation_backward(grad, x, quantizer=None, *rest):
    _quantized(quantizer)
    return torch.empty_like(x)


gelu = relu = srelu = silu = qgelu = _activation
geglu = reglu = sreglu = swiglu = qgeglu = glu = clamped_swiglu = _gated_activation
dgelu = drelu = dsrelu = dsilu = dqgelu = _activation_backward
dgeglu = dreglu = dsreglu = dswiglu = dqgeglu = dglu = clamped_dswiglu = _activation_backward


# --- optimiser -------------------------------------------------------------------------------------------------------


def _in_place(*args, **kwargs):
    return None


def _updates(chunk_size, noop_flag, tensor_lists, *rest):
    """Gradients are read, everything else is read and written."""
    return tensor_lists[1:]


multi_tensor_adam = multi_tensor_adam_param_remainder = multi_tensor_adam_capturable = _updates
multi_tensor_adam_capturable_master = multi_tensor_adam_fp8 = multi_tensor_sgd = _updates
multi_tensor_scale = multi_tensor_compute_scale_and_scale_inv = multi_tensor_scale_tensor = _in_place


def multi_tensor_l2norm(chunk_size, noop_flag, tensor_lists, per_tensor=False):
    """Returns (norm fp32 [1], per-tensor norms); the kernel keeps 320 partial sums while it runs."""
    total = torch.zeros((1,), dtype=torch.float32, device="cuda")
    each = len(tensor_lists[0]) if per_tensor else 0
    return total, torch.zeros((each,), dtype=torch.float32, device="cuda")


multi_tensor_unscale_l2norm = multi_tensor_l2norm


class _Undescribed:
    """A kernel whose outputs nobody has described."""

    def __init__(self, name):
        self.__name__ = name

    def __call__(self, *args, **kwargs):
        raise NotImplementedError(f"Transformer Engine's kernel {self.__name__} is not simulated")


PRODUCTS = {generic_gemm, transformer_engine_moe.te_general_grouped_gemm}
"""They say themselves what they move: a workspace is among their operands."""


def install(names: frozenset[str]):
    """Puts this module where Transformer Engine looks for its extension; ``names`` are those its Python code uses."""
    module = types.ModuleType("transformer_engine_torch")
    contents = {**vars(fused_attention), **vars(transformer_engine_moe), **globals()}
    public = {name: value for name, value in contents.items() if not name.startswith("_")}
    for name, value in public.items():
        if isinstance(value, types.FunctionType) and value not in PRODUCTS:
            public[name] = one_kernel(value)
    module.__dict__.update({name: _Undescribed(name) for name in names})
    module.__dict__.update(public)
    module.__getattr__ = lambda name: _Undescribed(name) if not name.startswith("__") else _missing(name)
    sys.modules["transformer_engine_torch"] = module


def _missing(name):
    raise AttributeError(name)
