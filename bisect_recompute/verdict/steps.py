"""Where a range that was measured commit by commit shifts."""

from __future__ import annotations

from collections.abc import Iterator

from bisect_recompute.verdict.findings import Between, Findings


def shifts_in(f: Findings) -> Iterator[Between]:
    """Measured commits that shift from what was measured before them, oldest first.

    A merge is held against the parent that is most like it: what moved on a side branch is no shift of the merge.
    """
    parents = f.range.parents()
    for index in range(len(f.range.commits)):
        if _measured(f, index):
            before, unmeasured = _before(f, index, parents)
            best = min(before, key=lambda good: _size(f, good, index), default=None)
            if best is not None and any(shift.shifted for shift in f.shifts(best, index).values()):
                yield Between(best, index, (*sorted(unmeasured), index))


def _measured(f: Findings, index: int) -> bool:
    return index in f.results and f.results[index].status in ("ok", "oom")


def _before(f: Findings, index: int, parents: list[tuple[int, ...]]) -> tuple[set[int], set[int]]:
    """The nearest measured ancestors, and those between that are not; -1 is the parent of what has none in the range."""
    nearest, between, open_ = set(), set(), list(parents[index] or (-1,))
    while open_:
        at = open_.pop()
        if _measured(f, at):
            nearest.add(at)
        elif at >= 0 and at not in between:
            between.add(at)
            open_ += parents[at] or (-1,)
    return nearest, between


def _size(f: Findings, good: int, bad: int) -> tuple[int, float]:
    shifts = f.shifts(good, bad).values()
    return sum(s.shifted for s in shifts), sum(abs(s.change_pct or 0.0) for s in shifts)


