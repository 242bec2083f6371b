"""What each commit of a range changes in recompute settings and source, and how much that makes it a suspect."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Optional, Sequence

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


def recompute_changes(repository: Repository, commits: Sequence[Commit], recipes: bool = False) -> list[CommitChanges]:
    """One entry per commit, in order. Reads git objects only: nothing is checked out, imported or executed.

    ``recipes``: also the effective settings of the repository's recipe functions.
    """
    differ = SourceDiffer(repository.read_blob)
    paths = repository.changes_in(commits)
    found = [_changes_of(commit, paths[commit.sha], differ) for commit in commits]
    return [_with_recipes(*pair) for pair in zip(found, recipe_changes(repository, commits))] if recipes else found


def _with_recipes(changes: CommitChanges, of_recipes: RecipeChanges) -> CommitChanges:
    kinds = {*changes.kinds, *of_recipes.kinds}
    return replace(changes, kinds=tuple(kind for kind in _ORDER if kind in kinds) or ("none",),
                   changes=(*selected(of_recipes, (), ()), *changes.changes))


def expand_submodules(
    repository: Repository, commits: Sequence[Commit], submodule: Optional[Repository] = None
) -> dict[str, list[tuple[Bump, list[CommitChanges]]]]:
    """For every commit that moves a submodule: its bumps, each with the changes of the commits that it brings.

    ``submodule``: a clone of it. Default: the submodule's own, and nothing for one that was never initialised.
    """
    clones: dict[str, Optional[tuple[Repository, SourceDiffer]]] = {}
    out: dict[str, list[tuple[Bump, list[CommitChanges]]]] = {}
    for sha, paths in repository.changes_in(commits).items():
        for path in paths:
            if path.path not in clones and is_bump(path):
                clone = submodule or submodule_clone(repository, path.path)
                clones[path.path] = (clone, SourceDiffer(clone.read_blob)) if clone is not None else None
            found = clones.get(path.path) if is_bump(path) else None
            if found is not None:
                moved = bump(path, found[0])
                inner = found[0].changes_in(moved.brought)
                inside = [_changes_of(c, inner[c.sha], found[1]) for c in moved.brought]
                out.setdefault(sha, []).append((moved, inside))
    return out


def weight(changes: CommitChanges) -> float:
    """Prior that the commit is the first bad one, relative to the others: an order for the search, never a filter."""
    return max(_WEIGHT.get(kind, 1.0) for kind in changes.kinds)


def _changes_of(commit: Commit, paths: list[ChangedPath], differ: SourceDiffer) -> CommitChanges:
    settings, source = differ.changes(paths)
    source = [*submodule_changes(paths), *source]
    found = {change.kind for change in source}
    kinds = tuple(kind for kind in _ORDER if kind in found) or ("none",)
    return CommitChanges(commit, kinds, tuple(settings), tuple(source))
