"""Measures commits: checkout, simulated probe, secrets masked, journal."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Callable
from pathlib import Path

from bisect_recompute.cli.plan import repository_path
from bisect_recompute.history.repository import Repository
from bisect_recompute.history.worktree import Worktrees, cache_dir
from bisect_recompute.measurement.journal import Journal
from bisect_recompute.measurement.same_code import same_code
from bisect_recompute.probe.recipe import LaunchRecipe, Recipe, RecipeFunction
from bisect_recompute.probe.result import ProbeResult
from bisect_recompute.probe.simulate.client import Simulator
from bisect_recompute.report.mask import mask, mask_file


class Measurer:
    """Calls are thread-safe. A context manager: no process that it started outlives it, no late result is kept."""

    def __init__(self, repository: Repository, recipe: Recipe | LaunchRecipe | RecipeFunction, recipe_spec: str,
                 timeout: float, simulator: Simulator | None = None):
        """``simulator``: one that is shared and closed by its owner."""
        self._repository, self._recipe, self._recipe_spec = repository, recipe, recipe_spec
        self._worktrees = Worktrees(repository, cache_dir())
        self._simulator = simulator or Simulator(cache_dir() / "bytecode", timeout)

    def warm_up(self) -> None:
        """Lets the simulator load what it needs beside other work."""
        self._simulator.warm_up("h100" if isinstance(self._recipe, RecipeFunction) else self._recipe.hardware.gpu)

    def measure(self, sha: str, log: Path, snapshot: Path | None = None) -> ProbeResult:
        with self._worktrees.checkout(sha) as tree:
            result = self._simulator.probe(
                self._recipe, tree, sha, self._repository.tree(sha), log.absolute(), self._command(sha), snapshot
            )
        mask_file(log)
        return dataclasses.replace(result, reason=mask(result.reason), log=str(log))

    def _command(self, sha: str) -> str:
        call = [
            "bisect-recompute",
            "probe",
            sha,
            "--repo",
            repository_path(self._repository),
            "--recipe",
            self._recipe_spec,
        ]
        return shlex.join(call)

    def close(self) -> None:
        self._simulator.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


class Recorder:
    """Measurements of a journal, new ones added to it."""

    def __init__(self, measurer: Measurer, journal: Journal, tree: Callable[[str], object]):
        self._measurer, self._journal, self._tree = measurer, journal, tree
        self._compared: set[tuple[str, str]] = set()
        self._stopped = False

    def warm_up(self) -> None:
        self._measurer.warm_up()

    def measure(self, sha: str) -> ProbeResult:
        """On disk before it returns."""
        log = self._journal.out / "logs" / f"{sha}.log"
        result = self._measurer.measure(sha, log)
        result = dataclasses.replace(result, log=os.path.relpath(log, self._journal.out))
        if not self._stopped:
            self._journal.append(result)
        return result

    def known(self, sha: str) -> ProbeResult | None:
        """What was measured at this commit, or at one whose code is the same."""
        if sha in self._journal.results:
            return self._journal.results[sha]
        for other in list(self._journal.results.values()):
            if (sha, other.revision) not in self._compared:
                self._compared.add((sha, other.revision))
                if same_code(other, self._tree(sha)):
                    return other
        return None

    def stop(self) -> None:
        """From now on nothing is kept: a probe that is being killed would look like a commit that fails."""
        self._stopped = True
