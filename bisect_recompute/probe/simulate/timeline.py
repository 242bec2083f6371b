"""When things happen on the simulated GPU: a roofline for each kernel, links for collectives, a clock for each stream.

A kernel takes the longest of its FLOPs over the achievable peak, its bytes over the memory bandwidth, and the time in
which the CPU launches one. Collectives run beside kernels, those of one process group one after another; a stream
stands still where it waits for one. Kernels of other streams run beside the main one's, matrix products excepted: those
fill the GPU. Kinds of time: matmul (bound by FLOPs), memory_bound (by bytes or by launches), communication (waiting).
"""

from __future__ import annotations

from collections import Counter

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork

from bisect_recompute.probe.gpu import Gpu
from bisect_recompute.probe.simulate import links
from bisect_recompute.probe.simulate.streams import Stream
from bisect_recompute.probe.simulate.traffic import nbytes

LAUNCH = 3.8e-6
"""Seconds from one launch to the next of kernels that do little (NVIDIA, "Getting Started with CUDA Graphs", 2019)."""
PRECISION = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.uint8: "fp8"}
MICROBATCH_PHASES = ("forward", "backward", "recompute")


class Work(FakeWork):
    """A collective under way."""

    def wait(self, timeout=None):
        self.timeline.wait(self)
        return True

    synchronize = wait

    def block_current_stream(self):
        self.timeline.wait(self)


class Timeline:
    def __init__(self, gpu: Gpu, tracker, sharded_parameters: bool = False):
        """``sharded_parameters``: data parallelism gathers and reduces in every microbatch (FSDP), else once a step."""
        self.gpu = gpu
        self.counting = False
        self.microbatches = Counter()  # kind -> seconds of the simulated forward and backward passes
        self.recomputed = 0.0  # seconds of them that ran again in backward
        self.once = Counter()  # kind -> seconds once a step: the optimizer, collectives of data parallelism
        self.tracker = tracker
        self._sharded_parameters = sharded_parameters
        self._bytes_per_second = gpu.hbm * 1e9
        self._peak = {
            dtype: gpu.tflops[name] * 1e12 * gpu.matmul_efficiency
            for dtype, name in PRECISION.items() if name in gpu.tflops
        }
        self._attention_peak = gpu.tflops["bf16"] * 1e12 * gpu.attention_efficiency
        self._slowest = gpu.tflops["fp32"] * 1e12
        self._groups: dict[str, tuple[list[int], int, bool]] = {}
        self._ends: dict[str, float] = {}
        self._works: list[Work] = []
        self.inside = 0
        self._pending = 0.0
        self._once = False
        Stream.main.waited = self._waited

    # --- kernels -----------------------------------------------------------------------------------------------------

    def kernel(self, flops: float, moved: float, dtype=torch.bfloat16, attention: bool = False, link: float = 0.0):
        """``link``: seconds of a collective that the kernel overlaps with (``tp_comm_overlap``)."""
        if not self.counting:
            return
        peak = self._attention_peak if attention else self._peak.get(dtype, self._slowest)
        compute = flops / peak
        if self.inside:
            self._pending += compute
            return
        self._longest(compute, moved)
        if link > compute:
            self._charge(link - compute, "communication")

    def _longest(self, compute: float, moved: float):
        memory = moved / self._bytes_per_second
        if compute > memory:
            self._run(compute if compute > LAUNCH else LAUNCH, "matmul")
        else:
            self._run(memory if memory > LAUNCH else LAUNCH, "memory_bound")

    def begin(self):
        """Operators up to ``end`` are parts of one kernel."""
        self.inside += 1

    def end(self, moved: float):
        self.inside -= 1
        if not self.inside:
            compute, self._pending = self._pending, 0.0
            if moved or compute:
                self._longest(compute, moved)

    def copy_to_or_from_host(self, moved: float):
        if self.counting:
            self._run(moved / (self.gpu.host * 1e9), "memory_bound")

    def _run(self, seconds: float, kind: str):
        stream, main = Stream.current, Stream.main
        if stream is main:
            self._charge(seconds, kind)
        elif kind == "matmul":
            main.reach(stream.time)
            self._charge(seconds, kind)
            stream.time = main.time
        else:
            stream.time += seconds

    def _charge(self, seconds: float, kind: str):
        Stream.main.time += seconds
        self._note(seconds, kind)

    def _note(self, seconds: float, kind: str):
        phase = self.tracker.phase
        if phase in MICROBATCH_PHASES and not self._once:
            self.microbatches[kind] += seconds
            # Only what a checkpoint runs again has its gradients switched on inside backward.
            if phase == "recompute" or (phase == "backward" and torch.is_grad_enabled()):
                self.recomputed += seconds
        else:
            self.once[kind] += seconds

    def _waited(self, seconds: float):
        """The main stream stands still."""
        if self.counting:
            self._note(seconds, "communication")

    # --- collectives -------------------------------------------------------------------------------------------------

    def collective(self, func, args) -> FakeWork:
        """What the caller may wait for."""
        if not self.counting:
            return FakeWork()
        group = dist.ProcessGroup.unbox(next(a for a in args if isinstance(a, torch.ScriptObject)))
        ranks, rank, once = self._described(group)
        if len(ranks) < 2:
            return FakeWork()
        name = func._schema.name.partition("::")[2]
        seconds = self._duration(name, args, ranks, rank)
        begin = max(Stream.current.time, self._ends.get(group.group_name, 0.0))
        work = Work()
        work.timeline, work.end, work.once = self, begin + seconds, once
        self._ends[group.group_name] = work.end
        self._works.append(work)  # the object in C++ does not keep this one alive
        return work

    def wait(self, work: Work):
        outer, self._once = self._once, work.once
        Stream.current.reach(work.end)
        self._once = outer

    def _described(self, group) -> tuple[list[int], int, bool]:
        """(global ranks, the own one, whether its collectives come once a step)."""
        known = self._groups.get(group.group_name)
        if known is None:
            ranks = dist.get_process_group_ranks(group)
            once = not self._sharded_parameters and _is_data_parallel(group)
            known = self._groups[group.group_name] = ranks, dist.get_rank(), once
        return known

    def _duration(self, name: str, args, ranks: list[int], rank: int) -> float:
        if name in ("send", "recv_"):
            peer = dist.get_rank() if len(args) < 3 else ranks[args[2]]
            return links.one_way(self.gpu, [rank, peer], rank, nbytes(args[0]))
        if name == "barrier":
            return links.ring(self.gpu, ranks, rank, 0)
        if "alltoall" in name:
            return links.all_to_all(self.gpu, ranks, rank, nbytes(args[1]))
        if "allreduce" in name:
            return links.ring(self.gpu, ranks, rank, nbytes(args[0]), rounds=2)
        if "allgather" in name:
            return links.ring(self.gpu, ranks, rank, nbytes(args[0]))
        if "reduce_scatter" in name:
            return links.ring(self.gpu, ranks, rank, nbytes(args[1]))
        return links.one_way(self.gpu, ranks, rank, nbytes(args[0]))

    def end_step(self):
        self._works.clear()
        for end in self._ends.values():
            self._once = True
            Stream.main.reach(end)
        self._once = False


def _is_data_parallel(group) -> bool:
    from megatron.core import parallel_state

    return any(value is group for name, value in vars(parallel_state).items() if "DATA" in name)
