"""One process stands for one rank of the whole world, through torch's fake process group."""

from __future__ import annotations

import importlib
import sys

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from bisect_recompute.probe.simulate.device import SimulatedGpu


def connect(rank: int, world_size: int):
    """Makes the process group; a later ``init_process_group`` of the commit's code finds it there."""
    dist.init_process_group(backend="fake", store=FakeStore(), rank=rank, world_size=world_size)
    dist.all_gather_object = _all_gather_object
    dist.broadcast_object_list = lambda objects, *args, **kwargs: None
    real_new_group = dist.new_group

    def new_group(*args, backend=None, pg_options=None, **kwargs):
        # Revisions up to core 0.11 make a gloo group beside each one, whatever they are told.
        return real_new_group(*args, backend="fake", **kwargs)

    dist.new_group = dist.distributed_c10d.new_group = new_group
    dist.is_backend_available = lambda backend: backend.lower() in ("nccl", "gloo", "fake")
    for name, position in (("all_reduce", 1), ("reduce_scatter_tensor", 2), ("_reduce_scatter_base", 2)):
        if hasattr(dist, name):
            setattr(dist, name, _telling_reduction(getattr(dist, name), position))
    share_batches()
    rely_on_own_rank()


def _all_gather_object(object_list, obj, group=None):
    object_list[:] = [obj] * len(object_list)


def _telling_reduction(collective, position: int):
    """``position``: of the reduction among the arguments."""

    def told(*args, **kwargs):
        values = SimulatedGpu.current.values
        values.reduction = args[position] if len(args) > position else kwargs.get("op", dist.ReduceOp.SUM)
        try:
            return collective(*args, **kwargs)
        finally:
            values.reduction = dist.ReduceOp.SUM

    return told


def share_batches():
    """``tensor_parallel.broadcast_data`` tells the other ranks the sizes through the GPU, where values do not exist; here
    every rank has the batch and reads them from it."""
    data_module = sys.modules.get("megatron.core.tensor_parallel.data")
    if data_module is None:
        return

    def sizes(keys, data, *args, **kwargs):
        size = {key: list(data[key].size()) for key in keys}
        numel = {key: data[key].numel() for key in keys}
        return size, numel, sum(numel.values())

    data_module._build_key_size_numel_dictionaries = sizes


def rely_on_own_rank():
    """Megatron FSDP asks the other ranks for the sizes of their shards, which differ from rank to rank, to check them; and
    takes over the random states of the first. A rank's own memory depends on neither."""
    fsdp = "megatron.core.distributed.fsdp"
    skip(f"{fsdp}.src.megatron_fsdp.param_and_grad_buffer", "validate_uneven_dtensor")
    skip(f"{fsdp}.mcore_fsdp_adapter", "_load_rng_state_dict")


def skip(module_name: str, function: str):
    """Lets a function of the commit do nothing, where the revision has it."""
    try:
        module = importlib.import_module(module_name)
    except ImportError:  # a revision without it
        return
    if hasattr(module, function):
        setattr(module, function, lambda *args, **kwargs: None)
