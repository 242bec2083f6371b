"""The simulated GPU: tensors on PyTorch's ``meta`` device that call themselves CUDA tensors.

A meta tensor has shape, dtype, strides and a storage with a size, but no data. Requests for ``cuda`` are turned into
``meta`` when the operator is dispatched, so CPU tensors stay real (with their values) and only GPU tensors are counted.
"""

from __future__ import annotations

import functools

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bisect_recompute.probe.gpu import Gpu
from bisect_recompute.probe.simulate import collectives, flops, traffic
from bisect_recompute.probe.simulate.memory import MemoryTracker
from bisect_recompute.probe.simulate.reads import Reads
from bisect_recompute.probe.simulate.reductions import Reductions
from bisect_recompute.probe.simulate.streams import CUDA
from bisect_recompute.probe.simulate.timeline import Timeline
from bisect_recompute.probe.simulate.values import Values, written_operands

aten = torch.ops.aten
META = torch.device("meta")
FAKE = torch._C._TorchDispatchModeKey.FAKE
NO_DISPATCH = torch.Tensor.__torch_dispatch__

# PyTorch's own workspace per (cuBLAS handle, stream) on compute capability 9 and 10: 4096 KiB x 8 (aten/src/ATen/cuda/
# CublasHandlePool.cpp, default of CUBLAS_WORKSPACE_CONFIG); 8.125 MiB before. The autograd thread has its own handle.
HOPPER_WORKSPACE = 32 * 2**20
OLDER_WORKSPACE = 4096 * 1024 * 2 + 16 * 1024 * 8

_real_device = torch._C.TensorBase.device.__get__
_real_is_meta = torch._C.TensorBase.is_meta.__get__


class SimulatedGpu(TorchDispatchMode):
    """Dispatch mode under which everything of a probe runs."""

    current: "SimulatedGpu | None" = None

    def __init__(self, tracker: MemoryTracker, gpu: Gpu, sharded_parameters: bool = False):
        super().__init__()
        self.tracker = tracker
        self.timeline = Timeline(gpu, tracker, sharded_parameters)
        self.in_kernel = False
        self.flops = 0.0
        self.recomputed_flops = 0.0
        self.counting = True
        self.attention_backend = "unfused"
        self._workspace = HOPPER_WORKSPACE if gpu.compute_capability[0] in (9, 10) else OLDER_WORKSPACE
        self._handles: set[bool] = set()
        self._operators: dict = {}
        self.values = Values()
        tracker.on_free = self.values.forget_storage
        self.reads = Reads(self.values, tracker)
        reductions = Reductions(self.values, tracker, gpu.multiprocessors)
        self._answers = ANSWERS | self.reads.answers() | reductions.answers()

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # nothing is traced here, and the guard would cost as much as the operator

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if torch._C._get_dispatch_mode(FAKE) is not None:
            return self._fake(func, args, kwargs)
        if any(kind.__torch_dispatch__ != NO_DISPATCH for kind in types):
            return NotImplemented  # of DTensor and its like, the operators on the tensors that it holds come back here
        answer, may_allocate, count, writes, moved = self._operators.get(id(func)) or self._describe(func)
        if answer is collectives.run:
            collectives.follow(self.values, func, args)
            return answer(func, args, self.timeline.collective(func, args))
        if kwargs.get("device") is not None and kwargs["device"].type == "cuda":
            kwargs["device"] = META
        outer, self.in_kernel = self.in_kernel, True
        try:
            out = answer(func, *args, **kwargs) if answer is not None else func(*args, **kwargs)
            self.values.follow(func, args, kwargs, out)
            if writes and self.tracker.fused:
                first = writes[0]
                written = args[first] if first < len(args) else kwargs[func._schema.arguments[first].name]
                self.tracker.written_in_fused(written, func in SCATTERED)
        finally:
            self.in_kernel = outer
        if may_allocate:
            self._see(out)
        if count is not None and _any_meta(args):
            self.add_flops(count(*args, **kwargs), moved(args, out), args[-1].dtype)
            self._use_cublas()
        elif moved is not None and self.counting and not self.timeline.inside:
            self._move(func, args, out, moved)
        return out

    def _move(self, func, args, out, moved):
        if _is_meta(out):
            if func in COPIES and not _is_meta(args[COPIES[func]]):
                self.timeline.copy_to_or_from_host(out.nbytes)
            else:
                self.timeline.kernel(0.0, moved(args, out))
        elif func in COPIES and _is_meta(args[COPIES[func]]):
            self.timeline.copy_to_or_from_host(out.nbytes)

    def _fake(self, func, args, kwargs):
        """PyTorch looks for the shape of a result, as DTensor does: fake tensors are no memory."""
        outer, self.in_kernel = self.in_kernel, True
        try:
            return func(*args, **kwargs)
        finally:
            self.in_kernel = outer

    def _describe(self, func):
        """(what answers instead of PyTorch, whether a result can be new memory, its FLOPs, positions of the operands that
        it writes to, the bytes it moves); operators are singletons."""
        answer = collectives.run if func.namespace == "c10d" else self._answers.get(func)
        may_allocate = any(ret.alias_info is None for ret in func._schema.returns) or "resize" in func.__name__
        writes = written_operands(func)
        self._operators[id(func)] = described = (
            answer, may_allocate, flops.OPERATORS.get(func), writes, traffic.of(func, may_allocate, writes)
        )
        return described

    def _see(self, out):
        if isinstance(out, torch.Tensor):
            if _real_is_meta(out):
                self.tracker.see(out)
        elif isinstance(out, (tuple, list)):
            for item in out:
                self._see(item)

    def add_flops(self, count: float, moved: float = 0.0, dtype=torch.bfloat16, **more):
        """A kernel of ``count`` FLOPs that moves ``moved`` bytes; ``more``: see ``Timeline.kernel``."""
        if self.counting:
            self.flops += count
            if self.tracker.phase == "recompute":
                self.recomputed_flops += count
            self.timeline.kernel(count, moved, dtype, **more)

    def _use_cublas(self):
        """The first matrix product of each thread (forward, autograd) allocates that handle's workspace."""
        backward_thread = self.tracker.phase in ("backward", "recompute")
        if backward_thread not in self._handles:
            self._handles.add(backward_thread)
            self.tracker.reserve(self._workspace, "cuBLAS workspace")


