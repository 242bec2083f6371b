"""The main job: endpoints, search, findings. Everything it measures goes through the journal."""

from __future__ import annotations

import importlib.metadata
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from bisect_recompute.cli.all_shifts import AllShifts
from bisect_recompute.cli.measurer import Measurer, Recorder
from bisect_recompute.cli.plan import Plan
from bisect_recompute.differ.evidence import CommitChanges, weight
from bisect_recompute.driver.loop import Event, Narrowed, ProbeFinished, ProbeStarted, Reused, bisect
from bisect_recompute.driver.search import Search, Side
from bisect_recompute.errors import EndpointError
from bisect_recompute.history.commit import Commit
from bisect_recompute.measurement.journal import Journal
from bisect_recompute.measurement.judge import Judge
from bisect_recompute.measurement.moved import moved_files
from bisect_recompute.measurement.same_code import same_code
from bisect_recompute.measurement.shift import METRICS, compare, unit_of, value
from bisect_recompute.probe.bridge import BridgeRecipe
from bisect_recompute.probe.result import ProbeResult
from bisect_recompute.verdict.findings import Findings
from bisect_recompute.verdict.numbers import change

UNLOADED = 1e-6
"""Weight of a commit that changes no file which a probe loaded, relative to the others: probed last, never left out."""


def investigate(
    plan: Plan, journal: Journal, measurer: Measurer, jobs: int, on_event: Callable[[Event], None]
) -> Findings:
    """Measures what is not in the journal yet. KeyboardInterrupt goes up, what is finished by then is kept."""
    recorder = Recorder(measurer, journal)
    try:
        work = _Investigation(plan, journal, measurer, recorder, jobs, on_event)
        findings = work.run()
        # Inside a submodule bump one commit is looked for, the shifts are those of the range asked for.
        every = plan.manifest.all_shifts and plan.range.bad.sha == plan.manifest.bad
        return work.all_shifts(findings) if every else findings
    finally:
        recorder.stop()


MOVED = 30.0
"""Weight of a commit that touches a file whose tensors make the difference between the endpoints: right, it saves about
four probes of a hundred candidates, wrong it costs one or two."""

MERGE = 0.1


