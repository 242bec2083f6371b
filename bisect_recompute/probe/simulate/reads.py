"""Operators that bring a number from the simulated GPU to the CPU, or whose result's shape depends on numbers.

What is known is answered from the shadow values. Unknown floats are losses and norms, unknown truths of floats are
checks for overflow: 0 and False (nothing overflowed). Any other unknown number fails the probe with the tensor's name.
"""

from __future__ import annotations

import torch

from bisect_recompute.probe.simulate.arithmetic import UnknownFloats, UnknownValue

aten = torch.ops.aten
META = torch.device("meta")
_is_meta = torch._C.TensorBase.is_meta.__get__


class Reads:
    def __init__(self, values, tracker):
        self.values = values
        self.tracker = tracker
        self.overflowing = False
        self.overflow_flag: int | None = None

    def read(self, tensor) -> torch.Tensor:
        """Raises UnknownValue with the tensor's name."""
        try:
            return self.values.read(tensor)
        except UnknownValue as error:
            block = self.tracker.block_of(tensor)
            made = f" made at {block.code}:{block.line}" if block and block.code else ""
            kind = str(tensor.dtype).removeprefix("torch.")
            raise type(error)(f"the numbers in {kind} {list(tensor.shape)}{made} are not known: {error}") from None

    def on_cpu(self, tensor) -> torch.Tensor | None:
        """What a copy to the CPU holds, None for what is harmless though unknown."""
        if self.overflowing and tensor.untyped_storage()._cdata == self.overflow_flag:
            return torch.ones(tensor.shape, dtype=tensor.dtype)
        if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex or self.values.doubtful(tensor)):
            try:
                return self.read(tensor)
            except UnknownFloats:
                if tensor.dtype is torch.bool:
                    return None
                raise
        try:
            return self.values.read(tensor).nan_to_num(0.0) if self.values.known(tensor) else None
        except UnknownValue:
            return None

    # --- answers: called as the operator would be --------------------------------------------------------------------

    def item(self, func, tensor):
        if not _is_meta(tensor):
            return func(tensor)
        known = self.on_cpu(tensor)
        return func(torch.zeros((), dtype=tensor.dtype) if known is None else known)

    def to_copy(self, func, tensor, **kwargs):
        device = kwargs.get("device")
        if device is not None and device.type == "cpu" and _is_meta(tensor):
            known, dtype = self.on_cpu(tensor), kwargs.get("dtype") or tensor.dtype
            return torch.zeros(tensor.shape, dtype=dtype) if known is None else known.to(dtype, copy=True)
        return func(tensor, **kwargs)

    def copy_(self, func, destination, source, non_blocking=False):
        if _is_meta(source) and not _is_meta(destination):
            known = self.on_cpu(source)
            # Offloaded activations: memory of this machine that nobody touches costs nothing.
            return destination if known is None else destination.copy_(known)
        return func(destination, source, non_blocking)

    def equal(self, func, a, b):
        known = [self.values.read(t) if _is_meta(t) else t for t in (a, b) if not _is_meta(t) or self.values.known(t)]
        return func(*known) if len(known) == 2 else a.shape == b.shape

    def masked_select(self, func, tensor, mask):
        if not _is_meta(mask):
            return func(tensor, mask)
        shape = torch.broadcast_shapes(tensor.shape, mask.shape)
        count = int(self.read(mask).expand(shape).sum())
        return torch.empty((count,), dtype=tensor.dtype, device=META)

    def nonzero(self, func, tensor):
        if not _is_meta(tensor):
            return func(tensor)
        # Column by column in memory, as CUDA lays it out.
        return torch.empty((tensor.dim(), int(self.read(tensor).count_nonzero())), dtype=torch.int64, device=META).t()

    def index(self, func, tensor, indices):
        return func(tensor, self._integers(indices))

    def index_put(self, func, tensor, indices, values, accumulate=False):
        return torch.empty_like(tensor) if _is_meta(tensor) else func(tensor, indices, values, accumulate)

    def index_put_(self, func, tensor, indices, values, accumulate=False, *rest):
        return tensor if _is_meta(tensor) else func(tensor, indices, values, accumulate, *rest)

    def _integers(self, indices):
        plain = []
        for index in indices:
            if index is not None and _is_meta(index) and index.dtype in (torch.bool, torch.uint8):
                count = int(self.read(index).count_nonzero())
                plain += [torch.empty((count,), dtype=torch.int64, device=META) for _ in range(index.dim())]
            else:
                plain.append(index)
        return plain

    def repeat_interleave(self, func, repeats, output_size=None):
        if not _is_meta(repeats):
            return func(repeats, output_size=output_size)
        total = int(self.read(repeats).sum()) if output_size is None else output_size
        return torch.empty((total,), dtype=repeats.dtype, device=META)

    def bincount(self, func, tensor, weights=None, minlength=0):
        if not _is_meta(tensor):
            return func(tensor, weights, minlength)
        numbers = self.read(tensor)
        length = max(int(numbers.max()) + 1 if numbers.numel() else 0, minlength)
        return torch.empty((length,), dtype=torch.int64 if weights is None else weights.dtype, device=META)

    def by_computing(self, func, tensor, *args, **kwargs):
        """``unique`` and its like: as many results, of the shapes that the real numbers give."""
        if not _is_meta(tensor):
            return func(tensor, *args, **kwargs)
        results = func(self.read(tensor), *args, **kwargs)
        return tuple(torch.empty(r.shape, dtype=r.dtype, device=META) for r in results)

    def check_gradients(self, func, gradients, found_inf, inv_scale):
        """Loss scaling looks here for gradients that overflowed, and reads ``found_inf`` later."""
        self.overflow_flag = found_inf.untyped_storage()._cdata

    def answers(self) -> dict:
        return {
            aten._local_scalar_dense.default: self.item,
            aten._to_copy.default: self.to_copy,
            aten.copy_.default: self.copy_,
            aten.equal.default: self.equal,
            aten.masked_select.default: self.masked_select,
            aten.nonzero.default: self.nonzero,
            aten.index.Tensor: self.index,
            aten.index_put.default: self.index_put,
            aten.index_put_.default: self.index_put_,
            aten._index_put_impl_.default: self.index_put_,
            aten.repeat_interleave.Tensor: self.repeat_interleave,
            aten.bincount.default: self.bincount,
            aten._unique2.default: self.by_computing,
            aten.unique_dim.default: self.by_computing,
            aten.unique_consecutive.default: self.by_computing,
            aten._amp_foreach_non_finite_check_and_unscale_.default: self.check_gradients,
        }
