"""What a recipe of Megatron Bridge comes to at each commit: a probe recipe, and the commit of Megatron-LM that is pinned."""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from bisect_recompute.differ.evidence import CommitChanges, SettingChange, SourceChange, recompute_changes
from bisect_recompute.differ.recipes.fields import FieldState
from bisect_recompute.differ.recipes.whole import WholeConfig, WholeConfigs
from bisect_recompute.errors import UsageError
from bisect_recompute.history.commit import Commit
from bisect_recompute.history.repository import Repository
from bisect_recompute.probe.bridge import NOTE, WANTED, BridgeRecipe, probe_recipe, target_gpu
from bisect_recompute.probe.gpu import GPUS
from bisect_recompute.probe.published import published
from bisect_recompute.probe.recipe import Recipe
from bisect_recompute.probe.result import ProbeResult

SUBMODULE = "Megatron-LM"
SETTINGS = "<settings of the recipe>"
"""Stands among a commit's paths for what the recipe comes to: its blob id is a digest of the settings."""


@dataclass(frozen=True)
class BridgeCommit:
    recipe: Recipe
    config: WholeConfig
    core: str
    """Commit of Megatron-LM."""
    submodule: str
    """Path of the submodule that pins it."""

    @functools.cached_property
    def digest(self) -> str:
        return hashlib.sha256(yaml.safe_dump(self.recipe.model_dump(exclude={"thresholds"})).encode()).hexdigest()


def with_settings(result: ProbeResult, here: BridgeCommit) -> ProbeResult:
    """The measurement of a commit of Bridge: its proof of what ran includes the settings."""
    if result.provenance is None:
        return result
    modules = {**result.provenance.modules, SETTINGS: here.digest}
    notes = (NOTE, f"Megatron-LM {here.core} as {here.submodule} pins it", *result.notes)
    return replace(result, provenance=replace(result.provenance, modules=modules), notes=notes)


class BridgeCommits:
    """Thread-safe. Everything is read from git objects."""

    def __init__(self, repository: Repository, named: BridgeRecipe):
        self.repository, self.core, self._named = repository, Repository(Path(named.core)), named
        self._configs = WholeConfigs(repository.read_blob, published, WANTED)
        self._lock = threading.Lock()
        self._known: dict[str, BridgeCommit | UsageError] = {}
        self._trees = _Trees(self.core)

    def at(self, sha: str) -> BridgeCommit:
        """Raises UsageError, one line: what cannot be known, simulated or found, and how to mend it."""
        with self._lock:
            if sha not in self._known:
                try:
                    self._known[sha] = self._resolve(sha)
                except UsageError as error:
                    self._known[sha] = error
            found = self._known[sha]
        if isinstance(found, UsageError):
            raise UsageError(f"{sha[:10]}: {found}")
        return found

    def _resolve(self, sha: str) -> BridgeCommit:
        pins = {path: pin for path, pin in self.repository.submodules(sha).items() if path.rpartition("/")[2] == SUBMODULE}
        if not pins:
            raise UsageError(f"{self.repository.name} pins no submodule {SUBMODULE}")
        path, pin = min(pins.items())
        gpu = GPUS[target_gpu(self._named)]
        config = self._configs.at(
            self.repository.tree(sha), self._named.module, self._named.function, gpu.name, gpu.compute_capability
        )
        recipe = probe_recipe(self._named, config)
        try:
            self.core.commit(pin)
        except UsageError:
            raise UsageError(
                f"it pins {pin[:10]} at {path}, which {self.core.name} lacks: `git -C {self._named.core} fetch` may bring it"
            ) from None
        return BridgeCommit(recipe, config, pin, path)

    def tree(self, sha: str) -> Mapping[str, str]:
        """Path -> blob id of what a probe of the commit can depend on: the pinned Megatron-LM, and the settings."""
        try:
            return self._trees.of(self.at(sha))
        except UsageError:
            return {}

    def changes(self, commits: Iterable[Commit]) -> list[CommitChanges]:
        """What each commit does to this recipe: its settings of any kind, and the pinned Megatron-LM."""
        return [self._changes(commit) for commit in commits]

    def _changes(self, commit: Commit) -> CommitChanges:
        try:
            old, new = self.at(commit.parents[0]), self.at(commit.sha)
        except (UsageError, IndexError):
            return CommitChanges(commit, ("none",))
        settings = tuple(_setting_changes(self._named.name, old.config, new.config))
        kinds = ("recipe-value",) * bool(settings)
        source: tuple[SourceChange, ...] = ()
        if old.core != new.core:
            kinds += ("submodule",)
            source = (SourceChange(new.submodule, "", "submodule", 0, f"moves from {old.core} to {new.core}"),)
        return CommitChanges(commit, kinds or ("none",), settings, source)


class InsideBump:
    """Commits of Megatron-LM itself, all with the settings that one commit of Bridge has."""

    def __init__(self, core: Repository, outer: BridgeCommit):
        self.core, self._outer, self._trees = core, outer, _Trees(core)

    def at(self, sha: str) -> BridgeCommit:
        return replace(self._outer, core=sha)

    def tree(self, sha: str) -> Mapping[str, str]:
        return self._trees.of(self.at(sha))

    def changes(self, commits: Sequence[Commit]) -> list[CommitChanges]:
        return recompute_changes(self.core, commits)


class _Trees:
    """One mapping for all commits that have the same files and settings; do not change it."""

    def __init__(self, core: Repository):
        self._core = core
        self._known: dict[tuple[int, str], tuple[Mapping[str, str], Mapping[str, str]]] = {}

    def of(self, here: BridgeCommit) -> Mapping[str, str]:
        files = self._core.tree(here.core)  # the very same mapping for the same files; kept, so that its id stays taken
        key = id(files), here.digest
        if key not in self._known:
            self._known[key] = files, {**files, SETTINGS: here.digest}
        return self._known[key][1]


def _setting_changes(recipe: str, old: WholeConfig, new: WholeConfig) -> Iterable[SettingChange]:
    for section, fields in new.sections.items():
        for name, state in fields.items():
            before = old.sections[section].get(name, FieldState("unset"))
            if not before.same_value(state) and "unknown" not in (before.state, state.state):
                file, line = new.places.get((section, name)) or old.places.get((section, name)) or ("", 0)
                field = name if section == "model" else f"{section}.{name}"
                yield SettingChange(recipe, field, _shown(before), _shown(state), file, line)


def _shown(state: FieldState):
    return state.value if state.state == "set" else state.default
