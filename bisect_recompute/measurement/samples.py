"""What repeated measurements of two commits say about their difference. Exact for any distribution of the noise.

Hodges and Lehmann 1963: the shift is the median of all differences between a sample of one side and one of the other; its
interval is that of the Mann-Whitney test (Conover, Practical Nonparametric Statistics, 5.4). On logarithms, so that
differences are ratios.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bisect_recompute.probe.result import ProbeResult, Sample

POWER = 1.6
"""Half an interval, times this, is a shift that about four experiments of five would have shown (tests/benchmarks/noise_study.py);
normal noise of known size would give (z of 97.5 % + z of 80 %) / z of 97.5 % = 1.43."""
OUTLIER = 3.5
"""Iglewicz and Hoaglin 1993: largest modified z-score of a sample that belongs to the others."""


@dataclass(frozen=True)
class Comparison:
    """From the good samples to the bad ones, in percent of the good ones."""

    change_pct: float
    low_pct: float
    """The interval that holds the change with ``confidence``; so is the next."""
    high_pct: float
    confidence: float
    samples: tuple[int, int]

    def outcome(self, threshold: float) -> Literal["different", "same", "open"]:
        """Different: by the threshold or more, and not by chance. Same: a change by the threshold is ruled out. Open: more
        samples are needed. ``threshold``: percent."""
        by_chance = self.low_pct <= 0 <= self.high_pct
        if not by_chance and abs(self.change_pct) >= threshold:
            return "different"
        return "same" if -threshold < self.low_pct and self.high_pct < threshold else "open"

    @property
    def smallest_shown_pct(self) -> float:
        """The smallest shift that these samples would probably (80 %) have shown, either way."""
        return POWER * (self.high_pct - self.low_pct) / 2


def compare_samples(good: Sequence[float], bad: Sequence[float], confidence: float) -> Comparison:
    """Positive samples, all of them independent runs. Raises ValueError: too few for that confidence."""
    rank = _rank(len(good), len(bad), (1 - confidence) / 2)
    if rank == 0:
        raise ValueError(f"{len(good)} and {len(bad)} samples are too few for a confidence of {confidence:g}")
    ratios = sorted(math.log(b / g) for g in good for b in bad)
    found = (statistics.median(ratios), ratios[rank - 1], ratios[-rank])
    return Comparison(*(100 * math.expm1(value) for value in found), confidence, (len(good), len(bad)))


def fewest_samples(confidence: float) -> int:
    """Of each side, so that there is an interval at all."""
    return next(count for count in range(2, 100) if _rank(count, count, (1 - confidence) / 2))


def outliers(values: Sequence[float]) -> list[int]:
    """Positions of values that lie apart from the others, which are a thousandth of their size apart at least."""
    middle = statistics.median(values)
    spread = max(statistics.median(abs(value - middle) for value in values), 1e-3 * abs(middle))
    return [index for index, value in enumerate(values) if 0.6745 * abs(value - middle) > OUTLIER * spread]


def pooled(results: Sequence[ProbeResult]) -> ProbeResult:
    """One result of several of a commit: medians, and the samples. One that is no measurement stands for all."""
    failed = next((result for result in results if result.status != "ok"), None)
    if failed or len(results) == 1:
        return failed or results[0]
    samples = tuple(
        Sample(
            r.memory and r.memory.peak_bytes, r.throughput and r.throughput.step_seconds,
            r.throughput and r.throughput.tflops_per_gpu,
        )
        for r in results
    )
    first, speeds = results[0], [sample.step_seconds for sample in samples]
    if first.throughput:
        results = sorted(results, key=lambda result: result.throughput.step_seconds)
        first = results[(len(results) - 1) // 2]
        rates = [sample.tflops_per_gpu for sample in samples]
        first = replace(first, throughput=replace(
            first.throughput, step_seconds=statistics.median(speeds),
            tflops_per_gpu=statistics.median(rates) if None not in rates else None,
        ))
        slow = [f"run {index + 1} of {len(samples)} lies apart: {speeds[index]:.4g} s a step, the median is "
                f"{statistics.median(speeds):.4g} s" for index in outliers(speeds)]
        first = replace(first, notes=(*first.notes, *slow))
    if first.memory:
        first = replace(first, memory=replace(first.memory, peak_bytes=round(statistics.median(s.peak_bytes for s in samples))))
    return replace(first, samples=samples, seconds=sum(result.seconds for result in results))


@functools.cache
def _rank(n: int, m: int, tail: float) -> int:
    """The largest k for which the k-th smallest of the n x m differences is an end of the interval: P(U < k) <= tail."""
    counts = _orders(n, m)
    total, below = math.comb(n + m, n), 0
    for k, count in enumerate(counts):
        below += count
        if below > tail * total * (1 + 1e-9):
            return k
    return 0


@functools.cache
def _orders(n: int, m: int) -> list[int]:
    """For each value 0 .. n m of Mann and Whitney's U, in how many orders of n + m values it arises."""
    if n == 0 or m == 0:
        return [1]
    first, second = [0] * m + _orders(n - 1, m), _orders(n, m - 1)
    size = n * m + 1
    return [a + b for a, b in zip(first + [0] * (size - len(first)), second + [0] * (size - len(second)))]
