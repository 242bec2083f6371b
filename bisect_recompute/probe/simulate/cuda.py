"""Stand-ins on ``torch.cuda`` for a machine without one: the properties of the recipe's GPU, and streams."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import torch

from bisect_recompute.probe.gpu import Gpu
from bisect_recompute.probe.simulate.device import SimulatedGpu, one_kernel
from bisect_recompute.probe.simulate.streams import Event, Stream, on, put


class CUDAGraph:
    """Its pool keeps what it captured; that is not described yet."""

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("CUDA graphs are not simulated; set cuda_graph_impl to none")


class _Here(contextlib.ContextDecorator):
    """A device or range to work in; may be entered again."""

    def __init__(self, *args, **kwargs):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return None


def install(gpu: Gpu):
    """Replaces what Megatron Core and Transformer Engine ask of ``torch.cuda``, and the two compilers of PyTorch."""
    properties = SimpleNamespace(
        name=f"NVIDIA {gpu.name.upper()}", major=gpu.compute_capability[0], minor=gpu.compute_capability[1],
        total_memory=gpu.memory_bytes, multi_processor_count=gpu.multiprocessors, warp_size=32,
        max_threads_per_multi_processor=2048, shared_memory_per_block_optin=232448, L2_cache_size=50 * 2**20,
    )
    generator = torch.Generator()

    def nothing(*args, **kwargs):
        return None

    def allocated(*args, **kwargs):
        return SimulatedGpu.current.tracker.allocated if SimulatedGpu.current else 0

    answers = {
        "is_available": lambda: True, "is_initialized": lambda: True, "device_count": lambda: 1,
        "current_device": lambda: 0, "set_device": nothing, "init": nothing, "_lazy_init": nothing,
        "_lazy_call": lambda call, **kwargs: call(), "synchronize": nothing, "empty_cache": nothing,
        "ipc_collect": nothing, "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: gpu.compute_capability,
        "get_device_name": lambda device=None: properties.name, "is_bf16_supported": lambda *a, **k: True,
        "Stream": Stream, "ExternalStream": Stream, "Event": Event, "CUDAGraph": CUDAGraph,
        "graph_pool_handle": lambda: (0, 0), "stream": on, "device": _Here,
        "current_stream": lambda device=None: Stream.current, "default_stream": lambda device=None: Stream.main,
        "set_stream": put, "is_current_stream_capturing": lambda: False, "manual_seed": nothing,
        "manual_seed_all": nothing, "seed": nothing, "initial_seed": lambda: 0,
        "default_generators": (generator,), "get_rng_state": lambda device="cuda": generator.get_state(),
        "set_rng_state": lambda state, device="cuda": generator.set_state(state),
        "memory_allocated": allocated, "memory_reserved": allocated,
        "max_memory_allocated": lambda *a, **k: SimulatedGpu.current.tracker.peak, "max_memory_reserved": allocated,
        "reset_peak_memory_stats": nothing, "memory_stats": lambda *a, **k: {}, "mem_get_info":
        lambda *a, **k: (gpu.memory_bytes, gpu.memory_bytes), "_check_capability": nothing,
        "_get_device_index": lambda *a, **k: 0, "_sleep": nothing, "_device_t": None,
    }
    for name, answer in answers.items():
        for module in (torch.cuda, torch.cuda.random, torch.cuda.memory):
            if module is torch.cuda or hasattr(module, name):
                setattr(module, name, answer)
    torch._C._cuda_getDevice = lambda: 0
    torch.cuda.nvtx = SimpleNamespace(range_push=nothing, range_pop=nothing, mark=nothing, range=_Here)
    torch.cuda.cudart = lambda: SimpleNamespace(cudaProfilerStart=nothing, cudaProfilerStop=nothing)
    torch.cuda.cuda = SimpleNamespace() if not hasattr(torch.cuda, "cuda") else torch.cuda.cuda
    torch.version.cuda = "13.0"
    torch._C._set_only_lift_cpu_tensors(True)
    torch.compile = _compile
    torch.jit.script = _script


def _compile(function=None, **options):
    """``torch.compile`` fuses pointwise work: what its body makes in between never reaches memory."""
    if function is None:
        return lambda f: _compile(f, **options)

    kernel = one_kernel(function)

    def fused(*args, **kwargs):
        gpu = SimulatedGpu.current
        if gpu is None:
            return function(*args, **kwargs)
        gpu.tracker.begin_fused()
        try:
            return kernel(*args, **kwargs)
        finally:
            gpu.tracker.end_fused()

    fused.__name__ = getattr(function, "__name__", "fused")
    fused.__wrapped__ = function
    return fused


def _script(function=None, *args, **kwargs):
    return function if function is not None else _script
