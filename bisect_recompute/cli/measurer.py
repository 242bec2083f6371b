"""Measures commits: a class per kind of probe; secrets masked; the journal."""

from __future__ import annotations

import dataclasses
import os
import shlex
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from bisect_recompute.cli.recipes import recipe_options, recipe_text
from bisect_recompute.differ.evidence import CommitChanges, recompute_changes
from bisect_recompute.errors import UsageError
from bisect_recompute.history.commit import Commit
from bisect_recompute.history.repository import Repository, repository_path
from bisect_recompute.history.worktree import Worktrees, cache_dir
from bisect_recompute.measurement.journal import Journal
from bisect_recompute.measurement.same_code import SameCode
from bisect_recompute.measurement.samples import pooled
from bisect_recompute.measurement.store import Store
from bisect_recompute.probe.bridge import BridgeRecipe
from bisect_recompute.probe.bridge_commits import BridgeCommit, BridgeCommits, InsideBump, with_settings
from bisect_recompute.probe.choices import Choice, apply
from bisect_recompute.probe.command.run import CommandRecipe, Commands, run_command
from bisect_recompute.probe.golden import GoldenRecipe, read_golden
from bisect_recompute.probe.recipe import LaunchRecipe, Recipe, RecipeFunction
from bisect_recompute.probe.result import ProbeResult
from bisect_recompute.probe.simulate.client import Simulator
from bisect_recompute.probe.torchrun.run import TorchrunSettings, run_torchrun
from bisect_recompute.report.mask import mask, mask_file


class Measurer:
    """Of a repository's own commits. Calls are thread-safe. A context manager: no process that it started outlives it,
    no late result is kept."""

    repeatable = True
    """The same code measures the same at any time: later runs take what earlier ones measured."""

    def __init__(self, repository: Repository, recipe, recipe_spec: str):
        self._repository, self._recipe, self._recipe_spec = repository, recipe, recipe_spec
        self.code = repository
        """The repository whose code runs."""

    @property
    def recipe_text(self) -> str:
        """All of the recipe that decides a measurement."""
        return recipe_text(self._recipe)

    def warm_up(self) -> None:
        """Loads what the first measurement needs, beside other work."""

    def measure(self, sha: str, log: Path, snapshot: Path | None = None) -> ProbeResult:
        result = self._measure(sha, log, snapshot)
        mask_file(log)
        return dataclasses.replace(result, reason=mask(result.reason), log=str(log))

    def _measure(self, sha: str, log: Path, snapshot: Path | None) -> ProbeResult:
        raise NotImplementedError

    def bridge_commit(self, sha: str) -> BridgeCommit | None:
        """What the recipe comes to at a commit, where its repository pins Megatron-LM."""
        return None

    def tree(self, sha: str) -> Mapping[str, str]:
        """Path -> blob id of all that a measurement of the commit can depend on."""
        return self._repository.tree(sha)

    def changes(self, commits: Sequence[Commit]) -> list[CommitChanges]:
        """What the differ says of each commit."""
        return recompute_changes(self._repository, commits, recipes=isinstance(self._recipe, RecipeFunction))

    def source(self, sha: str, path: str) -> bytes | None:
        """A file as the measurement of the commit saw it."""
        blob = self.tree(sha).get(path)
        return self.code.read_blob(blob) if blob else None

    def command(self, sha: str) -> str:
        call = ["bisect-recompute", "probe", sha, "--repo", repository_path(self._repository), "--recipe", self._recipe_spec]
        return shlex.join([*call, *recipe_options(self._recipe)])

    def close(self) -> None:
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


class Golden(Measurer):
    """Reads what the repository's own tests recorded."""

    def _measure(self, sha: str, log: Path, snapshot: Path | None) -> ProbeResult:
        return read_golden(self._repository, self._recipe, sha, self.command(sha))


class Commanded(Measurer):
    """Runs the user's command on each commit's files."""

    def __init__(self, repository: Repository, recipe: CommandRecipe, recipe_spec: str, timeout: float):
        super().__init__(repository, recipe, recipe_spec)
        self._commands, self._worktrees = Commands(timeout), Worktrees(repository, cache_dir(), whole=True)

    def _measure(self, sha: str, log: Path, snapshot: Path | None) -> ProbeResult:
        with self._worktrees.checkout(sha) as tree:
            return run_command(self._commands, self._recipe, tree, sha, log, self.command(sha))

    def close(self) -> None:
        self._commands.close()


