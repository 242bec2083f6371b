"""Recipe changes of commits, resolved on all cores and kept between runs."""

from __future__ import annotations

import os
from bisect import bisect_right
from concurrent.futures import ProcessPoolExecutor
from itertools import accumulate, groupby
from multiprocessing import get_context
from pathlib import Path
from typing import Sequence

from bisect_recompute.differ.kept import Kept
from bisect_recompute.differ.source.change import SettingChange
from bisect_recompute.differ.recipes.changes import NOTHING, RecipeChanges
from bisect_recompute.differ.recipes.launcher import is_config_file
from bisect_recompute.differ.recipes.recipes import is_recipe_file
from bisect_recompute.differ.recipes.timeline import walk
from bisect_recompute.differ.recipes.world import relevant
from bisect_recompute.history.commit import Commit
from bisect_recompute.history.repository import Repository

_WORTH_SPLITTING = 150
_LAST = 0.08
"""Share of a last stretch, for the process that is done first: the estimate of their work is rough. More stretches would cost
more, each begins with a look at everything."""


def recipe_changes(repository: Repository, commits: Sequence[Commit], use_cache: bool = True) -> list[RecipeChanges]:
    """One entry per commit, in order. ``commits``: each is compared with its first parent."""

    def resolve(missing: list[Commit]) -> tuple[list[RecipeChanges], bool]:
        return _resolve(repository, missing)

    return _KEPT.changes(commits, resolve) if use_cache else resolve(list(commits))[0]


def _resolve(repository: Repository, commits: list[Commit]) -> tuple[list[RecipeChanges], bool]:
    """Entries of the commits, and whether the clone had all that they are made of."""
    workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 4)
    if workers < 2 or len(commits) < _WORTH_SPLITTING:
        return list(walk(repository, commits)), not repository.lacks_files
    parts = _split(repository, commits, [*[(1 - _LAST) / workers] * workers, _LAST])
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        done = list(pool.map(_walk_part, [repository.git_dir] * len(parts), parts))
    return [change for changes, _ in done for change in changes], all(whole for _, whole in done)


def _walk_part(git_dir: Path, commits: list[Commit]) -> tuple[list[RecipeChanges], bool]:
    repository = Repository(git_dir)
    try:
        return list(walk(repository, commits)), not repository.lacks_files
    finally:
        repository.close()


def _split(repository: Repository, commits: list[Commit], shares: Sequence[float]) -> list[list[Commit]]:
    """Stretches of about these shares of the work, in order."""
    changed = repository.changes_in(commits)
    configurations = recipes = 0
    work = []
    for commit in commits:
        paths = [c for c in changed[commit.sha] if relevant(c.path)]
        for path in paths:
            step = (path.status == "A") - (path.status == "D")
            configurations += step * is_config_file(path.path)
            recipes += step * (is_recipe_file(path.path) and not is_config_file(path.path))
        # A launcher's change is felt by all that it can start, a recipe's mostly by itself.
        launcher = any(p.path.startswith("scripts/performance/") and not is_config_file(p.path) for p in paths)
        shared = any(not is_recipe_file(p.path) and p.path.startswith("src/megatron/bridge/training/") for p in paths)
        work.append(1 + len(paths) + 30 * configurations * launcher + (6 * configurations + 2 * recipes) * (launcher or shared))
    ends = [sum(work) * end for end in accumulate(shares)]
    done, part_of = 0, []
    for each in work:
        part_of.append(min(bisect_right(ends, done), len(shares) - 1))
        done += each
    pairs = groupby(zip(part_of, commits), key=lambda pair: pair[0])
    return [[commit for _, commit in group] for _, group in pairs]


def _load(raw: dict) -> RecipeChanges:
    return RecipeChanges(
        tuple(raw["kinds"]), tuple(SettingChange(**c) for c in raw["changes"]), tuple(raw["effective"]),
        tuple(map(tuple, raw["states"])), tuple(map(tuple, raw["moved"])), tuple(raw["added"]), tuple(raw["removed"]),
    )


_KEPT = Kept("recipes", list(Path(__file__).parent.glob("*.py")), NOTHING, _load)
