"""Measured training runs to hold the simulator against: their file, and the errors."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional, Union

import numpy
from pydantic import BaseModel, TypeAdapter, ValidationError

from bisect_recompute.errors import UsageError
from bisect_recompute.probe.recipe import LaunchRecipe
from bisect_recompute.probe.result import ProbeResult

GPUS_PER_NODE = 8
MOST_GPUS = 4096
SCRIPTS = {
    "bert": "pretrain_bert.py", "t5": "pretrain_t5.py", "gpt": "", "moe": "", "mixtral": "", "hybrid": "", "mamba": "",
    "nemotron": "", "multimodal-llava": "pretrain_vlm.py",
}
"""First word of a case's name -> its script, where the case states none; "": the arguments tell."""


class Measured(BaseModel):
    """Bytes of ``torch.cuda.max_memory_allocated`` at the logged iterations, on the last rank; seconds."""

    first_logged_peak_bytes: Optional[float] = None
    second_logged_peak_bytes: Optional[float] = None
    allocated_last_bytes: Optional[float] = None
    median_iteration_seconds: Optional[float] = None

    @property
    def peak_bytes(self) -> float | None:
        """Of the second logged iteration: then optimizer state exists. Of the first where there is no second."""
        return self.second_logged_peak_bytes or self.first_logged_peak_bytes


class Case(BaseModel):
    """One measured run and the arguments of its training script (option -> value; true for a flag)."""

    case: str
    megatron_args: dict[str, Union[bool, int, float, str, list]]
    nodes_gpus: Optional[list[tuple[int, int]]] = None
    tokenizer: Optional[str] = None
    script: Optional[str] = None
    gpu: str = "h100"
    measured: Measured

    def recipe(self, world_size: int | None = None) -> LaunchRecipe:
        """Its last rank (world size - 1), which is the one that logs. Raises UsageError where the arguments are none."""
        world_size = world_size or self.world_size
        family = self.case.partition("/")[0]
        script = SCRIPTS.get(family) if self.script is None else self.script
        if script is None:
            raise UsageError(f"{self.case}: which script trains a {family} is not known; state 'script'")
        words = [script] if script else []
        for option, value in self.megatron_args.items():
            words += _words(option, value)
        try:
            return LaunchRecipe(
                name=self.case, megatron_args=shlex.join(words), world_size=world_size, ranks=[world_size - 1],
                hardware={"gpu": self.gpu},
            )
        except ValidationError as error:
            raise UsageError(f"{self.case}: {error.errors()[0]['msg']}") from None

    @property
    def world_size(self) -> int:
        """Stated; else as few whole nodes as the parallel sizes need. Never more than one microbatch per rank leaves busy."""
        if self.nodes_gpus:
            nodes, gpus = self.nodes_gpus[0]
            return min(nodes * gpus, self._busy)
        expert = self._size("expert-model-parallel-size") * self._size("expert-tensor-parallel-size", self._tensor)
        needed = math.lcm(self._tensor * self._context, expert) * self._pipeline
        return math.lcm(needed, GPUS_PER_NODE)

    @property
    def _busy(self) -> int:
        microbatches = self._size("global-batch-size", 10**9) // self._size("micro-batch-size")
        return self._tensor * self._context * self._pipeline * microbatches

    _tensor = property(lambda self: self._size("tensor-model-parallel-size"))
    _pipeline = property(lambda self: self._size("pipeline-model-parallel-size"))
    _context = property(lambda self: self._size("context-parallel-size"))

    def _size(self, option: str, default: int = 1) -> int:
        return int(self.megatron_args.get(f"--{option}") or default)


SURE = 2.0
"""Percent of allocated memory over the measured one that another number of GPUs may explain."""


def _words(option: str, value) -> list[str]:
    if value is True:
        return [option]
    if value is False:
        return []
    if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        return [option, *shlex.split(value[1:-1])]
    if isinstance(value, list):
        return [option, *map(str, value)]
    return [option, str(value)]


def read_cases(path: Path) -> list[Case]:
    """Raises UsageError with one line."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"{path} line {error.lineno}: no JSON: {error.msg}") from None
    try:
        return TypeAdapter(list[Case]).validate_python(data["cases"] if isinstance(data, dict) else data)
    except KeyError:
        raise UsageError(f"{path}: the list 'cases' is missing") from None
    except ValidationError as error:
        problem = error.errors()[0]
        raise UsageError(f"{path}: cases.{'.'.join(map(str, problem['loc']))}: {problem['msg']}") from None


@dataclass(frozen=True)
class Comparison:
    case: str
    status: str
    reason: str
    simulated_bytes: int | None
    measured_bytes: int | None
    error_pct: float | None
    allocated_simulated_bytes: int | None
    allocated_measured_bytes: int | None
    allocated_error_pct: float | None
    seconds: float


def nearest(case: Case, measure: Callable[[LaunchRecipe], ProbeResult]) -> Comparison:
    """Measures the case. Where it does not state its GPUs, which decide how optimizer state is sharded, their number is
    inferred from what was allocated after a step: doubled from the fewest possible for as long as that comes nearer."""
    world_size = case.world_size
    best = compare(case, measure(case.recipe()))
    if case.nodes_gpus or best.allocated_error_pct is None:
        return best
    inferred = world_size
    while best.allocated_error_pct > SURE and world_size < MOST_GPUS:
        world_size *= 2
        other = compare(case, measure(case.recipe(world_size)))
        if other.allocated_error_pct is None or abs(other.allocated_error_pct) >= abs(best.allocated_error_pct):
            break
        best, inferred = other, world_size
    return replace(best, reason=f"the number of GPUs is not stated; {inferred} fit what was allocated")


def failed(case: Case, reason: str) -> Comparison:
    """A case whose arguments cannot be run."""
    measured = case.measured
    return Comparison(
        case=case.case, status="failed", reason=reason, seconds=0.0, simulated_bytes=None,
        measured_bytes=_whole(measured.peak_bytes), error_pct=None, allocated_simulated_bytes=None,
        allocated_measured_bytes=_whole(measured.allocated_last_bytes), allocated_error_pct=None,
    )


def compare(case: Case, result: ProbeResult) -> Comparison:
    """Errors in percent of the measured value."""
    measured = case.measured
    second = measured.second_logged_peak_bytes is not None
    simulated = allocated = None
    if result.memory is not None:
        simulated = result.memory.iteration_peaks[1 if second else 0]
        allocated = result.memory.allocated_bytes
    return Comparison(
        case=case.case, status=result.status, reason=result.reason, seconds=result.seconds,
        simulated_bytes=simulated, measured_bytes=_whole(measured.peak_bytes),
        error_pct=_error(simulated, measured.peak_bytes),
        allocated_simulated_bytes=allocated, allocated_measured_bytes=_whole(measured.allocated_last_bytes),
        allocated_error_pct=_error(allocated, measured.allocated_last_bytes),
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _error(simulated: float | None, measured: float | None) -> float | None:
    return None if simulated is None or not measured else 100 * (simulated - measured) / measured


def spread(errors: list[float | None]) -> dict[str, float | None]:
    """Median, 90th percentile (linear between neighbours) and worst of the absolute errors, in percent."""
    sizes = [abs(error) for error in errors if error is not None]
    if not sizes:
        return {"median": None, "p90": None, "worst": None}
    median, p90 = numpy.percentile(sizes, [50, 90])
    return {"median": float(median), "p90": float(p90), "worst": max(sizes)}