class Simulated(Measurer):
    """Runs each commit's code in a simulated training step."""

    def __init__(self, repository: Repository, recipe: Recipe | LaunchRecipe | RecipeFunction, recipe_spec: str,
                 timeout: float, simulator: Simulator | None = None, bridge: InsideBump | None = None):
        """``simulator``: one that is shared and closed by its owner. ``bridge``: of commits inside a submodule bump."""
        super().__init__(repository, recipe, recipe_spec)
        self._bridge = bridge or (BridgeCommits(repository, recipe) if isinstance(recipe, BridgeRecipe) else None)
        if self._bridge:
            self.code = self._bridge.core
        self._worktrees = Worktrees(self.code, cache_dir())
        self._simulator = simulator or Simulator(cache_dir() / "bytecode", timeout)

    def warm_up(self) -> None:
        self._simulator.warm_up("h100" if isinstance(self._recipe, RecipeFunction) else self._recipe.hardware.gpu)

    def _measure(self, sha: str, log: Path, snapshot: Path | None) -> ProbeResult:
        if self._bridge is None:
            return self._simulate(self._recipe, sha, sha, log, snapshot)
        try:
            here = self._bridge.at(sha)
        except UsageError as error:
            return ProbeResult(sha, "unbuildable", "checkout", str(error), 0.0, self.command(sha))
        return with_settings(self._simulate(here.recipe, here.core, sha, log, snapshot), here)

    def _simulate(self, recipe, code: str, sha: str, log: Path, snapshot: Path | None) -> ProbeResult:
        """The commit ``code`` of the repository whose code runs; the result is said of ``sha``."""
        with self._worktrees.checkout(code) as tree:
            return self._simulator.probe(
                recipe, tree, sha, self.code.tree(code), log.absolute(), self.command(sha), snapshot
            )

    def measure_choice(self, sha: str, choice: Choice, log: Path) -> ProbeResult:
        """The commit with other recompute settings than the recipe's."""
        here = self.bridge_commit(sha)
        recipe, code = (here.recipe, here.core) if here else (self._recipe, sha)
        result = self._simulate(apply(recipe, choice), code, sha, log, None)
        mask_file(log)
        return dataclasses.replace(result, reason=mask(result.reason), log=str(log))

    def inside(self, outer: BridgeCommit) -> Simulated:
        """Of the submodule's own commits, with the settings of a commit of the repository; shares the simulator."""
        core = self._bridge.core
        return Simulated(core, outer.recipe, self._recipe_spec, 0, self._simulator, InsideBump(core, outer))

    def bridge_commit(self, sha: str) -> BridgeCommit | None:
        return self._bridge.at(sha) if self._bridge else None

    def tree(self, sha: str) -> Mapping[str, str]:
        return self._bridge.tree(sha) if self._bridge else super().tree(sha)

    def changes(self, commits: Sequence[Commit]) -> list[CommitChanges]:
        return self._bridge.changes(commits) if self._bridge else super().changes(commits)

    def close(self) -> None:
        self._simulator.close()


class Trained(Simulated):
    """Trains each commit's code for real, with torchrun on this machine; one at a time, as each wants all of it."""

    repeatable = False

    def __init__(self, repository: Repository, recipe: Recipe | RecipeFunction, recipe_spec: str, timeout: float,
                 settings: TorchrunSettings, bridge: InsideBump | None = None):
        super().__init__(repository, recipe, recipe_spec, timeout, bridge=bridge)
        self._settings, self._timeout = settings, timeout
        self._commands, self._alone = Commands(timeout), threading.Lock()

    def warm_up(self) -> None:
        """Every run has processes of its own."""

    def _simulate(self, recipe, code: str, sha: str, log: Path, snapshot: Path | None) -> ProbeResult:
        with self._alone, self._worktrees.checkout(code) as tree:
            return run_torchrun(
                self._commands, self._settings, recipe, tree, self.code.tree(code), cache_dir() / "bytecode", sha,
                log.absolute(), self.command(sha),
            )

    def inside(self, outer: BridgeCommit) -> Simulated:
        core = self._bridge.core
        inner = Trained(core, outer.recipe, self._recipe_spec, self._timeout, self._settings, InsideBump(core, outer))
        inner._commands = self._commands  # this one ends what they start
        return inner

    def command(self, sha: str) -> str:
        return f"{super().command(sha)} {shlex.join(self._settings.options())}"

    def close(self) -> None:
        self._commands.close()
        super().close()