def one_kernel(function):
    """For a function that stands for a single kernel, or that a compiler makes one of: operands read, results written."""

    @functools.wraps(function)
    def kernel(*args, **kwargs):
        gpu = SimulatedGpu.current
        if gpu is None or not gpu.counting:
            return function(*args, **kwargs)
        out = None
        gpu.timeline.begin()
        try:
            out = function(*args, **kwargs)
        finally:
            gpu.timeline.end(traffic.nbytes(args) + traffic.nbytes(kwargs) + traffic.nbytes(out))
        return out

    return kernel


def _is_meta(value) -> bool:
    if isinstance(value, (list, tuple)) and value:
        value = value[0]
    return isinstance(value, torch.Tensor) and _real_is_meta(value)


COPIES = {aten.copy_.default: 1, aten._to_copy.default: 0}
"""Operators that may cross between host and GPU -> position of the source."""


def _any_meta(args) -> bool:
    return any(isinstance(a, torch.Tensor) and _real_is_meta(a) for a in args)


# --- operators that CUDA computes by another route than meta ---------------------------


def _in_place(func, tensor, *args, **kwargs):
    return tensor


def _pointwise(func, *args, **kwargs):
    """The common case of an elementwise operator, row-major operands on the simulated GPU: the result is contiguous.
    PyTorch's own shape functions for meta tensors give the same and take twenty times as long."""
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    shape = tensors[0].shape
    for tensor in tensors:
        if not (_real_is_meta(tensor) and tensor.dtype.is_floating_point and _row_major(tensor)):
            return func(*args, **kwargs)
        if tensor.shape != shape:
            shape = torch.broadcast_shapes(shape, tensor.shape)
    dtype = torch.result_type(*args[:2]) if len(args) > 1 else tensors[0].dtype
    return torch.empty(shape, dtype=dtype, device=META)


