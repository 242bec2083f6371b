"""What a finished search hands to the verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bisect_recompute.differ.evidence import CommitChanges
from bisect_recompute.driver.search import Side
from bisect_recompute.history.commit import Commit, CommitRange
from bisect_recompute.measurement.shift import Shift, compare
from bisect_recompute.probe.recipe import Recipe, RecipeFunction
from bisect_recompute.probe.result import ProbeResult


@dataclass(frozen=True)
class Between:
    """A shift between two measured candidates; ``suspects``: what lies between and could not be measured, and ``bad``."""

    good: int
    bad: int
    suspects: tuple[int, ...]


@dataclass(frozen=True)
class Findings:
    """Indices are positions in ``range.commits``; the good endpoint is -1 and the bad one the last."""

    range: CommitRange
    first_parent: bool
    recipe: Recipe | RecipeFunction
    metric: str
    direction: str
    results: Mapping[int, ProbeResult]
    """By index, reused ones included; both endpoints are always there."""
    sides: Mapping[int, Side]
    probes_run: tuple[ProbeResult, ...]
    """Every probe that was really run, also those whose answer was not needed in the end."""
    culprit: int | None = None
    last_good: int | None = None
    """The measured good neighbour of the culprit."""
    suspects: tuple[int, ...] = ()
    changes: tuple[CommitChanges, ...] = ()
    notes: tuple[str, ...] = ()
    """What the reader of the verdict must know, one sentence each."""
    source_line: Callable[[str, str, int], str | None] = lambda commit, file, line: None
    """(commit, file, line) -> text of that line, None where it cannot be read."""
    inside: Findings | None = None
    """Of the search inside the submodule that the culprit moves, where that names a commit."""
    submodule: str = ""
    """Path of that submodule."""
    steps: tuple[Between, ...] | None = None
    """Each shift of the range, oldest first, where all were asked for."""
    reproduce: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    def commit(self, index: int) -> Commit:
        return self.range.good if index < 0 else self.range.commits[index]

    @property
    def last(self) -> int:
        return len(self.range.commits) - 1

    def shifts(self, good: int, bad: int) -> dict[str, Shift]:
        return compare(self.results[good], self.results[bad], self.recipe.thresholds, self.metric, self.direction)
