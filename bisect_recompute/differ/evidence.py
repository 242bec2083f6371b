"""What each commit of a range changes in recompute settings and source, and how much that makes it a suspect."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional, Sequence

from bisect_recompute.differ.kept import Kept
from bisect_recompute.differ.recipes.cache import recipe_changes
from bisect_recompute.differ.recipes.changes import RecipeChanges
from bisect_recompute.differ.recipes.timeline import selected
from bisect_recompute.differ.source.change import SettingChange, SourceChange
from bisect_recompute.differ.source.compare import SourceDiffer
from bisect_recompute.differ.source.submodule import Bump, bump, is_bump, submodule_changes, submodule_clone
from bisect_recompute.history.commit import ChangedPath, Commit
from bisect_recompute.history.repository import Repository

__all__ = ["Bump", "CommitChanges", "SettingChange", "SourceChange", "expand_submodules", "recompute_changes", "weight"]

_ORDER = (
    "recipe-value",
    "recipe-added",
    "recipe-removed",
    "recipe-moved",
    "default",
    "checkpoint-site",
    "validation",
    "submodule",
    "plumbing",
)
_WEIGHT = {
    "recipe-value": 10.0,
    "default": 10.0,
    "checkpoint-site": 10.0,
    "submodule": 4.0,
    "validation": 2.0,
    "plumbing": 2.0,
}


@dataclass(frozen=True)
class CommitChanges:
    commit: Commit
    kinds: tuple[str, ...]
    """Contract kinds; ("none",) when nothing about recompute changes."""
    changes: tuple[SettingChange, ...] = ()
    source: tuple[SourceChange, ...] = ()


@dataclass(frozen=True)
class _Found:
    """What a commit changes in source: its CommitChanges, as they are kept."""

    kinds: tuple[str, ...] = ("none",)
    changes: tuple[SettingChange, ...] = ()
    source: tuple[SourceChange, ...] = ()


def recompute_changes(
    repository: Repository, commits: Sequence[Commit], recipes: bool = False, use_cache: bool = True
) -> list[CommitChanges]:
    """One entry per commit, in order. Reads git objects only: nothing is checked out, imported or executed.

    ``recipes``: also the effective settings of the repository's recipe functions.
    """

    def find(missing: list[Commit]) -> tuple[list[_Found], bool]:
        differ = SourceDiffer(repository.read_blob)
        paths = repository.changes_in(missing)
        return [_changes_of(paths[commit.sha], differ) for commit in missing], not repository.lacks_files

    found = _KEPT.changes(commits, find) if use_cache else find(list(commits))[0]
    changes = [CommitChanges(c, f.kinds, f.changes, f.source) for c, f in zip(commits, found)]
    if not recipes:
        return changes
    return [_with_recipes(*pair) for pair in zip(changes, recipe_changes(repository, commits, use_cache))]


def _with_recipes(changes: CommitChanges, of_recipes: RecipeChanges) -> CommitChanges:
    kinds = {*changes.kinds, *of_recipes.kinds}
    return replace(changes, kinds=tuple(kind for kind in _ORDER if kind in kinds) or ("none",),
                   changes=(*selected(of_recipes, (), ()), *changes.changes))


def expand_submodules(
    repository: Repository, commits: Sequence[Commit], submodule: Optional[Repository] = None, use_cache: bool = True
) -> dict[str, list[tuple[Bump, list[CommitChanges]]]]:
    """For every commit that moves a submodule: its bumps, each with the changes of the commits that it brings.

    ``submodule``: a clone of it. Default: the submodule's own, and nothing for one that was never initialised.
    """
    clones: dict[str, Optional[Repository]] = {}
    bumps: list[tuple[str, Repository, Bump]] = []
    for sha, paths in repository.changes_in(commits).items():
        for path in filter(is_bump, paths):
            if path.path not in clones:
                clones[path.path] = submodule or submodule_clone(repository, path.path)
            clone = clones[path.path]
            if clone is not None:
                bumps.append((sha, clone, bump(path, clone)))
    inside: dict[Repository, dict[Commit, CommitChanges]] = {}
    for clone in dict.fromkeys(clone for _, clone, _ in bumps):
        brought = list(dict.fromkeys(commit for _, other, moved in bumps if other is clone for commit in moved.brought))
        inside[clone] = dict(zip(brought, recompute_changes(clone, brought, use_cache=use_cache)))
    out: dict[str, list[tuple[Bump, list[CommitChanges]]]] = {}
    for sha, clone, moved in bumps:
        out.setdefault(sha, []).append((moved, [inside[clone][commit] for commit in moved.brought]))
    return out


def weight(changes: CommitChanges) -> float:
    """Prior that the commit is the first bad one, relative to the others: an order for the search, never a filter."""
    return max(_WEIGHT.get(kind, 1.0) for kind in changes.kinds)


def _changes_of(paths: list[ChangedPath], differ: SourceDiffer) -> _Found:
    settings, source = differ.changes(paths)
    source = [*submodule_changes(paths), *source]
    found = {change.kind for change in source}
    kinds = tuple(kind for kind in _ORDER if kind in found) or ("none",)
    return _Found(kinds, tuple(settings), tuple(source))


def _load(raw: dict) -> _Found:
    return _Found(tuple(raw["kinds"]), tuple(SettingChange(**c) for c in raw["changes"]),
                  tuple(SourceChange(**c) for c in raw["source"]))


_KEPT = Kept("source", [Path(__file__), *(Path(__file__).parent / "source").glob("*.py")], _Found(), _load)