def _row_major(tensor) -> bool:
    if tensor.is_contiguous():
        return True
    strides = [stride for stride, size in zip(tensor.stride(), tensor.shape) if size > 1]
    return all(a >= b > 0 for a, b in zip(strides, strides[1:])) and strides[-1] > 0


def _cat(func, tensors, dim=0):
    first = tensors[0]
    for tensor in tensors:
        if not (_real_is_meta(tensor) and _row_major(tensor) and tensor.dtype == first.dtype
                and tensor.dim() == first.dim()):
            return func(tensors, dim)
    shape = list(first.shape)
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    return torch.empty(shape, dtype=first.dtype, device=META)


SCATTERED = {aten.index_put_.default, aten._index_put_impl_.default, aten.scatter_.src, aten.scatter_.value, aten.scatter_add_.default}
ANSWERS = {
    **{
        overload: _pointwise
        for overload in (
            aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor, aten.div.Tensor, aten.mul.Scalar, aten.neg.default,
            aten.cos.default, aten.sin.default, aten.sigmoid.default, aten.silu.default, aten.tanh.default,
            aten.rsub.Scalar, aten.exp.default, aten.gelu.default,
        )
    },
    aten.cat.default: _cat,
    aten.normal_.default: _in_place,
    aten.uniform_.default: _in_place,
}


# --- tensors that call themselves CUDA tensors -----------------------------------------------------------------------


def install_tensor_properties():
    """``device``, ``is_cuda`` and their like, as Python code sees them. PyTorch's own kernels see the truth."""

    def honest() -> bool:
        gpu = SimulatedGpu.current
        return gpu is None or gpu.in_kernel

    def device(self):
        real = _real_device(self)
        return CUDA if real.type == "meta" and not honest() else real

    def is_cuda(self):
        return _real_is_meta(self) and not honest()

    def is_meta(self):
        return _real_is_meta(self) and honest()

    def get_device(self):
        return 0 if _real_is_meta(self) else -1

    real_type = torch._C.TensorBase.type

    def type_(self, dtype=None, non_blocking=False, **kwargs):
        if dtype is None:
            name = real_type(self)
            return name.replace("torch.meta.", "torch.cuda.", 1) if _real_is_meta(self) else name
        if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
            return self.to("cuda", getattr(torch, LEGACY_TYPES[dtype.rpartition(".")[2]]))
        return real_type(self, dtype, non_blocking, **kwargs)

    real_data_ptr = torch._C.TensorBase.data_ptr

    def data_ptr(self):
        gpu = SimulatedGpu.current
        if gpu is None or not _real_is_meta(self):
            return real_data_ptr(self)
        return gpu.tracker.see(self).address + self.storage_offset() * self.element_size()

    real_resize = torch._C.StorageBase.resize_

    def resize_(self, size):
        result = real_resize(self, size)
        if SimulatedGpu.current is not None:
            SimulatedGpu.current.tracker.resized(self)
        return result

    tensor = torch.Tensor
    tensor.device = property(device)
    tensor.is_cuda = property(is_cuda)
    tensor.is_meta = property(is_meta)
    tensor.get_device = get_device
    tensor.type = type_
    tensor.data_ptr = data_ptr
    tensor.cuda = lambda self, device=None, non_blocking=False, memory_format=torch.preserve_format: self.to("cuda")
    tensor.pin_memory = lambda self, device=None: self
    tensor.is_pinned = lambda self, device=None: False
    tensor.record_stream = lambda self, stream: None
    tensor.new_tensor = lambda self, data, *, dtype=None, device=None, requires_grad=False: torch.tensor(
        data, dtype=dtype or self.dtype, device=device or self.device, requires_grad=requires_grad
    )
    torch.UntypedStorage.resize_ = resize_
    for name in FACTORIES:
        setattr(torch, name, _on_target(getattr(torch, name)))
    for name in ("new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided"):
        setattr(tensor, name, _on_target(getattr(tensor, name)))
    tensor.to = _to(tensor.to)
    torch.dropout = _dropout(torch.dropout)
    torch.nn.functional.dropout = _dropout(torch.nn.functional.dropout)
    torch.device = Device
    torch.tensor = _from_data(torch.tensor)
    torch.as_tensor = _from_data(torch.as_tensor)
    for name, dtype in LEGACY_TYPES.items():
        setattr(torch.cuda, name, _LegacyType(name, (), {"dtype": getattr(torch, dtype)}))


