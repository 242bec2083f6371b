"""Lets Megatron Core train for real on a machine without a GPU: what it asks of CUDA is done by the processor, with gloo.

Every number is computed; only where tensors lie is another. Of a GPU's memory or speed that says nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import typing

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

from bisect_recompute.probe.simulate import placeholders

CPU = torch.device("cpu")


class _OnProcessor(TorchFunctionMode):
    """Whatever is asked for on ``cuda`` is made on the CPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.device:
            return CPU if str(args[0] if args else kwargs.get("type")).startswith("cuda") else function(*args, **kwargs or {})
        if function is torch.Tensor.cuda:
            return args[0]
        if function is torch.Tensor.type and len(args) == 1 and not kwargs:
            return function(*args).replace("torch.", "torch.cuda.")  # optimizers refuse what is not on the GPU
        kwargs = {name: _here(value) for name, value in (kwargs or {}).items()}
        if isinstance(kwargs.get("device"), int):  # its number
            kwargs["device"] = CPU
        return function(*map(_here, args), **kwargs)


def _here(value):
    if isinstance(value, torch.device):
        return CPU if value.type == "cuda" else value
    return CPU if isinstance(value, str) and value.partition(":")[0] == "cuda" else value


class _InOrder(contextlib.ContextDecorator):
    """A stream or event: on the processor everything is done in the order of the calls."""

    def __init__(self, *args, **kwargs):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return None

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return _nothing

    def query(self):
        return True

    def elapsed_time(self, other):
        return 0.0


def _nothing(*args, **kwargs):
    return None


def install():
    """Before Megatron Core is imported. Transformer Engine cannot run here: revisions take their own layers."""
    importlib.import_module("torch._dynamo")  # indexes torch's functions when it is imported, so before they change
    for name in ("transformer_engine", "apex", "amp_C", "fused_layer_norm_cuda", "flash_attn"):
        sys.modules[name] = None
    placeholders.install()  # Triton has no kernels for a processor
    if not hasattr(typing, "override"):  # Megatron Core since 2026 uses it; Python has it since 3.12
        typing.override = lambda method: method
    answers = {
        "is_available": lambda: True, "is_initialized": lambda: True, "device_count": lambda: 1,
        "current_device": lambda: 0, "default_generators": (torch.default_generator,),
        "_lazy_call": lambda call, **kwargs: call(), "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state), "manual_seed": torch.default_generator.manual_seed,
        "manual_seed_all": _nothing, "get_device_name": lambda device=None: "CPU",
        "get_device_capability": lambda device=None: (0, 0), "is_bf16_supported": lambda *args, **kwargs: True,
        "Stream": _InOrder, "Event": _InOrder, "stream": _InOrder, "device": _InOrder, "current_stream": _InOrder,
        "default_stream": _InOrder, "memory_allocated": lambda *args: 0, "max_memory_allocated": lambda *args: 0,
        "memory_reserved": lambda *args: 0, "max_memory_reserved": lambda *args: 0, "memory_stats": lambda *args: {},
        **dict.fromkeys(("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats", "init", "_lazy_init",
                         "set_stream"), _nothing),
    }
    for name, answer in answers.items():
        for module in (torch.cuda, torch.cuda.random, torch.cuda.memory):
            if module is torch.cuda or hasattr(module, name):
                setattr(module, name, answer)
    for name in ("FloatTensor", "HalfTensor", "BFloat16Tensor", "ByteTensor", "IntTensor", "LongTensor"):
        setattr(torch.cuda, name, getattr(torch, name))
    torch.jit.script = lambda function=None, *args, **kwargs: function
    torch.compile = lambda function=None, **options: function if function is not None else lambda f: f
    _use_gloo()
    _OnProcessor().__enter__()


def _use_gloo():
    init, new = dist.init_process_group, dist.new_group
    dist.init_process_group = lambda backend=None, **kwargs: init("gloo", **_without_device(kwargs))
    dist.new_group = lambda *args, backend=None, pg_options=None, **kwargs: new(*args, backend="gloo", **_without_device(kwargs))
    dist.distributed_c10d.new_group = dist.new_group


def _without_device(kwargs: dict) -> dict:
    return {name: value for name, value in kwargs.items() if name not in ("device_id", "pg_options")}
