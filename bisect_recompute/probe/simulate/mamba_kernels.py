"""Stand-ins for mamba_ssm and causal_conv1d: what their Mamba-2 functions return, keep for backward and hold in between.

b batch, s sequence, h heads, p head size, g groups, n state size, c chunks of l tokens. Shapes and lifetimes are those of
the public Triton implementation (state-spaces/mamba, ssd_combined.py and its parts); the kernels only write into them.
"""

from __future__ import annotations

import torch

from bisect_recompute.probe.simulate.device import SimulatedGpu, one_kernel
from bisect_recompute.probe.simulate.placeholders import register

VERSIONS = {"mamba_ssm": "2.2.5", "causal_conv1d": "1.6.0"}
FP32 = torch.float32


def _new(*shape, dtype=FP32):
    return torch.empty(shape, dtype=dtype, device="cuda")


class _Sizes:
    def __init__(self, x, groups: int, state: int, chunk: int):
        self.b, self.s, self.h, self.p = x
        self.g, self.n, self.l = groups, state, chunk
        self.c = -(-self.s // chunk)

    def splits(self) -> int:
        """Partial sums over heads of a group, as many as keep every multiprocessor busy."""
        ratio = self.h // self.g
        multiprocessors = torch.cuda.get_device_properties("cuda").multi_processor_count
        per_program = max(min(-(-self.b * self.c * self.h // multiprocessors), ratio), 1)
        return -(-ratio // per_program)

    def per_token(self):
        return _new(self.b, self.h, self.c, self.l)

    def states(self, dtype=FP32):
        return _new(self.b, self.c, self.h, self.p, self.n, dtype=dtype)

    def blocks(self, *more):
        return _new(self.b, self.c, *more, self.g, self.l, self.l)

    def flops(self) -> float:
        """Forward: C B^T per group, the two products with x per head, and the states of each chunk twice."""
        tokens = self.b * self.s
        return 2.0 * tokens * (self.g * self.l * self.n + self.h * self.l * self.p + 2 * self.h * self.p * self.n)


def _scan_forward(z: _Sizes, dtype, gated: bool):
    """Returns (out, what backward keeps of it); everything else is gone when it returns, as in the real function."""
    SimulatedGpu.current.add_flops(z.flops())
    dt, decay = z.per_token(), z.per_token()
    states = z.states()
    passed, final = z.states(dtype), _new(z.b, z.h, z.p * z.n)
    del states
    products = z.blocks()
    out = _new(z.b, z.s, z.h, z.p, dtype=dtype)
    ungated = _new(z.b, z.s, z.h, z.p, dtype=dtype) if gated else out
    del dt, decay, passed, final, products
    return out, ungated


def _scan_backward(z: _Sizes, dtype, gated: bool):
    """Gradients of x, B, C, z and dt are given by the caller; returns those of A, D and dt_bias."""
    SimulatedGpu.current.add_flops(3 * z.flops())
    dt_in = _new(z.b, z.s, z.h, dtype=dtype)
    dt, decay = z.per_token(), z.per_token()
    products = z.blocks()
    chunk_states = z.states()
    states, final = z.states(), _new(z.b, z.h, z.p * z.n)
    del chunk_states, final
    dout = _new(z.b, z.s, z.h, z.p, dtype=dtype) if gated else None
    dstates = z.states()
    dstates_low, states_low = z.states(dtype), z.states(dtype)
    del dstates, states
    ddt = z.per_token()
    splits = z.splits()
    kept = []
    for _ in ("B", "C"):
        partial = _new(z.b, z.s, splits, z.g, z.n)
        kept += [_new(z.b, z.s, z.g, z.n), z.per_token()]
        del partial
    partial = z.blocks(splits)
    dproducts = z.blocks()
    del partial
    ddecay = [z.per_token() for _ in range(3)]
    del dt_in, dt, decay, products, dout, dstates_low, states_low, ddt, kept, dproducts, ddecay
    return _new(z.h), _new(z.h), _new(z.h)


class _SplitConvScan(torch.autograd.Function):
    """Convolution and scan in one; keeps the projections and the ungated output, the rest is computed again."""

    @staticmethod
    @one_kernel
    def forward(ctx, zxbcdt, conv_weight, conv_bias, dt_bias, A, D, chunk, headdim, groups):
        heads = D.shape[0]
        headdim = headdim or D.shape[1]
        channels = conv_weight.shape[0]
        state = (channels - heads * headdim) // groups // 2
        ctx.sizes = _Sizes((*zxbcdt.shape[:2], heads, headdim), groups, state, chunk)
        convolved = _new(*zxbcdt.shape[:2], channels, dtype=zxbcdt.dtype)
        out, ungated = _scan_forward(ctx.sizes, zxbcdt.dtype, gated=True)
        del convolved
        ctx.save_for_backward(zxbcdt, conv_weight, conv_bias, ungated, A, D, dt_bias)
        return out.view(*out.shape[:2], heads * headdim)

    @staticmethod
    @one_kernel
    def backward(ctx, dout):
        zxbcdt, conv_weight, conv_bias, _, A, D, dt_bias = ctx.saved_tensors
        convolved = _new(*zxbcdt.shape[:2], conv_weight.shape[0], dtype=zxbcdt.dtype)
        dzxbcdt = torch.empty_like(zxbcdt)
        dxbc = torch.empty_like(convolved)
        scan = _scan_backward(ctx.sizes, zxbcdt.dtype, gated=True)
        dweight, dbias = _new(*conv_weight.shape), _new(*conv_weight.shape[:1])
        del convolved, dxbc, scan, dweight, dbias
        return (dzxbcdt, *(torch.empty_like(t) for t in (conv_weight, conv_bias, dt_bias, A, D)), None, None, None)


def mamba_split_conv1d_scan_combined(zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D, chunk_size, initial_states=None,
                                     seq_idx=None, dt_limit=(0.0, float("inf")), return_final_states=False,
                                     activation="silu", rmsnorm_weight=None, rmsnorm_eps=1e-6, outproj_weight=None,
                                     outproj_bias=None, headdim=None, ngroups=1, norm_before_gate=True):
    _only(initial_states, rmsnorm_weight, outproj_weight, return_final_states)
    return _SplitConvScan.apply(zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D, chunk_size, headdim, ngroups)


class _Scan(torch.autograd.Function):
    @staticmethod
    @one_kernel
    def forward(ctx, x, dt, A, B, C, D, z, dt_bias, chunk):
        ctx.sizes = _Sizes(x.shape, B.shape[2], B.shape[3], chunk)
        ctx.gated = z is not None
        out, ungated = _scan_forward(ctx.sizes, x.dtype, ctx.gated)
        ctx.save_for_backward(ungated, x, dt, A, B, C, D, z, dt_bias)
        return out

    @staticmethod
    @one_kernel
    def backward(ctx, dout):
        _, x, dt, A, B, C, D, z, dt_bias = ctx.saved_tensors
        gradients = [None if t is None else torch.empty_like(t) for t in (x, dt, A, B, C, D, z, dt_bias)]
        scan = _scan_backward(ctx.sizes, x.dtype, ctx.gated)
        del scan
        return (*gradients, None)


def mamba_chunk_scan_combined(x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, initial_states=None, seq_idx=None,
                              cu_seqlens=None, dt_softplus=False, dt_limit=(0.0, float("inf")), return_final_states=False,
                              return_varlen_states=False):
    _only(initial_states, cu_seqlens, return_final_states or None, return_varlen_states or None)
    return _Scan.apply(x, dt, A, B, C, D, z, dt_bias, chunk_size)


def _only(*unsupported):
    if any(value is not None and value is not False for value in unsupported):
        raise NotImplementedError("Mamba's scan with initial or final states, or with fused norm or projection, is not simulated")


class _GatedNorm(torch.autograd.Function):
    @staticmethod
    @one_kernel
    def forward(ctx, x, weight, z, group_size):
        rows, columns = x.shape[:-1].numel(), x.shape[-1]
        x, z = x.reshape(rows, columns), None if z is None else z.reshape(rows, columns)
        out = torch.empty_like(x)
        ctx.save_for_backward(x, weight, _new(rows * (columns // (group_size or columns))), z)
        return out

    @staticmethod
    @one_kernel
    def backward(ctx, dout):
        x, weight, _, z = ctx.saved_tensors
        dx = torch.empty_like(x)
        dz = None if z is None else torch.empty_like(z)
        programs = torch.cuda.get_device_properties("cuda").multi_processor_count
        partial = _new(programs, weight.shape[0])
        dweight = torch.empty_like(weight)
        del partial
        return dx, dweight, dz, None


class RMSNorm(torch.nn.Module):
    """mamba_ssm's gated RMSNorm."""

    def __init__(self, hidden_size, eps=1e-5, group_size=None, norm_before_gate=True, device=None, dtype=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)
        self.eps, self.group_size, self.norm_before_gate = eps, group_size, norm_before_gate

    def forward(self, x, z=None):
        shape = x.shape
        return _GatedNorm.apply(x.reshape(-1, shape[-1]), self.weight, z if z is None else z.reshape(-1, shape[-1]),
                                self.group_size).view(shape)


class _Convolution(torch.autograd.Function):
    @staticmethod
    @one_kernel
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight, bias)
        return torch.empty_like(x)

    @staticmethod
    @one_kernel
    def backward(ctx, dout):
        x, weight, bias = ctx.saved_tensors
        sums = _new(*weight.shape), _new(weight.shape[0])
        gradients = torch.empty_like(x), torch.empty_like(weight), None if bias is None else torch.empty_like(bias)
        del sums
        return gradients


def causal_conv1d_fn(x, weight, bias=None, seq_idx=None, initial_states=None, return_final_states=False,
                     final_states_out=None, activation=None):
    _only(initial_states, final_states_out, return_final_states)
    return _Convolution.apply(x, weight, bias)


def causal_conv1d_update(*args, **kwargs):
    raise NotImplementedError("Mamba's inference kernels are not simulated")


def install():
    modules = {
        "mamba_ssm": {"__version__": VERSIONS["mamba_ssm"]},
        "mamba_ssm.ops": {},
        "mamba_ssm.ops.triton": {},
        "mamba_ssm.ops.triton.layernorm_gated": {"RMSNorm": RMSNorm},
        "mamba_ssm.ops.triton.ssd_combined": {
            "mamba_chunk_scan_combined": mamba_chunk_scan_combined,
            "mamba_split_conv1d_scan_combined": mamba_split_conv1d_scan_combined,
        },
        "causal_conv1d": {
            "__version__": VERSIONS["causal_conv1d"], "causal_conv1d_fn": causal_conv1d_fn,
            "causal_conv1d_update": causal_conv1d_update,
        },
    }
    register(modules)
