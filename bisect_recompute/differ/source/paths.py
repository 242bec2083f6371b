"""The files each commit changes, read from git objects in one process for a whole range."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Sequence

from bisect_recompute.history.commit import Commit

GITLINK = "160000"
_EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
_NONE = "0" * 40


@dataclass(frozen=True)
class PathChange:
    path: str
    old_mode: str
    new_mode: str
    old: Optional[str]
    """Blob id (commit id for a submodule) before the commit; None when the path is new."""
    new: Optional[str]


def changed_paths(git_dir: Path, commits: Sequence[Commit]) -> dict[str, list[PathChange]]:
    """Commit -> paths changed against its first parent, without rename detection."""
    if not commits:
        return {}
    pairs = "".join(f"{c.sha} {c.parents[0] if c.parents else _EMPTY_TREE}\n" for c in commits)
    # diff-tree takes "commit parent" lines; for a root commit the empty tree is named on the command line instead.
    roots = {c.sha for c in commits if not c.parents}
    stdin = "".join(line + "\n" for line in pairs.splitlines() if line.split()[0] not in roots)
    out = _git(git_dir, ["diff-tree", "--stdin", "-r", "-z", "--raw", "--no-renames", "--no-abbrev"], stdin)
    changes = {c.sha: [] for c in commits}
    _parse(out, changes, None)
    for root in roots:
        out = _git(git_dir, ["diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", _EMPTY_TREE, root], "")
        _parse(out, changes, root)
    return changes


def _parse(out: bytes, changes: dict[str, list[PathChange]], current: Optional[str]) -> None:
    fields = iter(out.decode("utf-8", "surrogateescape").split("\0"))
    for field in fields:
        field = field.lstrip("\n")
        if field.startswith(":"):
            old_mode, new_mode, old, new, _status = field[1:].split(" ")
            path = next(fields)
            changes[current].append(PathChange(
                path, old_mode, new_mode, None if old == _NONE else old, None if new == _NONE else new
            ))
        elif field:
            current = field.strip()


def _git(git_dir: Path, args: list[str], stdin: str) -> bytes:
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    done = subprocess.run(["git", f"--git-dir={git_dir}", *args], input=stdin.encode(), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, env=env, check=True)
    return done.stdout
