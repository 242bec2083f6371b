"""Submodule bumps: which commits of the submodule they bring."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Iterable, Optional

from bisect_recompute.differ.source.change import SourceChange
from bisect_recompute.differ.source.words import is_tested_or_documented
from bisect_recompute.errors import UsageError
from bisect_recompute.history.commit import ChangedPath, Commit
from bisect_recompute.history.git import Git, GitFailed
from bisect_recompute.history.repository import Repository


@dataclass(frozen=True)
class Bump:
    """One submodule moved by one commit."""

    path: str
    old: Optional[str]
    new: Optional[str]
    brought: tuple[Commit, ...] = ()
    """First-parent commits that the new revision has and the old one has not, oldest first."""
    lost: tuple[Commit, ...] = ()
    """Those that only the old one has: it goes back, or to another branch."""
    problem: str = ""
    """Why the commits are not known."""


def submodule_changes(paths: Iterable[ChangedPath]) -> list[SourceChange]:
    """One change per submodule that the commit moves, adds or removes."""
    out = []
    for path in paths:
        if is_bump(path):
            if path.old_commit and path.new_commit:
                detail = f"moves from {path.old_commit} to {path.new_commit}: its own commits decide what changes"
            else:
                detail = f"added at {path.new_commit}" if path.new_commit else f"removed (was at {path.old_commit})"
            out.append(SourceChange(path.path, "", "submodule", 0, detail))
    return out


def is_bump(path: ChangedPath) -> bool:
    return bool(path.old_commit or path.new_commit) and not is_tested_or_documented(path.path)


def submodule_clone(repository: Repository, path: str) -> Optional[Repository]:
    """The submodule's own clone, where it was ever initialised: its work tree's, or the one in the git directory."""
    common = Path(repository.common_dir)
    if ".." in path.split("/"):
        return None
    for folder in (common.parent / path, common / "modules" / path):
        try:
            # Without a .git of its own a folder in the work tree is the outer repository's.
            if (folder / ".git").exists() or (folder / "HEAD").is_file():
                return Repository(folder)
        except (UsageError, OSError):
            continue
    return None


def bump(changed: ChangedPath, submodule: Repository) -> Bump:
    """The commits of ``submodule`` that the moved submodule brings and loses."""
    path, old, new = changed.path, changed.old_commit, changed.new_commit
    if not old or not new:
        return Bump(path, old, new, problem="the submodule is new" if new else "the submodule is removed")
    for sha in (old, new):
        try:
            submodule.commit(sha)
        except UsageError:
            return Bump(path, old, new, problem=f"{submodule.name} has no commit {sha[:10]}: fetch it")
    try:
        base = Git.at(submodule.git_dir).line("merge-base", old, new)
    except GitFailed:
        return Bump(path, old, new, problem=f"{old[:10]} and {new[:10]} have no common history")
    return Bump(path, old, new, brought=_between(submodule, base, new), lost=_between(submodule, base, old))


def _between(submodule: Repository, base: str, tip: str) -> tuple[Commit, ...]:
    return () if base == tip else submodule.range(f"{base}..{tip}").commits
