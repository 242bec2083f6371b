"""One rank's training step, measured."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bisect_recompute.probe.gpu import GPUS
from bisect_recompute.probe.recipe import Recipe
from bisect_recompute.probe.result import LiveTensors
from bisect_recompute.probe.simulate import memory, model, step
from bisect_recompute.probe.simulate.device import SimulatedGpu

TENSOR_GROUPS = 200


@dataclass(frozen=True)
class RankMeasurement:
    """Bytes and FLOPs of one rank; FLOPs are those of a whole step."""

    rank: int
    peak_bytes: int
    first_peak_bytes: int
    allocated_bytes: int
    by_category: dict[str, int]
    tensors: tuple[LiveTensors, ...]
    flops: float
    recomputed_flops: float
    attention_backend: str
    settings: dict[str, object]


def measure(recipe: Recipe, rank: int, source_files, on_stage) -> RankMeasurement:
    """Builds and trains two iterations in this process, which must not have simulated before."""
    gpu_kind = GPUS[recipe.hardware.gpu]
    tracker = memory.MemoryTracker(source_files)
    gpu = SimulatedGpu(tracker, gpu_kind.compute_capability)
    SimulatedGpu.current = gpu
    _follow_backward(tracker)
    ends: list[tuple[int, int]] = []  # per iteration: number of events so far, bytes that stay allocated

    def enter(phase: str):
        tracker.phase = phase
        on_stage("optimizer" if phase == "step" else phase)

    def end_iteration():
        _mark_optimizer_state(tracker)
        ends.append((len(tracker.events), tracker.allocated))
        gpu.counting = len(ends) == step.ITERATIONS - 1

    with gpu:
        on_stage("build")
        model.initialize_parallel(recipe, rank)
        config = model.transformer_config(recipe)
        chunks = model.build_chunks(recipe, config)
        _follow_modules(tracker, chunks)
        tracker.phase = "ddp"
        chunks = model.wrap_data_parallel(recipe, config, chunks)
        _mark_parameters(tracker, chunks)
        tracker.phase = "optimizer"
        optimizer = model.build_optimizer(recipe, chunks)
        step.connect(config, recipe, chunks, optimizer)
        gpu.counting = False
        built = len(tracker.events)
        step.train(recipe, config, chunks, optimizer, enter, end_iteration)

    first_peak, _ = tracker.peak_between(built, ends[0][0])
    peak, at = tracker.peak_between(ends[-2][0], ends[-1][0])
    alive = tracker.alive_at(at)
    scale = recipe.num_microbatches / step.simulated_microbatches(recipe, step.ITERATIONS - 1)
    return RankMeasurement(
        rank=rank, peak_bytes=peak, first_peak_bytes=first_peak, allocated_bytes=ends[-1][1],
        by_category=memory.by_category(alive), tensors=memory.grouped(alive, TENSOR_GROUPS), flops=gpu.flops * scale,
        recomputed_flops=gpu.recomputed_flops * scale, attention_backend=gpu.attention_backend,
        settings=model.plain_settings(config),
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


def _follow_modules(tracker: memory.MemoryTracker, chunks: list):
    """Keeps the path of the module that runs. A module's forward inside backward is recomputation."""
    names = {}
    for index, chunk in enumerate(chunks):
        prefix = f"chunk{index}." if len(chunks) > 1 else ""
        bare = chunk.module if hasattr(chunk, "module") else chunk
        for name, module in bare.named_modules():
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
            tracker.see(parameter.data).category = "parameters"
            gradient = getattr(parameter, "main_grad", None)
            if gradient is not None:
                tracker.see(gradient).category = "gradients"


def _mark_optimizer_state(tracker: memory.MemoryTracker):
    """What the optimizer step made and what outlives it is its state."""
    for block in tracker.living():
        if block.phase == "step" and block.category is None:
            block.category = "optimizer_state"