class _Investigation:
    def __init__(self, plan: Plan, journal: Journal, measurer: Measurer, recorder: Recorder, jobs: int, on_event):
        self.plan, self.journal, self.jobs, self.on_event = plan, journal, jobs, on_event
        self.measurer, self.recorder = measurer, recorder
        self.results: dict[int, ProbeResult] = {}
        self.sides: dict[int, Side] = {}
        self.changes: list[CommitChanges] = []
        self.notes: tuple[str, ...] = ()
        self.ahead: dict[int, Iterable[tuple[int, ProbeResult]]] = {}

    def run(self) -> Findings:
        self._measure_endpoints()
        good, bad = self.results[-1], self.results[self.plan.last]
        shifts = compare(
            good, bad, self.plan.recipe.thresholds, self.plan.manifest.metric, self.plan.manifest.direction
        )
        measured = all(end.status in ("ok", "oom") for end in (good, bad))
        if measured:
            self._refuse_equal_code(good, bad)
        if not measured or not any(shift.shifted for shift in shifts.values()):
            return self._findings()
        self.sides |= {-1: "good", self.plan.last: "bad"}
        return self._search(Judge(shifts))

    def all_shifts(self, findings: Findings) -> Findings:
        """With each shift between the endpoints, where these were measured."""
        if any(self.results[index].status not in ("ok", "oom") for index in (-1, self.plan.last)):
            return findings
        found = AllShifts(self.plan, self.recorder, self.results, self._weights, self.jobs, self.on_event).find()
        return replace(findings, steps=found, probes_run=self.journal.probed)

    def _refuse_equal_code(self, good: ProbeResult, bad: ProbeResult) -> None:
        """Raises EndpointError where the ends measure differently although nothing that a probe reads differs between them."""
        units = [unit_of(metric, good, bad) for metric in METRICS]
        if all(value(good, unit) == value(bad, unit) for unit in units):
            return
        ends = [self.plan.commit(index).sha for index in (-1, self.plan.last)]
        if same_code(good, self.measurer.tree(ends[1])):
            found = "; ".join(f"{s.metric} {change(s)}" for s in compare(good, bad, self.plan.recipe.thresholds).values())
            raise EndpointError(
                f"{ends[0][:10]} and {ends[1][:10]} measure differently ({found}), but every file that the "
                "probes read is the same: something outside the repository decides the measurement, so that no commit can "
                "be named; the provenance in probes.jsonl lists what was read"
            )

    def _measure_endpoints(self) -> None:
        missing = []
        for index in (-1, self.plan.last):
            result = self.recorder.known(self.plan.commit(index).sha)
            if result is None:
                missing.append(index)
            else:
                self._endpoint(Reused(index, result, _end(index)))
        if missing:
            self.recorder.warm_up()
        answers = self._start_in_turn(missing) if self.plan.manifest.repeats > 1 else self._start(missing)
        # The differ and the file lists of all commits are ready by the time that the probes are.
        self.changes, self.notes = changes_of(self.measurer, self.plan.range.commits)
        for commit in self.plan.range.commits:
            self.measurer.tree(commit.sha)
        for index, result in answers:
            self._endpoint(ProbeFinished(index, result, _end(index)))

    def _endpoint(self, event) -> None:
        self.results[event.index] = event.result
        self.on_event(event)

    def _start(self, indices: list[int]) -> Iterable[tuple[int, ProbeResult]]:
        """Measures at once as far as ``jobs`` allows; the answers as they come."""
        done: queue.SimpleQueue = queue.SimpleQueue()
        todo = list(indices)

        def work():
            while todo:
                index = todo.pop()
                try:
                    done.put((index, self.recorder.measure(self.plan.commit(index).sha), None))
                except BaseException as error:
                    done.put((index, None, error))

        for index in indices:
            self.on_event(ProbeStarted(index))
        for _ in indices[: self.jobs]:
            # Daemon: an interrupted run must not wait at exit for a probe that nobody reads.
            threading.Thread(target=work, daemon=True).start()
        return (_answer(done.get()) for _ in indices)

    def _start_in_turn(self, indices: list[int]) -> Iterable[tuple[int, ProbeResult]]:
        """One at a time, the repeats of the ends by turns."""
        for index in indices:
            self.on_event(ProbeStarted(index))
        return zip(indices, self.recorder.measure_in_turn([self.plan.commit(index).sha for index in indices]))

    def _search(self, judge: Judge) -> Findings:
        search = Search(self._weights(-1, self.plan.last), self.plan.range.parents())

        def on_event(event: Event) -> None:
            self._note(event)
            # With two suspects left only one is to be probed; if it is the culprit, its parent is asked for next.
            if isinstance(event, Narrowed) and len(search.suspects) == 2 and self.jobs > 1:
                self._measure_ahead(self._parent(search.suspects[0]))

        self.results |= bisect(
            search,
            lambda index: self.recorder.measure(self.plan.commit(index).sha),
            judge.side,
            lambda index: self.recorder.known(self.plan.commit(index).sha),
            self.jobs,
            on_event,
        )
        if search.culprit is None:
            return self._findings(suspects=tuple(search.suspects))
        return self._findings(
            culprit=search.culprit, last_good=self._last_good(search.culprit, judge), suspects=(search.culprit,)
        )

    def _weights(self, good: int, bad: int) -> list[float]:
        """What the differ suspects, times what the endpoints say: a commit outside the code that ran is the last to be
        asked, one that touches a file whose tensors came or went is among the first."""
        changed = self._changed_paths()
        moved = moved_files(self.results[good], self.results[bad])
        loaded: set[str] = set()
        for result in self.results.values():
            if result.provenance:
                loaded |= result.provenance.modules.keys() | set(result.provenance.absent)

        def factor(commit: Commit) -> float:
            paths = changed[commit.sha]
            if loaded and not paths & loaded:
                return UNLOADED
            # Among all parents a merge brings nothing of its own but the resolution of conflicts.
            whole = MERGE if len(commit.parents) > 1 and not self.plan.manifest.first_parent else 1.0
            return whole * (MOVED if paths & moved else 1.0)

        return [weight(changes) * factor(changes.commit) for changes in self.changes]

    def _changed_paths(self) -> dict[str, set[str]]:
        """Of each commit, against its first parent; of a recipe by name those of what it runs."""
        commits, tree = self.plan.range.commits, self.measurer.tree
        if not isinstance(self.plan.recipe, BridgeRecipe):
            changed = self.plan.repository.changes_in(commits)
            return {sha: {change.path for change in changes} for sha, changes in changed.items()}
        found = {}
        for commit in commits:
            old, new = (tree(commit.parents[0]) if commit.parents else {}), tree(commit.sha)
            found[commit.sha] = set() if old is new else {path for path, _ in old.items() ^ new.items()}
        return found

    def _note(self, event: Event) -> None:
        if isinstance(event, (ProbeFinished, Reused)):
            self.sides[event.index] = event.side
        self.on_event(event)

    def _parent(self, index: int) -> int:
        """First parent inside the range, else the good endpoint."""
        return next(iter(self.plan.range.parents()[index]), -1)

    def _measure_ahead(self, index: int) -> None:
        if index not in self.ahead and self.recorder.known(self.plan.commit(index).sha) is None:
            self.ahead[index] = self._start([index])

    def _last_good(self, culprit: int, judge: Judge) -> int:
        """The culprit's first parent in the range, measured: among merges its being good can have been inferred."""
        index = self._parent(culprit)
        if index not in self.results:
            result = self.recorder.known(self.plan.commit(index).sha)
            if result is None:
                ((_, result),) = self.ahead.get(index) or self._start([index])
            self.results[index] = result
            self._note(ProbeFinished(index, result, judge.side(result)))
        return index

    def _findings(self, **found) -> Findings:
        return Findings(
            range=self.plan.range,
            first_parent=self.plan.manifest.first_parent,
            recipe=self.plan.recipe,
            metric=self.plan.manifest.metric,
            direction=self.plan.manifest.direction,
            results=self.results,
            sides=self.sides,
            probes_run=self.journal.probed,
            changes=tuple(self.changes),
            notes=self.notes,
            source_line=source_line(self.measurer),
            reproduce=self.plan.manifest.reproduce,
            versions=self.plan.manifest.versions,
            **found,
        )


