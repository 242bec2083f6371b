"""Which side of a shift a measurement is on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bisect_recompute.driver.search import Side
from bisect_recompute.measurement.shift import Shift, value
from bisect_recompute.probe.result import ProbeResult


@dataclass(frozen=True)
class Judge:
    """Bad is what lies past half-way from the good endpoint to the bad one, in any metric that shifted between them.

    Half-way, not the threshold: a range holds small steps besides the one that is looked for.
    """

    shifts: Mapping[str, Shift]
    """As ``compare`` gives them for the endpoints."""

    def side(self, result: ProbeResult) -> Side:
        """Skip: there is no measurement (failed, timeout, unbuildable), or none of a metric that shifted."""
        if result.status not in ("ok", "oom"):
            return "skip"
        answers = [self._past(shift, result) for shift in self.shifts.values() if shift.shifted]
        if True in answers:
            return "bad"
        return "good" if False in answers else "skip"

    @staticmethod
    def _past(shift: Shift, result: ProbeResult) -> bool | None:
        out_of_memory = result.status == "oom"
        if shift.out_of_memory:
            return out_of_memory == (shift.out_of_memory > 0)
        measured = value(result, shift.unit)
        upwards = shift.bad > shift.good
        if measured is None:
            return upwards if out_of_memory and shift.metric == "memory" else None
        middle = (shift.good + shift.bad) / 2
        return measured > middle if upwards else measured < middle
