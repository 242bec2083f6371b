"""What one probe of one commit found."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["ok", "oom", "failed", "timeout", "unbuildable"]


@dataclass(frozen=True)
class LiveTensors:
    """Tensors of one origin alive at the peak, grouped by module pattern, shape, dtype and source line."""

    module: str
    """Module path with layer numbers replaced: ``decoder.layers.*.mlp``."""
    shape: tuple[int, ...]
    dtype: str
    """torch's name without the prefix: ``bfloat16``."""
    bytes: int
    """Sum over all of them."""
    count: int
    file: str
    """Path inside the repository (or package) of the code that made them."""
    line: int
    category: str


@dataclass(frozen=True)
class MemoryUse:
    peak_bytes: int
    """Largest ``by_rank`` value: what ``torch.cuda.max_memory_allocated`` would say on that rank's GPU."""
    by_rank: dict[int, int] = field(default_factory=dict)
    """Empty where it is not known which rank was measured. What a probe does not know of the following is empty or None."""
    by_category: dict[str, int] = field(default_factory=dict)
    """Bytes at the peak of the hottest rank: parameters, gradients, optimizer_state, activations, temporary."""
    allocated_bytes: int | None = None
    """What stays allocated after the last step on the hottest rank."""
    first_peak_bytes: int | None = None
    """Peak of the first iteration, before optimizer state exists."""
    capacity_bytes: int | None = None
    """Memory of the named GPU."""
    reserved_bytes: int | None = None
    """What the caching allocator has taken from the GPU by the end, on the hottest rank: ``torch.cuda.max_memory_reserved``."""
    reserved_at_peak_bytes: int | None = None
    """Reserved when ``peak_bytes`` was allocated: the difference is fragmentation."""
    tensors: tuple[LiveTensors, ...] = ()
    iteration_peaks: tuple[int, ...] = ()
    """Peak of each iteration of the hottest rank, as it would be logged."""
    device_bytes: int | None = None
    """All that is in use on the hottest rank's GPU, measured: with the CUDA context, NCCL's buffers and other processes."""


@dataclass(frozen=True)
class Throughput:
    """Measured; or, simulated, a model of the named GPU: a roofline for every kernel, collectives by message size and
    topology, overlap by stream, the pipeline's bubble. What a measurement does not know is None or empty."""

    step_seconds: float
    tflops_per_gpu: float | None = None
    """FLOPs of the model per GPU over ``step_seconds``, in TFLOP/s/GPU, as Megatron-LM logs it: what is recomputed does not count."""
    flops: float | None = None
    """FLOPs that the busiest simulated GPU executes in a step, recomputed ones included."""
    recomputed_flops: float | None = None
    hardware_tflops_per_gpu: float | None = None
    """Executed FLOPs, recomputed ones included, of the mean GPU over ``step_seconds``."""
    seconds_by_kind: dict[str, float] = field(default_factory=dict)
    """``step_seconds`` of the slowest pipeline stage: matmul (kernels bound by FLOPs), memory_bound (by memory bandwidth or launch
    latency), communication (what no kernel hides), bubble (waiting for other pipeline stages)."""
    recomputed_seconds: float | None = None
    """Of these, what ran again in backward."""


@dataclass(frozen=True)
class Sample:
    """One of several runs of a commit; None where a number is not known."""

    peak_bytes: int | None = None
    step_seconds: float | None = None
    tflops_per_gpu: float | None = None


@dataclass(frozen=True)
class Provenance:
    """Proof of which code ran."""

    modules: dict[str, str]
    """Repository path -> blob id, of every module of the probed repository that was loaded and every file that was opened."""
    absent: tuple[str, ...]
    """Repository paths that were looked for and not found; with a slash at the end, a whole directory."""
    packages: dict[str, str]
    """Distribution -> version: torch, transformer-engine, megatron-core."""
    megatron_source: str
    """``worktree`` or ``package megatron-core==X``."""
    attention_backend: str
    listed: dict[str, str] = field(default_factory=dict)
    """Directory whose entries were listed -> ``digest`` of what the commit has in it."""


def digest(tree: Mapping[str, str], folder: str) -> str:
    """Stands for every file of a commit (path -> blob id) below a directory."""
    prefix = "" if folder == "." else f"{folder}/"
    lines = [f"{path}\0{blob}\n" for path, blob in sorted(tree.items()) if path.startswith(prefix)]
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


@dataclass(frozen=True)
class ProbeResult:
    revision: str
    status: Status
    stage: str
    """Where it ended: checkout, import, build, forward, backward, optimizer or done."""
    reason: str
    """Last line of the error; empty when ok."""
    seconds: float
    command: str
    """A command line that repeats this probe."""
    probe: str = "simulate"
    memory: MemoryUse | None = None
    throughput: Throughput | None = None
    provenance: Provenance | None = None
    settings: dict[str, object] = field(default_factory=dict)
    """The TransformerConfig that the commit's code ended up with, its own defaults and corrections included: every field
    with a plain value, enum members by name."""
    log: str | None = None
    samples: tuple[Sample, ...] = ()
    """Of a probe that ran several times: memory and throughput are the medians."""
    resident_bytes: dict[int, int] = field(default_factory=dict)
    """Rank -> peak resident set size of its process: the host's memory, not a GPU's. Only of real training."""
    by_machine: bool = False
    """It may be the machine that ended the probe, not the commit's code: killed, or out of time with little of a processor."""
    notes: tuple[str, ...] = field(default=())
    """What the simulation left out or assumed, one sentence each."""
