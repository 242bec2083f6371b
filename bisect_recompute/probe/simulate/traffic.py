"""Bytes that an operator moves between the GPU and its memory: each operand read once, each result written once."""

from __future__ import annotations

import torch

NAMES_ONLY = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "detach", "alias",
    "lift_fresh", "set_", "resize_", "_local_scalar_dense", "_reshape_alias", "record_stream",
}
"""Operators that move nothing."""
FILLS = {"zero_", "fill_", "normal_", "uniform_", "random_", "bernoulli_", "arange", "zeros", "ones", "full"}
PICKS = {"embedding", "index_select", "gather", "index", "masked_select"}
"""They read of their first operand only what they return."""
SCATTERS = {"index_put_": 2, "_index_put_impl_": 2, "scatter_": 3, "scatter_add_": 3, "index_add_": 3, "index_copy_": 3}
"""They write of their first operand only where the operand at this position goes."""


def of(func, may_allocate: bool, writes: tuple):
    """``count(args, out)`` -> bytes, for an operator; None where it moves nothing (views, shapes)."""
    name = func._schema.name.partition("::")[2]
    if func.namespace == "c10d" or name in NAMES_ONLY or not (may_allocate or writes):
        return None
    if name in FILLS:
        return lambda args, out: nbytes(out)
    if name in PICKS:
        return lambda args, out: 2 * nbytes(out) + nbytes(args[1:])
    if name in SCATTERS:
        return lambda args, out: 3 * nbytes(args[SCATTERS[name]]) if len(args) > SCATTERS[name] else nbytes(out)
    if name == "copy_":
        return lambda args, out: nbytes(args[:2])
    if writes and not may_allocate:
        first = writes[0]
        return lambda args, out: nbytes(args) + nbytes(args[first] if first < len(args) else out)
    return lambda args, out: nbytes(args) + nbytes(out)


def nbytes(tensors) -> int:
    """Of a tensor, or of all in nested sequences and mappings."""
    if isinstance(tensors, torch.Tensor):
        return tensors.nbytes
    if isinstance(tensors, (list, tuple)):
        total = 0
        for item in tensors:
            if item.__class__ not in PLAIN:
                total += nbytes(item)
        return total
    return sum(map(nbytes, tensors.values())) if isinstance(tensors, dict) else 0


PLAIN = {int, float, bool, type(None), str, torch.dtype, torch.device}
