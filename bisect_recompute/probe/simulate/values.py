"""Values of small tensors on the simulated GPU: counts, masks, indices, flags.

What a mixture of experts allocates follows from numbers that the GPU computes: how many tokens go to which expert. Beside
small meta tensors lie real ones: every operator whose operands are all known is computed for real as well. Two facts are
not known and are assumed: the router spreads tokens evenly (token i, slot j -> expert (i k + j) mod E), and every rank
sees the same. What is computed from unknown numbers (activations, parameters, gradients, losses) stays unknown.
"""

from __future__ import annotations

import torch
from torch.distributed import ProcessGroup, ReduceOp

aten = torch.ops.aten

LARGEST = 1 << 23
"""Elements of an integer or bool tensor that is followed (a routing map: tokens x experts)."""
LARGEST_FLOAT = 1 << 14

OVERWRITE = {aten.zero_.default, aten.fill_.Scalar, aten.fill_.Tensor, aten.copy_.default}
LIKE = {
    aten.zeros_like.default, aten.ones_like.default, aten.full_like.default, aten.new_zeros.default, aten.new_ones.default,
    aten.new_full.default,
}
"""Of their first operand only the shape counts. What they make may be large: a map of zeros is filled in place."""
EMPTY = {aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default, aten.empty_strided.default}


