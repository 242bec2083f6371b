"""The graph behind shadow values: operators on known operands, computed when a result is asked for, and once."""

from __future__ import annotations

import torch

aten = torch.ops.aten
LARGEST_INTERNED = 2**16


class UnknownValue(Exception):
    """A number is asked for that does not follow from what is known."""


class UnknownFloats(UnknownValue):
    """An integer or a truth of floats that nobody knows."""


class Call:
    """One operator on known operands; ``results`` are the flat storages that it makes or changes."""

    __slots__ = ("function", "arguments", "keywords", "layouts", "depth", "results", "failure")

    def __init__(self, function, arguments, keywords, layouts, depth):
        self.function = function
        self.arguments = arguments
        self.keywords = keywords
        self.layouts = layouts
        self.depth = depth
        self.results = None
        self.failure = None

    def run(self):
        """Raises UnknownValue."""
        if self.failure is not None:
            raise UnknownValue(self.failure)
        if self.results is None:
            try:
                self.results = self.function(self.layouts, self.arguments, self.keywords)
            except UnknownValue as error:
                self.failure = str(error)
                raise
            except Exception as error:
                self.failure = f"{getattr(self.function, 'name', 'an operator')} on known values: {error}"
                raise UnknownValue(self.failure) from None
            self.arguments = self.keywords = ()
            self.depth = 0
        return self.results


class View:
    """A tensor's window on a result. Never written through."""

    __slots__ = ("call", "index", "dtype", "shape", "stride", "offset", "_hash")

    def __init__(self, call, index, tensor):
        self.call = call
        self.index = index
        self.dtype = tensor.dtype
        self.shape = tuple(tensor.shape)
        self.stride = tensor.stride()
        self.offset = tensor.storage_offset()
        self._hash = hash((id(call), index, self.shape, self.stride, self.offset))

    def __hash__(self):
        return self._hash

    def __eq__(self, other):
        return (
            type(other) is View and self.call is other.call and self.index == other.index and self.dtype == other.dtype
            and self.shape == other.shape and self.stride == other.stride and self.offset == other.offset
        )

    def storage(self) -> torch.Tensor:
        flat = self.call.run()[self.index]
        if flat is None:
            raise UnknownValue("the balanced routing has no probabilities")
        return flat if flat.dtype == self.dtype else flat.view(self.dtype)

    def real(self) -> torch.Tensor:
        return self.storage().as_strided(self.shape, self.stride, self.offset)


class Blank:
    """An operand of which only shape and dtype count."""

    __slots__ = ("key",)

    def __init__(self, tensor):
        self.key = (tuple(tensor.shape), tensor.stride(), tensor.dtype)

    def __hash__(self):
        return hash(self.key)

    def __eq__(self, other):
        return type(other) is Blank and self.key == other.key

    def real(self):
        shape, stride, dtype = self.key
        return torch.empty_strided(shape, stride, dtype=dtype)


class Unknown(Blank):
    """Floats that nobody knows, among known ones: NaN."""

    def real(self):
        shape, stride, dtype = self.key
        return torch.full(shape, float("nan"), dtype=dtype)


class Sequence:
    __slots__ = ("items",)

    def __init__(self, items):
        self.items = items

    def __hash__(self):
        return hash(self.items)

    def __eq__(self, other):
        return type(other) is Sequence and self.items == other.items

    def real(self):
        return [_real(item) for item in self.items]


class Held:
    """A real tensor as an operand; equal contents are equal operands."""

    __slots__ = ("tensor", "key")

    def __init__(self, tensor):
        self.tensor = tensor.detach().clone(memory_format=torch.contiguous_format)
        small = tensor.numel() <= LARGEST_INTERNED
        content = self.tensor.view(-1).view(torch.uint8).numpy().tobytes() if small else id(self)
        self.key = (tuple(tensor.shape), tensor.dtype, content)

    def __hash__(self):
        return hash(self.key)

    def __eq__(self, other):
        return type(other) is Held and self.key == other.key

    def real(self):
        return self.tensor


_OPERANDS = (View, Blank, Unknown, Sequence, Held)


def _real(operand):
    return operand.real() if type(operand) in _OPERANDS else operand


def layout(tensor) -> tuple:
    """(dtype, elements of the storage, shape, stride, offset)"""
    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.dtype, elements, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()


