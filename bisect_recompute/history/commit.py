"""Commits and ranges as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Commit:
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