class Values:
    """Storage on the simulated GPU -> its elements, for those that are known."""

    def __init__(self):
        self._flat: dict[int, torch.Tensor] = {}
        self.reduction = ReduceOp.SUM
        """What the all-reduce that runs does; the dispatched operator does not tell."""

    def forget(self, storage: int):
        """The storage is gone."""
        self._flat.pop(storage, None)

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The tensor's values, a view that writes through; None where they are not known. CPU tensors are their own."""
        if not _is_meta(tensor):
            return tensor
        flat = self._flat.get(tensor.untyped_storage()._cdata)
        if flat is None:
            return None
        if flat.dtype != tensor.dtype:
            try:
                flat = flat.view(tensor.dtype)
            except RuntimeError:
                return None
        return torch.as_strided(flat, tensor.size(), tensor.stride(), tensor.storage_offset())

    def set(self, tensor: torch.Tensor, values: torch.Tensor | None):
        """Notes what is in a tensor that has been made or written as a whole; ``None``: not known."""
        storage = tensor.untyped_storage()
        if values is None:
            self._flat.pop(storage._cdata, None)
            return
        flat = torch.empty(storage.nbytes() // tensor.element_size(), dtype=tensor.dtype)
        torch.as_strided(flat, tensor.size(), tensor.stride(), tensor.storage_offset()).copy_(values)
        self._flat[storage._cdata] = flat

    def operands(self, args, kwargs):
        """The call with values in place of simulated tensors, or None when one of them is not known."""
        try:
            return tuple(map(self._operand, args)), {name: self._operand(value) for name, value in kwargs.items()}
        except _Unknown:
            return None

    def _operand(self, value):
        if isinstance(value, torch.Tensor):
            known = self.of(value)
            if known is None:
                raise _Unknown
            return known
        if isinstance(value, (list, tuple)):
            return [self._operand(item) for item in value]
        return torch.device("cpu") if isinstance(value, torch.device) else value

    def follow(self, func, written, args, kwargs, out):
        """Computes the operator on values too, if all operands are known. ``written``: the operands that it writes to."""
        if written:
            self._follow_write(func, written, args, kwargs)
            return
        if func is aten.topk.default and self.of(args[0]) is None:
            self._spread_evenly(out, args[0].shape[-1])
            return
        # Of several results the last is the one of indices.
        last = out[-1] if isinstance(out, (tuple, list)) and out else out
        if not isinstance(last, torch.Tensor) or not _followed(last, func in LIKE) or not _is_meta(last):
            return
        if func in LIKE:
            args = (torch.empty(args[0].shape, dtype=args[0].dtype), *args[1:])
        call = self.operands(args, kwargs)
        if call is not None:
            self.note(out, func(*call[0], **call[1]))

    def note(self, out, values):
        for simulated, known in zip(_tensors(out), _tensors(values)):
            if _is_meta(simulated) and _followed(simulated, blank=True):
                self.set(simulated, known)

    def _follow_write(self, func, written, args, kwargs):
        targets = [t for t in _tensors(written) if _is_meta(t)]
        if not targets or not (self._flat or func in OVERWRITE):
            return
        whole = func in OVERWRITE and _fills_storage(targets[0]) and _followed(targets[0])
        if whole and self.of(targets[0]) is None:
            sources = self.operands(args[1:], kwargs)
            if sources is not None:
                value = torch.empty(targets[0].shape, dtype=targets[0].dtype)
                self.set(targets[0], func(value, *sources[0], **sources[1]))
            return
        if all(self.of(target) is None for target in targets):
            return
        call = None if torch.Tag.nondeterministic_seeded in func.tags else self.operands(args, kwargs)
        if call is not None:
            func(*call[0], **call[1])
            return
        for target in targets:
            self._flat.pop(target.untyped_storage()._cdata, None)

    def _spread_evenly(self, out, experts: int):
        """A top-k over unknown scores [.., experts]: the indices [.., k] of an even assignment."""
        indices = out[1]
        k = indices.shape[-1]
        self.set(indices, (torch.arange(indices.numel()) % experts).reshape(indices.shape) if k <= experts else None)

    # --- collectives: every rank has the same ----------------------------------------------------------------------

    def collective(self, name: str, args):
        """``name``: the operator of torch.distributed; its output buffers get what equal ranks would have sent."""
        if not self._flat:
            return
        if name == "allreduce_":
            self._all_reduce(args[0], _group(args[1]).size())
        elif name == "_allgather_base_":
            known = self.of(args[1])
            self.set(args[0], None if known is None else torch.cat([known.reshape(-1)] * _group(args[2]).size()).view(args[0].shape))
        elif name == "allgather_":
            for outputs, source in zip(args[0], args[1]):
                for output in outputs:
                    self.set(output, self.of(source))
        elif name == "alltoall_base_":
            self._all_to_all(*args[:5])
        elif name == "_reduce_scatter_base_":
            known, group = self.of(args[1]), _group(args[2])
            size, rank = group.size(), group.rank()
            self.set(args[0], None if known is None else (known.reshape(size, -1)[rank] * size).view(args[0].shape))

    def _all_reduce(self, tensors, ranks: int):
        if self.reduction == ReduceOp.SUM:
            for tensor in tensors:
                known = self.of(tensor)
                if known is not None:
                    known.mul_(ranks)

    def _all_to_all(self, output, source, group, output_sizes, input_sizes):
        known, group = self.of(source), _group(group)
        if known is None or input_sizes:
            self.set(output, None)
            return
        mine = known.reshape(group.size(), -1)[group.rank()]
        self.set(output, torch.cat([mine] * group.size()).view(output.shape))


def written_operands(func) -> tuple[tuple[int, str], ...] | None:
    """Positions and names of the operands that an operator writes to; None when there is nothing to follow: it makes a
    view, an empty tensor or random numbers."""
    schema = func._schema
    if func in EMPTY:
        return None
    writes = tuple((i, a.name) for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write)
    if not writes and (
        all(ret.alias_info is not None for ret in schema.returns) or torch.Tag.nondeterministic_seeded in func.tags
    ):
        return None
    return writes


class _Unknown(Exception):
    pass


_is_meta = torch._C.TensorBase.is_meta.__get__


def _group(boxed) -> ProcessGroup:
    return ProcessGroup.unbox(boxed)


def _followed(tensor: torch.Tensor, blank: bool = False) -> bool:
    return tensor.numel() <= (LARGEST_FLOAT if tensor.dtype.is_floating_point and not blank else LARGEST)


def _fills_storage(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