FACTORIES = (
    "empty zeros ones full rand randn randint randperm arange linspace eye empty_like zeros_like ones_like full_like "
    "rand_like randn_like randint_like empty_strided tril_indices triu_indices scalar_tensor"
).split()


def _target(device):
    """What stands for the wanted device; a bare number means the accelerator."""
    if device is None or (isinstance(device, torch.device) and device.type != "cuda"):
        return device
    if type(device) is int or torch.device(device).type == "cuda":
        return META
    return device


def _on_target(construct):
    @functools.wraps(construct)
    def made(*args, **kwargs):
        if "device" in kwargs:
            kwargs["device"] = _target(kwargs["device"])
        kwargs.pop("pin_memory", None)
        return construct(*args, **kwargs)

    return made


def _to(real_to):
    @functools.wraps(real_to)
    def to(self, *args, **kwargs):
        if args and isinstance(args[0], (int, str, torch.device)):
            args = (_target(args[0]), *args[1:])
        if "device" in kwargs:
            kwargs["device"] = _target(kwargs["device"])
        return real_to(self, *args, **kwargs)

    return to


def _dropout(real):
    """CUDA has a fused kernel that keeps a bool mask; other devices keep a mask of the input's dtype."""

    @functools.wraps(real)
    def dropout(input, p=0.5, training=True, inplace=False):
        if training and 0.0 < p < 1.0 and not inplace and _real_is_meta(input):
            return torch.native_dropout(input, p, True)[0]
        return real(input, p, training, inplace) if inplace else real(input, p, training)

    return dropout


_torch_device = torch.device


class _DeviceType(type):
    """``torch.device`` for a build without an accelerator: ``torch.device(0)`` is the simulated one."""

    def __instancecheck__(cls, instance):
        return isinstance(instance, _torch_device)

    def __subclasscheck__(cls, subclass):
        return issubclass(subclass, _torch_device)

    def __call__(cls, *args, **kwargs):
        if len(args) == 1 and not kwargs and type(args[0]) is int:
            return CUDA
        return _torch_device(*args, **kwargs)


class Device(metaclass=_DeviceType):
    pass


def _from_data(construct):
    """``torch.tensor`` looks for a CUDA device guard before it dispatches anything: values are made on the CPU, then sent."""

    def made(data, *, dtype=None, device=None, requires_grad=False, **kwargs):
        kwargs.pop("pin_memory", None)
        if device is None or _target(device) is not META:
            options = {"requires_grad": requires_grad, **kwargs} if requires_grad or kwargs else kwargs
            return construct(data, dtype=dtype, device=device, **options)
        sent = construct(_plain(data), dtype=dtype).to(META)
        return sent.requires_grad_() if requires_grad else sent

    return made


def _plain(data):
    """Numbers on the simulated GPU inside a list are read, as CUDA would."""
    if isinstance(data, (list, tuple)):
        return [_plain(item) for item in data]
    return data.item() if isinstance(data, torch.Tensor) and data.numel() == 1 else data


LEGACY_TYPES = {
    "FloatTensor": "float32", "HalfTensor": "float16", "BFloat16Tensor": "bfloat16", "DoubleTensor": "float64",
    "IntTensor": "int32", "LongTensor": "int64", "ByteTensor": "uint8", "BoolTensor": "bool",
}


class _LegacyType(type):
    """``torch.cuda.FloatTensor`` and its like: a constructor and an instance check by dtype and device."""

    def __instancecheck__(cls, instance):
        return isinstance(instance, torch.Tensor) and _real_is_meta(instance) and instance.dtype == cls.dtype

    def __call__(cls, *data):
        if len(data) == 1 and not isinstance(data[0], int):
            return torch.tensor(data[0], dtype=cls.dtype, device="cuda")
        return torch.empty(*data, dtype=cls.dtype, device="cuda")
