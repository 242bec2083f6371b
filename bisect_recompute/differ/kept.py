"""What was found about commits, kept between runs.

The ids of a commit and its parent fix what is compared, so an entry is right for as long as what finds it is the same.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Generic, TypeVar

from bisect_recompute.history.commit import Commit
from bisect_recompute.history.worktree import cache_dir

T = TypeVar("T")


class Kept(Generic[T]):
    """A table of commits, each with a data class. One that cannot be read or written is no error: the work is done again."""

    def __init__(self, part: str, code: Iterable[Path], nothing: T, load: Callable[[dict], T]):
        """``part``: folder in the cache directory; ``code``: the files that decide what is found; ``nothing``: what is found
        mostly; ``load``: from ``asdict``, as JSON has it."""
        self._part, self._code, self._nothing, self._load = part, code, nothing, load

    def changes(self, commits: Sequence[Commit], find: Callable[[list[Commit]], tuple[list[T], bool]]) -> list[T]:
        """One entry per commit, in order. ``find``: makes those that are not kept, and says whether to keep them."""
        try:
            with closing(self._open()) as table:
                known = self._read(table, commits)
        except (sqlite3.Error, OSError):
            known = {}
        missing = [c for c in commits if c.sha not in known]
        if missing:
            found, is_right = find(missing)
            known.update((commit.sha, each) for commit, each in zip(missing, found))
            if is_right:
                try:
                    with closing(self._open()) as table, table:
                        rows = [(_key(c), "" if e == self._nothing else json.dumps(asdict(e))) for c, e in zip(missing, found)]
                        table.executemany("insert or replace into changes values (?, ?)", rows)
                except (sqlite3.Error, OSError):
                    pass
        return [known[c.sha] for c in commits]

    def _open(self) -> sqlite3.Connection:
        folder = cache_dir() / self._part
        folder.mkdir(parents=True, exist_ok=True)
        table = sqlite3.connect(folder / f"{_version(self._code)}.sqlite", timeout=10)
        table.execute("create table if not exists changes (sha text primary key, data text)")
        return table

    def _read(self, table: sqlite3.Connection, commits: Sequence[Commit]) -> dict[str, T]:
        shas = {_key(commit): commit.sha for commit in commits}
        keys, known = list(shas), {}
        for start in range(0, len(keys), 500):
            part = keys[start : start + 500]
            for key, text in table.execute(f"select sha, data from changes where sha in ({','.join('?' * len(part))})", part):
                try:
                    known[shas[key]] = self._load(json.loads(text)) if text else self._nothing
                except (ValueError, KeyError, TypeError):
                    continue
        return known


def _key(commit: Commit) -> str:
    # A graft gives a commit another parent.
    return " ".join((commit.sha, *commit.parents[:1]))


def _version(code: Iterable[Path]) -> str:
    """Changes with the finder's own source, and with Python's grammar."""
    own = blake2b(repr(sys.version_info[:2]).encode(), digest_size=8)
    for path in sorted(code):
        own.update(path.read_bytes())
    return own.hexdigest()