def _flat(result: torch.Tensor, wanted: tuple) -> torch.Tensor:
    """The result as the storage of the tensor that stands for it."""
    dtype, numel, shape, stride, offset = wanted
    if tuple(result.shape) != shape:
        raise UnknownValue(f"a result of shape {tuple(result.shape)} where {shape} was expected")
    if dtype != result.dtype and not dtype.is_floating_point and result.dtype.is_floating_point:
        if bool(torch.isnan(result).any()):
            raise UnknownValue("a decision by unknown floats")
    result = result.to(dtype)
    if offset == 0 and result.stride() == stride and result.numel() == numel and result.is_contiguous():
        return result.reshape(-1)
    flat = torch.zeros(numel, dtype=dtype)
    flat.as_strided(shape, stride, offset).copy_(result)
    return flat


def _has_nan(operands) -> bool:
    for operand in operands:
        if isinstance(operand, list):
            if _has_nan(operand):
                return True
        elif isinstance(operand, torch.Tensor) and operand.dtype.is_floating_point and bool(torch.isnan(operand).any()):
            return True
    return False


class Pure:
    """An operator whose results are new tensors."""

    __slots__ = ("operator", "name")

    def __init__(self, operator):
        self.operator = operator
        self.name = str(operator)

    def __call__(self, layouts, arguments, keywords):
        args, kwargs = [_real(a) for a in arguments], {name: _real(value) for name, value in keywords}
        if any(not wanted[0].is_floating_point for wanted in layouts if wanted) and _has_nan(args):
            raise UnknownFloats(f"{self.name} on unknown floats")
        instead = ON_CPU.get(self.operator, self.operator)
        results = instead(*args, **kwargs)
        results = results if isinstance(results, (tuple, list)) else (results,)
        return [None if wanted is None else _flat(result, wanted) for result, wanted in zip(results, layouts)]


class Changing:
    """An operator that writes into the operands at ``positions``; each is copied before."""

    __slots__ = ("operator", "positions", "name")

    def __init__(self, operator, positions):
        self.operator = operator
        self.positions = positions
        self.name = str(operator)

    def __call__(self, layouts, arguments, keywords):
        args, kwargs = [_real(a) for a in arguments], {name: _real(value) for name, value in keywords}
        if not layouts[0][0].is_floating_point and _has_nan(args):
            raise UnknownFloats(f"{self.name} on unknown floats")
        flats = []
        for position, (dtype, numel, shape, stride, offset) in zip(self.positions, layouts):
            operand = arguments[position]
            flat = operand.storage().clone() if type(operand) is View else torch.zeros(numel, dtype=dtype)
            args[position] = flat.as_strided(shape, stride, offset)
            flats.append(flat)
        self.operator(*args, **kwargs)
        return flats


def balanced(layouts, arguments, keywords):
    """Indices of the ``k`` largest along ``dim``; their values stay unknown."""
    shape, k, dim = arguments
    rows = torch.Size(shape[:dim] + shape[dim + 1:]).numel()
    chosen = (torch.arange(rows * k) % shape[dim]).view(*shape[:dim], *shape[dim + 1:], k)
    return [None, _flat(chosen.movedim(-1, dim), layouts[1])]


def constant(layouts, arguments, keywords):
    return [_flat(_real(arguments[0]), layouts[0])]


class Function:
    """A function of real tensors that gives one."""

    known: dict = {}

    def __init__(self, function):
        self.function = function
        self.name = function.__name__

    @classmethod
    def of(cls, function):
        return cls.known.setdefault(function, cls(function))

    def __call__(self, layouts, arguments, keywords):
        return [_flat(self.function(*[_real(a) for a in arguments]), layouts[0])]


def k_largest(layouts, arguments, keywords):
    tensor, k, dim = (_real(a) for a in arguments)
    values, indices = torch.topk(tensor.float() if tensor.dtype is torch.bool else tensor, k, dim)
    return [_flat(values, layouts[0]), _flat(indices, layouts[1])]


def _histc(tensor, bins=100, min=0, max=0):
    return torch.histc(tensor.float(), bins, min, max)


def depth_of(operand) -> int:
    if type(operand) is View:
        return operand.call.depth
    return max((depth_of(item) for item in operand.items), default=0) if type(operand) is Sequence else 0


ON_CPU = {aten.histc.default: _histc}
"""Operators that the CPU has for floats alone."""
