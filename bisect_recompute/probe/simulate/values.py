"""Shadow values: what the small tensors of the simulated GPU would hold, as far as it follows by arithmetic.

Routing maps, token counts, splits and sort indices decide shapes. Constants, ranges and copies from the CPU are known;
an operator on known operands gives a known result. Nothing is computed until a number or a shape is asked for: the
operators are kept as a graph, equal operators on equal operands are one (all layers route alike and pay once).

Two assumptions stand in for what a trained router does:

- The ``k`` largest of unknown floats are balanced: row ``i``, slot ``j`` -> ``(i * k + j) mod n``.
- An unknown float scattered into a known tensor is larger than what is known around it (a probability among zeros): a
  NaN, which ``topk`` takes first. A decision by any other operator on NaN is unknown.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from bisect_recompute.probe.simulate.arithmetic import (
    Blank, Call, Changing, Function, Held, Pure, Sequence, Unknown, UnknownValue, View, balanced, constant, depth_of,
    k_largest, layout,
)

aten = torch.ops.aten
META = torch.device("meta")
LARGEST = 2**24
"""Elements of a storage that is followed: a routing map of 65,536 tokens and 256 experts."""
LARGEST_FROM_CPU = 2**20
DEEPEST = 64
"""Operators in a row that wait to be computed."""
MOST_INTERNED = 50_000


DOUBTFUL = object()
"""In place of a value: truth that was computed from unknown floats (is a norm infinite?). Read alone, it is False."""


class _NotKnown(Exception):
    pass


class Values:
    """Storage of the simulated GPU -> its value, for those that are known."""

    def __init__(self):
        self._of: dict[int, object] = {}  # storage -> (call, index of its result) or DOUBTFUL
        self._interned: dict = {}
        self._kinds: dict[int, tuple] = {}
        self.reduction = dist.ReduceOp.SUM
        """What the reducing collective that runs does; the dispatched operator does not tell."""

    # --- asking ------------------------------------------------------------------------------------------------------

    def known(self, tensor) -> bool:
        return type(self._look(tensor)) is tuple

    def doubtful(self, tensor) -> bool:
        return self._look(tensor) is DOUBTFUL

    def read(self, tensor) -> torch.Tensor:
        """A CPU tensor, not to be written to. Raises UnknownValue."""
        found = self._look(tensor)
        if type(found) is not tuple:
            raise UnknownValue("nothing is known about it")
        return View(*found, tensor).real()

    def _look(self, tensor):
        return self._of.get(tensor.untyped_storage()._cdata)

    # --- telling -----------------------------------------------------------------------------------------------------

    def forget(self, tensor):
        """Something wrote into it that cannot be followed."""
        self._of.pop(tensor.untyped_storage()._cdata, None)

    def forget_storage(self, storage: int):
        """It is gone."""
        self._of.pop(storage, None)

    def assign(self, tensor, value: torch.Tensor):
        """What a kernel wrote into all of ``tensor``."""
        self._set(tensor, self._call(constant, (Held(value),), (), (layout(tensor),)), 0)

    def assign_balanced(self, tensor, k: int, dim: int, shape: tuple):
        """``tensor``: the indices of the ``k`` largest along ``dim`` of floats of ``shape``."""
        self._set(tensor, self._call(balanced, (tuple(shape), k, dim), (), (None, layout(tensor))), 1)

    def apply(self, tensor, function, *operands):
        """``tensor`` holds ``function(*operands)``, a function of real tensors; unknown where an operand is."""
        try:
            arguments = tuple(self._operand(operand) for operand in operands)
        except _NotKnown:
            return self.forget(tensor)
        self._set(tensor, self._call(Function.of(function), arguments, (), (layout(tensor),)), 0)

    def _set(self, tensor, call, index):
        self._note(tensor, (call, index))

    def _note(self, tensor, what):
        self._of[tensor.untyped_storage()._cdata] = what

    def _call(self, function, arguments, keywords, layouts) -> Call:
        depth = 1 + max((depth_of(a) for a in arguments), default=0)
        key = (function, arguments, keywords, layouts)
        try:
            call = self._interned.get(key)
        except TypeError:  # an operand that is compared by identity alone
            return Call(function, arguments, keywords, layouts, depth)
        if call is None:
            if len(self._interned) > MOST_INTERNED:
                self._interned.clear()
            call = self._interned[key] = Call(function, arguments, keywords, layouts, depth)
            if depth > DEEPEST:
                try:
                    call.run()
                except UnknownValue:
                    pass
        return call

    # --- following operators -----------------------------------------------------------------------------------------

    def follow(self, func, args, kwargs, out):
        """Called after each operator of PyTorch with what it was given and what it returned."""
        kind = self._kinds.get(id(func)) or self._describe(func)
        kind[0](self, kind[1], func, args, kwargs, out)

    def _describe(self, func):
        self._kinds[id(func)] = kind = _kind_of(func)
        return kind

    def _operand(self, value, blank=False):
        if isinstance(value, torch.Tensor):
            if _is_meta(value):
                if blank:
                    return Blank(value)
                entry = self._of.get(value.untyped_storage()._cdata)
                if entry is None or entry is DOUBTFUL:
                    raise _NotKnown
                return View(*entry, value)
            if value.numel() > LARGEST_FROM_CPU:
                raise _NotKnown
            return Held(value)
        if isinstance(value, (list, tuple)):
            return Sequence(tuple(self._operand(item, blank) for item in value))
        if isinstance(value, torch.device):
            return torch.device("cpu")
        return value

    def _keywords(self, kwargs, blank=False):
        return tuple(
            (name, self._operand(value, blank)) for name, value in kwargs.items()
            if name not in ("pin_memory", "non_blocking", "layout")
        ) if kwargs else ()

    def _pure(self, function, func, args, kwargs, out):
        """A new tensor from known ones."""
        outputs = (out,) if isinstance(out, torch.Tensor) else out
        first = next((o for o in outputs if isinstance(o, torch.Tensor)), None)
        if first is None or not _is_meta(first) or first.numel() > LARGEST:
            return
        try:
            arguments = tuple(self._operand(a) for a in args)
            keywords = self._keywords(kwargs)
        except _NotKnown:
            arguments = self._with_unknown(func, args) if func in SPARSE else None
            if arguments is None:
                if first.dtype is torch.bool and self._from_floats(args):
                    self._note(first, DOUBTFUL)
                return
            keywords = ()
        self._results(function, arguments, keywords, outputs)

    def _results(self, function, arguments, keywords, outputs):
        layouts = tuple(layout(o) if isinstance(o, torch.Tensor) else None for o in outputs)
        call = self._call(function, arguments, keywords, layouts)
        for index, output in enumerate(outputs):
            if isinstance(output, torch.Tensor):
                self._set(output, call, index)

    def _from_floats(self, args) -> bool:
        """Whether all that is unknown are floats, or truths of them."""
        for value in args:
            if isinstance(value, (list, tuple)):
                if not self._from_floats(value):
                    return False
            elif isinstance(value, torch.Tensor) and _is_meta(value) and not value.dtype.is_floating_point:
                entry = self._of.get(value.untyped_storage()._cdata)
                if entry is None:
                    return False
        return True

    def _with_unknown(self, func, args):
        """Operands of a scatter whose target and indices are known and whose floats are not."""
        position = SPARSE[func]
        source = args[position]
        if not (isinstance(source, torch.Tensor) and source.dtype.is_floating_point):
            return None
        try:
            return tuple(Unknown(a) if i == position else self._operand(a) for i, a in enumerate(args))
        except _NotKnown:
            return None

    def _joined(self, function, func, args, kwargs, out):
        """Single numbers in a row, as a loss and the number of tokens that it is of: what is known of them stays known."""
        tensors = args[0]
        if not (_is_meta(out) and out.dtype.is_floating_point and all(t.numel() == 1 for t in tensors)):
            return self._pure(function, func, args, kwargs, out)
        items = []
        for tensor in tensors:
            try:
                items.append(self._operand(tensor))
            except _NotKnown:
                items.append(Unknown(tensor))
        if not all(isinstance(item, Unknown) for item in items):
            self._results(function, (Sequence(tuple(items)), *args[1:]), (), (out,))

    def _made(self, function, func, args, kwargs, out):
        """A constant: its operands lend their shape."""
        if not _is_meta(out) or out.numel() > LARGEST:
            return
        arguments = tuple(self._operand(a, blank=True) for a in args)
        self._results(function, arguments, self._keywords(kwargs, blank=True), (out,))

    def _nothing(self, function, func, args, kwargs, out):
        pass

    def _largest(self, function, func, args, kwargs, out):
        tensor, k = args[0], args[1]
        if not _is_meta(tensor) or tensor.numel() > LARGEST or tensor.dim() == 0:
            return
        dim = (args[2] if len(args) > 2 else kwargs.get("dim", -1)) % tensor.dim()
        try:
            operand = self._operand(tensor)
        except _NotKnown:
            operand = None
            if not tensor.dtype.is_floating_point:
                return
        if operand is None:
            return self.assign_balanced(out[1], k, dim, tensor.shape)
        layouts = (layout(out[0]), layout(out[1]))
        call = self._call(k_largest, (operand, k, dim), (), layouts)
        for index, output in enumerate(out):
            self._set(output, call, index)

    def _changed(self, function, func, args, kwargs, out):
        """An operator that writes into some of its operands."""
        positions = function.positions
        targets = [args[p] for p in positions if p < len(args)]
        if len(targets) != len(positions) or not all(isinstance(t, torch.Tensor) for t in targets):
            return _forget_written(self, positions, func, args, kwargs)
        target = targets[0]
        if not _is_meta(target):
            return
        whole = target.untyped_storage().nbytes() == target.numel() * target.element_size()
        if target.numel() > LARGEST:
            return self.forget(target)
        overwritten = func in OVERWRITING and whole
        try:
            arguments = tuple(self._operand(a, blank=overwritten and i == 0) for i, a in enumerate(args))
            keywords = self._keywords(kwargs)
        except _NotKnown:
            arguments = self._with_unknown(func, args) if func in SPARSE else None
            keywords = ()
            if arguments is None:
                doubtful = target.dtype is torch.bool and self._from_floats(args)
                for written in targets:
                    self._note(written, DOUBTFUL) if doubtful else self.forget(written)
                return
        call = self._call(function, arguments, keywords, tuple(layout(t) for t in targets))
        for index, written in enumerate(targets):
            self._set(written, call, index)

    def _random(self, function, func, args, kwargs, out):
        if function:
            _forget_written(self, function, func, args, kwargs)


def _forget_written(values: Values, positions, func, args, kwargs):
    for position in positions:
        written = args[position] if position < len(args) else kwargs.get(func._schema.arguments[position].name)
        for tensor in written if isinstance(written, (list, tuple)) else (written,):
            if isinstance(tensor, torch.Tensor) and _is_meta(tensor):
                values.forget(tensor)


_is_meta = torch._C.TensorBase.is_meta.__get__


SPARSE = {aten.scatter.src: 3, aten.scatter_.src: 3, aten.index_put_.default: 2, aten.index_put.default: 2}
"""Operator -> the operand that may be unknown floats."""
OVERWRITING = {aten.zero_.default, aten.fill_.Scalar, aten.fill_.Tensor, aten.copy_.default}
CREATING = {
    "zeros", "ones", "full", "arange", "eye", "linspace", "scalar_tensor", "tril_indices", "triu_indices",
    "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full",
}
UNFOLLOWED = {
    "mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "embedding", "embedding_dense_backward", "empty", "empty_like",
    "empty_strided", "new_empty", "new_empty_strided", "native_dropout", "_unsafe_view", "_reshape_alias", "cos", "sin",
    "silu", "silu_backward", "gelu", "gelu_backward", "native_layer_norm", "_softmax_backward_data", "sigmoid_backward",
    "tanh_backward", "_local_scalar_dense", "is_same_size", "resize_", "set_",
}


def written_operands(func) -> tuple[int, ...]:
    """Positions of the operands that an operator writes to."""
    return tuple(
        i for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write
    )


def _kind_of(func) -> tuple:
    """(method of Values, what it is given)."""
    schema = func._schema
    name = schema.name.partition("::")[2]
    written = written_operands(func)
    random = torch.Tag.nondeterministic_seeded in func.tags
    if func.namespace != "aten" or random or written and (name.startswith("_foreach") or name in UNFOLLOWED):
        return Values._random, written
    if written:
        return Values._changed, Changing(func, written)
    if name in UNFOLLOWED or name.startswith("_foreach") or any(r.alias_info is not None for r in schema.returns):
        return Values._nothing, None
    if name == "topk":
        return Values._largest, None
    if func is aten.cat.default:
        return Values._joined, Pure(func)
    if not any("Tensor" in str(r.type) for r in schema.returns):
        return Values._nothing, None
    return (Values._made if name in CREATING else Values._pure), Pure(func)
