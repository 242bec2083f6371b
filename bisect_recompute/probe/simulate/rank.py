"""One rank's training step, measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from bisect_recompute.probe.gpu import GPUS
from bisect_recompute.probe.recipe import LaunchRecipe, Recipe
from bisect_recompute.probe.result import LiveTensors
from bisect_recompute.probe.simulate import distributed, memory, model, model_flops, snapshot, step
from bisect_recompute.probe.simulate.device import SimulatedGpu
from bisect_recompute.probe.simulate.step_time import StepTime, step_time

TENSOR_GROUPS = 200


@dataclass(frozen=True)
class RankMeasurement:
    """Bytes and FLOPs of one rank; FLOPs are those of a whole step."""

    rank: int
    peak_bytes: int
    iteration_peaks: tuple[int, ...]
    allocated_bytes: int
    by_category: dict[str, int]
    reserved_bytes: int
    reserved_at_peak_bytes: int
    tensors: tuple[LiveTensors, ...]
    flops: float
    recomputed_flops: float
    time: StepTime
    attention_backend: str
    settings: dict[str, object]
    model_flops: float | None
    """Of a whole step on all GPUs, as Megatron-LM counts them; None: not known."""


class Meter:
    """What one process counts while the commit's code runs under its ``gpu``."""

    snapshot: Path | None = None
    """Where each rank leaves its memory snapshot, with ``.RANK`` at the end; None: none is wanted."""

    def __init__(self, recipe: Recipe | LaunchRecipe, source_files, on_stage, whole_process: bool = False):
        """``whole_process``: peaks count from the start of the process, as ``torch.cuda.max_memory_allocated`` does; else
        an iteration's peak is its own."""
        self._whole_process = whole_process
        self.tracker = memory.MemoryTracker(source_files)
        sharded = isinstance(recipe, LaunchRecipe) and recipe.shards_parameters
        self.gpu = SimulatedGpu(self.tracker, GPUS[recipe.hardware.gpu], sharded)
        self.gpu.counting = False
        self.on_stage = on_stage
        self._capacity = GPUS[recipe.hardware.gpu].memory_bytes
        self._expandable_segments = recipe.expandable_segments
        self._built = 0
        self._ends: list[int] = []  # number of events when each iteration ended
        SimulatedGpu.current = self.gpu
        _follow_backward(self.tracker)

    def enter(self, phase: str):
        """The name of what comes next: build, ddp, optimizer (its construction), forward, step (the optimizer's)."""
        self.tracker.phase = phase
        self.on_stage("optimizer" if phase == "step" else phase)

    def built(self, chunks: list):
        """Parameters and gradients exist."""
        _mark_parameters(self.tracker, chunks)
        self._built = len(self.tracker.events)

    def take(self, losses: list):
        """What the schedule returned has no values here."""

    def end_iteration(self, last_follows: bool):
        """FLOPs and times are those of the last iteration."""
        _mark_optimizer_state(self.tracker)
        self._ends.append(len(self.tracker.events))
        self.gpu.timeline.end_step()
        self.gpu.counting = self.gpu.timeline.counting = last_follows

    def measurement(
        self, rank: int, microbatches: int, simulated: int, settings: dict[str, object], model_flops: float | None
    ) -> RankMeasurement:
        """``microbatches``: of a whole step; ``simulated``: of the last iteration."""
        scale = microbatches / simulated
        reserved = self.tracker.replay(self._expandable_segments)
        starts = (self._built, *self._ends[:-1])
        peaks = [
            self.tracker.peak_between(0 if self._whole_process else start, end)
            for start, end in zip(starts, self._ends)
        ]
        alive = self.tracker.alive_at(peaks[-1][1])
        if self.snapshot is not None:
            snapshot.write(of_rank(self.snapshot, rank), self.tracker.events, self._capacity)
        return RankMeasurement(
            rank=rank, peak_bytes=peaks[-1][0], iteration_peaks=tuple(peak for peak, _ in peaks),
            allocated_bytes=sum(self.tracker.alive_at(self._ends[-1] - 1).values()), reserved_bytes=reserved[self._ends[-1] - 1],
            reserved_at_peak_bytes=reserved[peaks[-1][1]], by_category=memory.by_category(alive), tensors=memory.grouped(alive, TENSOR_GROUPS),
            flops=self.gpu.flops * scale, recomputed_flops=self.gpu.recomputed_flops * scale, model_flops=model_flops,
            time=step_time(self.gpu.timeline, microbatches, simulated),
            attention_backend=self.gpu.attention_backend, settings=settings,
        )


