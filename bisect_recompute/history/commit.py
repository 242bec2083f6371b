"""Commits and ranges as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Commit:
    """Text is what git has, as one line: control and text-direction characters are replaced by U+FFFD."""

    sha: str
    subject: str
    author: str
    date: str
    """Author date, ISO 8601."""
    parents: tuple[str, ...]


@dataclass(frozen=True)
class CommitRange:
    repository: str
    """Name of the repository (its directory or origin, without ``.git``)."""
    good: Commit
    bad: Commit
    commits: tuple[Commit, ...]
    """Candidates, oldest first: everything after ``good`` up to ``bad``, which is the last."""

    def parents(self) -> list[tuple[int, ...]]:
        """For each candidate the indices of its parents inside the range, as ``driver.search.Search`` takes them."""
        index = {commit.sha: i for i, commit in enumerate(self.commits)}
        return [tuple(index[sha] for sha in commit.parents if sha in index) for commit in self.commits]


class ChangedPath(NamedTuple):
    """One path that differs between a commit and its first parent."""

    status: str
    """git's letter: A added, D deleted, M modified, T type changed (file, symbolic link, submodule)."""
    path: str
    old_blob: str | None
    """None: no file on that side."""
    new_blob: str | None
    old_commit: str | None = None
    """Of a submodule, the commit it was at; None: no submodule on that side."""
    new_commit: str | None = None
