"""Measures every candidate of a range, coarse to fine."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import TypeVar

from bisect_recompute.driver.loop import Event, Narrowed, Reused, Run

R = TypeVar("R")


class Survey:
    """Which of the candidates 0..n-1 to measure next; -1 is the good endpoint.

    Gaps whose measured ends differ come first, as the shifts are in them, then the widest; each is cut in the middle, so
    that whenever it is stopped the whole range is known about evenly. ``differ(i, j)`` compares two measured candidates.
    """

    def __init__(self, count: int, differ: Callable[[int, int], bool]):
        self._count, self._differ = count, differ
        self._measured: set[int] = set()
        self._failed: set[int] = set()

    def record(self, index: int, side: str) -> None:
        (self._failed if side == "skip" else self._measured).add(index)

    @property
    def open(self) -> list[int]:
        """Candidates without an answer, oldest first."""
        return [i for i in range(-1, self._count) if i not in self._measured and i not in self._failed]

    @property
    def finished(self) -> bool:
        return not self.open

    def next(self, count: int = 1, pending: Collection[int] = ()) -> list[int]:
        """Up to ``count`` candidates to measure now, besides those ``pending`` (being measured)."""
        chosen: list[int] = []
        while len(chosen) < count:
            gaps = self._gaps({*pending, *chosen})
            if not gaps:
                break
            _, start, end = max(gaps)
            # The ends of the range first; inside it the middle.
            chosen.append(start if start == -1 else end if end == self._count - 1 else (start + end) // 2)
        return sorted(chosen)

    def _gaps(self, busy: set[int]) -> list[tuple[tuple[bool, int], int, int]]:
        """((its ends differ, length), first, last) of every run of candidates that nobody measures."""
        gaps, start, before, waiting = [], None, None, []
        for i in range(-1, self._count + 1):
            free = i < self._count and i not in self._measured and i not in self._failed and i not in busy
            if free and start is None:
                start = i
            elif not free and start is not None:
                waiting.append((start, i - 1))
                start = None
            if i in self._measured or i == self._count:
                known = i < self._count and before is not None
                differ = known and bool(waiting) and self._differ(before, i)
                gaps += [((differ, end - first), first, end) for first, end in waiting]
                before, waiting = i, []
        return gaps


def survey(
    search: Survey,
    probe: Callable[[int], R],
    side: Callable[[R], str],
    known: Callable[[int], R | None] = lambda index: None,
    jobs: int = 1,
    on_event: Callable[[Event], None] = lambda event: None,
) -> dict[int, R]:
    """Every candidate's answer. Threads, events and errors are those of ``loop.bisect``; the side is
    skip where there is no measurement."""
    return _SurveyRun(search, probe, side, known, on_event).until_finished(jobs)


class _SurveyRun(Run):
    def reuse(self) -> None:
        for index in self.search.open:
            result = self.known(index) if index not in self.running else None
            if result is not None:
                side = self.side(result)
                self.search.record(index, side)
                self.results[index] = result
                self.on_event(Reused(index, result, side))
        left = len(self.search.open)
        # Of those left as many will need a probe of their own as of those before.
        own = len({id(result) for result in self.results.values()})
        self.on_event(Narrowed(left, math.ceil(left * own / len(self.results)) if own else left))