def measurer_of(
    repository: Repository, recipe, recipe_spec: str, timeout: float, torchrun: TorchrunSettings | None = None
) -> Measurer:
    """Which kind it is the recipe says, and ``torchrun``. ``timeout``: seconds of one probe."""
    if torchrun:
        return Trained(repository, recipe, recipe_spec, timeout, torchrun)
    if isinstance(recipe, GoldenRecipe):
        return Golden(repository, recipe, recipe_spec)
    if isinstance(recipe, CommandRecipe):
        return Commanded(repository, recipe, recipe_spec, timeout)
    return Simulated(repository, recipe, recipe_spec, timeout)


class Recorder:
    """Measurements of a journal, new ones added to it."""

    def __init__(self, measurer: Measurer, journal: Journal):
        self._measurer, self._journal = measurer, journal
        self._same_code, self._added = SameCode(measurer.tree), 0
        self._store = Store(cache_dir(), measurer.recipe_text) if journal.manifest.reuse and measurer.repeatable else None
        self._earlier = SameCode(measurer.tree)
        for entry in self._store.entries() if self._store else ():
            self._earlier.add_entry(*entry)
        self._stopped = False

    def warm_up(self) -> None:
        self._measurer.warm_up()

    def measure(self, sha: str) -> ProbeResult:
        """On disk before it returns; of as many runs as the manifest says."""
        return self.measure_in_turn([sha])[0]

    def measure_in_turn(self, shas: Sequence[str]) -> list[ProbeResult]:
        """Of several commits the runs take turns, A B B A A B: what drifts meanwhile meets all of them alike."""
        runs: dict[str, list[ProbeResult]] = {sha: [] for sha in shas}
        for turn in range(self._journal.manifest.repeats):
            for sha in shas if turn % 2 == 0 else reversed(shas):
                if all(run.status == "ok" for run in runs[sha]):
                    runs[sha].append(self._once(sha, turn))
        return [self._keep(pooled(runs[sha])) for sha in shas]

    def _once(self, sha: str, turn: int) -> ProbeResult:
        log = self._journal.out / "logs" / (f"{sha}-{turn + 1}.log" if turn else f"{sha}.log")
        result = self._measurer.measure(sha, log)
        if result.by_machine and not self._stopped:
            result = self._measurer.measure(sha, log)
            if result.by_machine:
                result = dataclasses.replace(result, reason=f"{result.reason}, twice")
        return dataclasses.replace(result, log=os.path.relpath(log, self._journal.out))

    def _keep(self, result: ProbeResult) -> ProbeResult:
        if not self._stopped:
            self._journal.append(result)
            if self._store:
                self._store.add(result)
        return result

    def known(self, sha: str) -> ProbeResult | None:
        """What was measured at this commit, or at one whose code is the same, in this run or an earlier one."""
        if sha in self._journal.results:
            return self._journal.results[sha]
        results = list(self._journal.results.values())
        for result in results[self._added :]:
            self._same_code.add(result)
        self._added = len(results)
        return self._same_code.find(sha) or self._of_earlier_run(sha)

    def _of_earlier_run(self, sha: str) -> ProbeResult | None:
        """Said of this commit: the one that was measured may be unknown here."""
        found = self._earlier.find(sha)
        if found is None:
            return None
        found = dataclasses.replace(found, revision=sha, command=self._measurer.command(sha), log=None)
        self._journal.append(found, earlier=True)
        return found

    def stop(self) -> None:
        """From now on nothing is kept: a probe that is being killed would look like a commit that fails."""
        self._stopped = True
