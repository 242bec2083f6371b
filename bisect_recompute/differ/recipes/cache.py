"""Recipe changes of commits, resolved on all cores and kept between runs.

A commit's id fixes its content and its parent's, so an entry is right for as long as the evaluator is the same.
"""

from __future__ import annotations

import json
import os
import sqlite3
from bisect import bisect_right
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from hashlib import blake2b
from itertools import accumulate, groupby
from multiprocessing import get_context
from pathlib import Path
from typing import Optional, Sequence

from bisect_recompute.differ.source.change import SettingChange
from bisect_recompute.differ.recipes.changes import NOTHING, RecipeChanges
from bisect_recompute.differ.recipes.launcher import is_config_file
from bisect_recompute.differ.recipes.recipes import is_recipe_file
from bisect_recompute.differ.recipes.timeline import walk
from bisect_recompute.differ.recipes.world import relevant
from bisect_recompute.history.commit import Commit
from bisect_recompute.history.repository import Repository
from bisect_recompute.history.worktree import cache_dir

_WORTH_SPLITTING = 150
_LAST = 0.08
"""Share of a last stretch, for the process that is done first: the estimate of their work is rough. More stretches would cost
more, each begins with a look at everything."""


def recipe_changes(repository: Repository, commits: Sequence[Commit], use_cache: bool = True) -> list[RecipeChanges]:
    """One entry per commit, in order. ``commits``: each is compared with its first parent."""
    store = _Store() if use_cache else None
    known = store.read([c.sha for c in commits]) if store else {}
    missing = [c for c in commits if c.sha not in known]
    if missing:
        fresh = dict(zip((c.sha for c in missing), _resolve(repository, missing)))
        if store:
            store.write(fresh)
        known.update(fresh)
    return [known[c.sha] for c in commits]


def _resolve(repository: Repository, commits: list[Commit]) -> list[RecipeChanges]:
    workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 4)
    if workers < 2 or len(commits) < _WORTH_SPLITTING:
        return list(walk(repository, commits))
    parts = _split(repository, commits, [*[(1 - _LAST) / workers] * workers, _LAST])
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return [change for part in pool.map(_walk_part, [repository.git_dir] * len(parts), parts) for change in part]


def _walk_part(git_dir: Path, commits: list[Commit]) -> list[RecipeChanges]:
    repository = Repository(git_dir)
    try:
        return list(walk(repository, commits))
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


class _Store:
    """A table of commit id -> changes. A cache that cannot be read or written is no error: the work is done again."""

    def __init__(self) -> None:
        self._version = _version()
        self._db: Optional[sqlite3.Connection] = None
        try:
            folder = cache_dir() / "recipes"
            folder.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(folder / f"{self._version}.sqlite", timeout=10)
            self._db.execute("create table if not exists changes (sha text primary key, data text)")
        except (sqlite3.Error, OSError):
            self._db = None

    def read(self, shas: list[str]) -> dict[str, RecipeChanges]:
        if self._db is None:
            return {}
        try:
            found: dict[str, RecipeChanges] = {}
            for start in range(0, len(shas), 500):
                part = shas[start : start + 500]
                marks = ",".join("?" * len(part))
                rows = self._db.execute(f"select sha, data from changes where sha in ({marks})", part)
                found.update((sha, _from_json(data)) for sha, data in rows)
            return found
        except (sqlite3.Error, ValueError, KeyError, TypeError):
            return {}

    def write(self, changes: dict[str, RecipeChanges]) -> None:
        if self._db is None:
            return
        try:
            with self._db:
                rows = [(sha, _to_json(c)) for sha, c in changes.items()]
                self._db.executemany("insert or replace into changes values (?, ?)", rows)
        except sqlite3.Error:
            pass


def _to_json(changes: RecipeChanges) -> str:
    return "" if changes == NOTHING else json.dumps(asdict(changes))


def _from_json(data: str) -> RecipeChanges:
    if not data:
        return NOTHING
    raw = json.loads(data)
    return RecipeChanges(
        tuple(raw["kinds"]), tuple(SettingChange(**c) for c in raw["changes"]), tuple(raw["effective"]),
        tuple(map(tuple, raw["states"])), tuple(map(tuple, raw["moved"])), tuple(raw["added"]), tuple(raw["removed"]),
    )


def _version() -> str:
    """Changes with the evaluator's own source."""
    own = blake2b(digest_size=8)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        own.update(path.read_bytes())
    return own.hexdigest()
