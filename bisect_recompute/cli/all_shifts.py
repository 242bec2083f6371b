"""`run --all-shifts`: each shift of a line of commits, by bisection of every part whose ends differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from bisect_recompute.cli.measurer import Recorder
from bisect_recompute.cli.plan import Plan
from bisect_recompute.driver.loop import Event, Narrowed, bisect
from bisect_recompute.driver.search import Search
from bisect_recompute.measurement.judge import Judge
from bisect_recompute.measurement.shift import Shift, compare
from bisect_recompute.probe.result import ProbeResult
from bisect_recompute.verdict.findings import Between


class AllShifts:
    """``results`` holds both ends and is added to; ``weights(good, bad)``: the range's prior, from what those two say."""

    def __init__(
        self,
        plan: Plan,
        recorder: Recorder,
        results: dict[int, ProbeResult],
        weights: Callable[[int, int], list[float]],
        jobs: int,
        on_event: Callable[[Event], None],
    ):
        self._plan, self._recorder, self._results, self._weights = plan, recorder, results, weights
        self._jobs, self._on_event = jobs, on_event

    def find(self) -> tuple[Between, ...]:
        """Oldest first, in either direction: the parts make up the net, whichever way each goes."""
        return tuple(sorted(self._inside(-1, self._plan.last), key=lambda found: found.bad))

    def _inside(self, good: int, bad: int) -> Iterator[Between]:
        shifts = self._shifts(good, bad)
        if good >= bad or not any(shift.shifted for shift in shifts.values()):
            return
        found = self._bisected(good, bad, Judge(shifts))
        # Of a creep of small changes the step in its middle is no shift.
        if any(shift.shifted for shift in self._shifts(found.good, found.bad).values()):
            yield found
        yield from self._inside(good, found.good)
        yield from self._inside(found.bad, bad)

    def _shifts(self, good: int, bad: int) -> dict[str, Shift]:
        manifest = self._plan.manifest
        return compare(self._results[good], self._results[bad], self._plan.recipe.thresholds, manifest.metric, "any")

    def _bisected(self, good: int, bad: int, judge: Judge) -> Between:
        first = good + 1
        search = Search(self._weights(good, bad)[first : bad + 1])
        self._results |= {
            first + index: result
            for index, result in bisect(
                search,
                lambda index: self._recorder.measure(self._plan.commit(first + index).sha),
                judge.side,
                lambda index: self._recorder.known(self._plan.commit(first + index).sha),
                self._jobs,
                lambda event: self._on_event(_moved(event, first)),
            ).items()
        }
        suspects = tuple(first + index for index in search.suspects)
        before = suspects[0] - 1
        if before not in self._results:  # good without a probe of its own: its code is that of one that was measured
            self._results[before] = self._recorder.known(self._plan.commit(before).sha) or self._recorder.measure(
                self._plan.commit(before).sha
            )
        return Between(before, suspects[-1], suspects)


def _moved(event: Event, first: int) -> Event:
    """The event with the index of the whole range."""
    if isinstance(event, Narrowed):
        return event
    return replace(event, index=first + event.index)
