"""Transformer Engine's communicators that overlap tensor-parallel collectives with products (``--tp-comm-overlap``).

Their buffers come from ``cuMemCreate`` or ``cudaMalloc`` (transformer_engine/common/comm_gemm_overlap, userbuffers),
not from PyTorch's allocator, and ``get_buffer`` wraps their memory: ``torch.cuda.memory_allocated`` never sees them.
"""

from __future__ import annotations

import math

import torch
from torch.utils._python_dispatch import _disable_current_modes

from bisect_recompute.probe.simulate import links
from bisect_recompute.probe.simulate.device import SimulatedGpu
from bisect_recompute.probe.simulate.streams import Stream


class CommOverlapHelper:
    """The process groups that the ranks find each other through."""

    def __init__(self, world_group=None, intra_domain_group=None):
        pass


class CommOverlap:
    def __init__(self, buffer_shape, buffer_dtype, helper, tp_size, *args, use_cublasmp=False, **kwargs):
        if use_cublasmp:
            raise NotImplementedError("overlap through cuBLASMp is not simulated")
        self._parts = tp_size
        with _disable_current_modes():
            self._buffer = torch.empty(tuple(buffer_shape), dtype=buffer_dtype, device="meta")
        SimulatedGpu.current.tracker.leave_out(self._buffer)

    def seconds(self) -> float:
        """Of gathering or reducing the buffer among the tensor-parallel ranks, which are neighbours."""
        return links.ring(SimulatedGpu.current.timeline.gpu, list(range(self._parts)), 0, self._buffer.nbytes)

    def with_cublasmp(self):
        return False

    def is_fp8_ubuf(self):
        return self._buffer.element_size() == 1

    def copy_into_buffer(self, tensor, local_chunk=False):
        self._fits(tensor.numel(), local_chunk)

    def get_buffer(self, local_chunk=False, shape=None):
        rows, columns = self._buffer.shape
        shape = shape or (rows // self._parts if local_chunk else rows, columns)
        self._fits(math.prod(shape), local_chunk)
        return self._buffer.view(-1)[: math.prod(shape)].view(*shape)

    def get_communication_stream(self):
        return Stream(), Stream()

    def _fits(self, elements: int, local_chunk: bool):
        holds = self._buffer.numel() // (self._parts if local_chunk else 1)
        if elements != holds:
            raise RuntimeError(f"{elements} elements for a user buffer of {holds}")


class CommOverlapP2P(CommOverlap):
    pass
