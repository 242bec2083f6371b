"""What collectives leave in small tensors; beside that they move bytes between buffers that the caller has allocated.

One rank is simulated, so the others are assumed to hold what it holds: each routes as many tokens to each expert as
this one does. A sum over n ranks is then n times the own number; an all-to-all brings from each peer the part of
the own send buffer that would go to this rank. Reductions of what is unknown stay unknown.
"""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist

from bisect_recompute.probe.simulate.values import Values

c10d = torch.ops.c10d


def run(func, args, work):
    """The result of a c10d operator on the fake process group."""
    work = work.boxed()
    returns = len(func._schema.returns)
    if returns == 0:
        return None
    return work if returns == 1 else (args[0], work)


def follow(values: Values, func, args):
    answer = _ANSWERS.get(func)
    if answer is not None:
        answer(values, *args)
        return
    for tensor in _flat(args[0] if args else ()):
        values.forget(tensor)


def _flat(tensors):
    if isinstance(tensors, torch.Tensor):
        yield tensors
    elif isinstance(tensors, (list, tuple)):
        for item in tensors:
            yield from _flat(item)


def _group(boxed) -> tuple[int, int]:
    group = dist.ProcessGroup.unbox(boxed)
    return group.rank(), group.size()


@functools.lru_cache(None)
def _part(factor: int, index: int, parts: int, copies: int, shape: tuple):
    """``factor`` times part ``index`` of ``parts`` equal parts, ``copies`` of it in ``shape``."""

    def part(tensor):
        chosen = tensor.reshape(parts, -1)[index].repeat(copies)
        return (chosen * factor if factor != 1 else chosen).reshape(shape)

    return part


def _set(values: Values, output, source, factor=1, index=0, parts=1, copies=1):
    if values.known(source):
        values.apply(output, _part(factor, index, parts, copies, tuple(output.shape)), source)
    elif output is not source:
        values.forget(output)


def _all_reduce(values, tensors, group, *rest):
    if values.reduction == dist.ReduceOp.SUM:
        _, size = _group(group)
        if size > 1:
            for tensor in tensors:
                _set(values, tensor, tensor, factor=size)


def _all_gather_base(values, output, source, group, *rest):
    _set(values, output, source, copies=_group(group)[1])


def _all_gather(values, outputs, sources, group, *rest):
    for each, source in zip(outputs, sources):
        for output in each:
            _set(values, output, source)


def _reduce_scatter_base(values, output, source, group, *rest):
    rank, size = _group(group)
    _set(values, output, source, factor=size if values.reduction == dist.ReduceOp.SUM else 1, index=rank, parts=size)


def _all_to_all_base(values, output, source, group, output_splits, input_splits, *rest):
    rank, size = _group(group)
    if not input_splits:
        _set(values, output, source, index=rank, parts=size, copies=size)
    elif values.known(source):
        values.apply(output, _uneven_part(tuple(input_splits), tuple(output_splits), rank), source)
    else:
        values.forget(output)


@functools.lru_cache(None)
def _uneven_part(input_splits: tuple, output_splits: tuple, rank: int):
    def part(tensor):
        return tensor.split(list(input_splits))[rank].repeat(len(output_splits), *[1] * (tensor.dim() - 1))

    return part


def _broadcast(values, tensors, group, root_rank, *rest):
    """What the sender holds and this rank does not: no sequence of a batch is packed, and Megatron-LM sends the number
    of packed ones ahead, a single integer."""
    for tensor in tensors:
        counts = tensor.numel() == 1 and not tensor.dtype.is_floating_point
        if counts and _group(group)[0] != root_rank and not values.known(tensor):
            values.assign(tensor, torch.zeros(tensor.shape, dtype=tensor.dtype))


def _unchanged(values, *args):
    pass


_ANSWERS = {
    c10d.allreduce_.default: _all_reduce,
    c10d._allgather_base_.default: _all_gather_base,
    c10d.allgather_.default: _all_gather,
    c10d._reduce_scatter_base_.default: _reduce_scatter_base,
    c10d.alltoall_base_.default: _all_to_all_base,
    c10d.broadcast_.default: _broadcast,
    c10d.send.default: _unchanged,
    c10d.barrier.default: _unchanged,
}