def changes_of(measurer: Measurer, commits: Sequence[Commit]) -> tuple[list[CommitChanges], tuple[str, ...]]:
    """What the commits change, and what the reader must know about it."""
    try:
        return measurer.changes(commits), ()
    except Exception as error:  # whatever source it stumbles over: the measurements stand without it
        note = f"what the commits change could not be read: {type(error).__name__}: {error}"
        return [CommitChanges(commit, ("none",)) for commit in commits], (note,)


def source_line(measurer: Measurer) -> Callable[[str, str, int], str | None]:
    """(commit, file, line) -> the text of that line."""

    def read(sha: str, file: str, line: int) -> str | None:
        source = measurer.source(sha, file) or _installed(file)
        lines = (source or b"").splitlines()
        return lines[line - 1].decode("utf-8", "replace") if 0 < line <= len(lines) else None

    return read


def _installed(file: str) -> bytes | None:
    """Of a recipe repository the tensors are made by the installed Megatron Core."""
    try:
        return Path(importlib.metadata.distribution("megatron-core").locate_file(file)).read_bytes()
    except (importlib.metadata.PackageNotFoundError, OSError):
        return None


def _end(index: int) -> Side:
    return "good" if index < 0 else "bad"


def _answer(item) -> tuple[int, ProbeResult]:
    index, result, error = item
    if error is not None:
        raise error
    return index, result
