"""How far two measurements lie apart, and whether that counts as a shift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bisect_recompute.measurement.samples import Comparison, compare_samples, fewest_samples
from bisect_recompute.probe.recipe import Thresholds
from bisect_recompute.probe.result import ProbeResult

Metric = Literal["memory", "throughput"]
Direction = Literal["worse", "better", "any"]

METRICS = ("memory", "throughput")
_WORSE = {"memory": 1, "throughput": -1}


@dataclass(frozen=True)
class Shift:
    """One metric at a good and at a bad commit."""

    metric: Metric
    unit: str
    """As ``unit_of`` says."""
    good: float | None
    bad: float | None
    change_pct: float | None
    """Percent of the good value; None when a side has no number."""
    shifted: bool
    """The metric was asked for, moved in the direction asked for, and by the threshold or more."""
    out_of_memory: int = 0
    """Where the numbers do not show the shift: +1, only the bad side runs out of memory; -1, only the good; else 0."""


    noise: Comparison | None = None
    """Where both sides were measured several times: a shift is then no work of chance."""


CONFIDENCE = 0.95


def unit_of(metric: Metric, *results: ProbeResult) -> str:
    """bytes, or TFLOP/s/GPU; steps/s where one of the results has only the time of a step."""
    if metric == "memory":
        return "bytes"
    timed = any(result.throughput and result.throughput.tflops_per_gpu is None for result in results)
    return "steps/s" if timed else "TFLOP/s/GPU"


def value(result: ProbeResult, unit: str) -> float | None:
    """The peak, or the throughput, in a unit of ``unit_of``. None when the probe did not get that far."""
    if unit == "bytes":
        return result.memory.peak_bytes if result.memory else None
    if result.throughput is None:
        return None
    return result.throughput.tflops_per_gpu if unit == "TFLOP/s/GPU" else 1 / result.throughput.step_seconds


def samples(result: ProbeResult, unit: str) -> list[float]:
    """Of a probe that ran several times, what ``value`` gives of each; empty where one has no number."""
    read = {
        "bytes": lambda sample: sample.peak_bytes, "TFLOP/s/GPU": lambda sample: sample.tflops_per_gpu,
        "steps/s": lambda sample: sample.step_seconds and 1 / sample.step_seconds,
    }[unit]
    found = [read(sample) for sample in result.samples]
    return [] if None in found else found


def compare(
    good: ProbeResult, bad: ProbeResult, thresholds: Thresholds, metric: str = "any", direction: Direction = "worse"
) -> dict[str, Shift]:
    """Both metrics from ``good`` to ``bad``. Worse is memory up, or throughput down."""
    return {name: _shift(name, good, bad, getattr(thresholds, name), metric, direction) for name in METRICS}


def _shift(name, good, bad, threshold, metric, direction) -> Shift:
    unit = unit_of(name, good, bad)
    before, after = value(good, unit), value(bad, unit)
    if name == "memory" and good.status == bad.status == "oom":
        before = after = None  # each needs at least that: which one needs more is not known
    change = 100.0 * (after - before) / before if before and after is not None else None
    asked = metric in ("any", name)
    signs = {"worse": (_WORSE[name],), "better": (-_WORSE[name],), "any": (1, -1)}[direction]
    by_size = change is not None and any(change * sign > 0 and change * sign >= threshold for sign in signs)
    noise = _noise(samples(good, unit), samples(bad, unit))
    by_size = by_size and (noise is None or noise.outcome(threshold) == "different")
    crossed = (bad.status == "oom") - (good.status == "oom") if name == "memory" else 0
    if not asked or by_size or crossed not in signs:
        crossed = 0
    return Shift(name, unit, before, after, change, asked and (by_size or bool(crossed)), crossed, noise)


def _noise(good: list[float], bad: list[float]) -> Comparison | None:
    enough = min(len(good), len(bad)) >= fewest_samples(CONFIDENCE)
    return compare_samples(good, bad, CONFIDENCE) if enough else None