def measure(recipe: Recipe, rank: int, source_files, on_stage) -> RankMeasurement:
    """Builds and trains two iterations in this process, which must not have simulated before."""
    meter = Meter(recipe, source_files, on_stage)
    tracker = meter.tracker
    with meter.gpu:
        on_stage("build")
        distributed.connect(rank, recipe.parallel.world_size)
        model.initialize_parallel(recipe)
        config = model.transformer_config(recipe)
        chunks = model.build_chunks(recipe, config)
        follow_modules(tracker, chunks)
        tracker.phase = "ddp"
        chunks = model.wrap_data_parallel(recipe, config, chunks)
        tracker.phase = "optimizer"
        optimizer = model.build_optimizer(recipe, chunks)
        step.connect(config, recipe, chunks, optimizer)
        meter.built(chunks)
        counts = [step.simulated_microbatches(recipe, iteration, rank) for iteration in range(step.ITERATIONS)]
        step.train(recipe, config, chunks, optimizer, meter, counts)
    return meter.measurement(
        rank, recipe.num_microbatches, counts[-1], model.plain_settings(config), model_flops.of(recipe, config)
    )


def _follow_backward(tracker: memory.MemoryTracker):
    """Everything that reaches the autograd engine is backward, whichever function of Megatron Core started it."""
    engine = torch.autograd.Variable._execution_engine

    class Engine:
        def run_backward(self, *args, **kwargs):
            outer, tracker.phase = tracker.phase, "backward"
            try:
                return engine.run_backward(*args, **kwargs)
            finally:
                tracker.phase = outer

        def __getattr__(self, name):
            return getattr(engine, name)

    torch.autograd.Variable._execution_engine = Engine()


def bare(chunk: torch.nn.Module) -> torch.nn.Module:
    """The model inside its wrappers (data parallel, precision)."""
    while isinstance(getattr(chunk, "module", None), torch.nn.Module):
        chunk = chunk.module
    return chunk


def of_rank(path: Path, rank: int) -> Path:
    return path.with_name(f"{path.name}.{rank}")


def follow_modules(tracker: memory.MemoryTracker, chunks: list):
    """Keeps the path of the module that runs. A module's forward inside backward is recomputation."""
    names = {}
    for index, chunk in enumerate(chunks):
        prefix = f"chunk{index}." if len(chunks) > 1 else ""
        for name, module in bare(chunk).named_modules():
            names[module] = prefix + name
    phases = []

    def before(module, args):
        tracker.modules.append(names.get(module) or (tracker.modules[-1] if tracker.modules else ""))
        phases.append(tracker.phase)
        if tracker.phase == "backward":
            tracker.phase = "recompute"

    def after(module, args, output):
        tracker.modules.pop()
        tracker.phase = phases.pop()

    torch.nn.modules.module.register_module_forward_pre_hook(before)
    torch.nn.modules.module.register_module_forward_hook(after, always_call=True)


def _mark_parameters(tracker: memory.MemoryTracker, chunks: list):
    for chunk in chunks:
        for parameter in chunk.parameters():
            tracker.see(_held(parameter.data)).category = "parameters"
            gradient = getattr(parameter, "main_grad", None)
            if gradient is not None:
                tracker.see(_held(gradient)).category = "gradients"


def _held(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a DTensor, which itself has no memory."""
    return getattr(tensor, "_local_tensor", tensor)


def _mark_optimizer_state(tracker: memory.MemoryTracker):
    """What the optimizer step made and what outlives it is its state."""
    for block in tracker.living():
        if block.phase == "step" and block.category is None:
            block.category = "optimizer_state"
