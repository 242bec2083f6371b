"""Sides by fixed limits instead of two references."""

from __future__ import annotations

from dataclasses import dataclass

from bisect_recompute.driver.search import Side
from bisect_recompute.measurement.shift import value
from bisect_recompute.probe.result import ProbeResult


@dataclass(frozen=True)
class Limits:
    """None: no limit."""

    memory: int | None = None
    """Bytes that the peak may reach."""
    tflops: float | None = None
    """TFLOP/s/GPU that a step must come to."""

    def __bool__(self) -> bool:
        return self != Limits()

    def side(self, result: ProbeResult) -> Side:
        """Out of memory is beyond any limit; what could not be measured is a skip."""
        if result.status == "oom":
            return "bad"
        peak, tflops = value(result, "bytes"), value(result, "TFLOP/s/GPU")
        unknown = (self.memory is not None and peak is None) or (self.tflops is not None and tflops is None)
        if result.status != "ok" or unknown:
            return "skip"
        too_large = self.memory is not None and peak > self.memory
        too_slow = self.tflops is not None and tflops < self.tflops
        return "bad" if too_large or too_slow else "good"
