"""What a run is to find out; made from a call, or from the manifest of a run that goes on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bisect_recompute.cli.recipes import recipe_from_text
from bisect_recompute.history.commit import Commit, CommitRange
from bisect_recompute.history.repository import Repository
from bisect_recompute.measurement.journal import Manifest
from bisect_recompute.probe.recipe import Recipe, RecipeFunction, Thresholds


@dataclass(frozen=True)
class Plan:
    repository: Repository
    range: CommitRange
    recipe: Recipe | RecipeFunction
    manifest: Manifest

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> Plan:
        """Raises UsageError when the repository is gone or lacks the commits."""
        repository = Repository(Path(manifest.repository))
        span = repository.range(f"{manifest.good}..{manifest.bad}", manifest.first_parent)
        thresholds = Thresholds(memory=manifest.memory_threshold, throughput=manifest.throughput_threshold)
        return cls(
            repository, span, recipe_from_text(manifest.recipe_text, manifest.recipe_function, thresholds), manifest
        )

    @property
    def last(self) -> int:
        return len(self.range.commits) - 1

    def commit(self, index: int) -> Commit:
        """-1 is the good endpoint, ``last`` the bad one."""
        return self.range.good if index < 0 else self.range.commits[index]
