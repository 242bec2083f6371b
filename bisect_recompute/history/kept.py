"""What the cache directory holds, and removing it piece by piece."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

PARTS = {
    "worktrees": "checkouts of commits",
    "bytecode": "compiled code of commits",
    "recipes": "what the differ found in recipes",
    "source": "what the differ found in source",
    "hook": "answers given to `git bisect run`",
    "logs": "output of single probes",
    "demo": "the demo's history",
}
"""Subfolder -> what for. Whatever else lies in the cache directory is not ours."""
_DEPTH = {"worktrees": 2, "hook": 1, "demo": 1}
"""Folders that are one piece lie this far below their part; of other parts each file is one."""


@dataclass(frozen=True)
class Piece:
    part: str
    path: Path
    bytes: int
    used: float
    """Last written or read, seconds since the epoch."""


def pieces(cache: Path) -> Iterator[Piece]:
    for part in PARTS:
        depth = _DEPTH.get(part)
        if depth:
            for path in (cache / part).glob("/".join("*" * depth)):
                if path.is_dir() and not path.is_symlink():
                    yield _piece(part, path, _files(path))
        else:
            for file in _files(cache / part):
                yield _piece(part, file, [file])


def outdated(found: Iterable[Piece], oldest: float, largest: int) -> list[Piece]:
    """Those used before ``oldest``, and of the others the least used ones over ``largest`` bytes in all."""
    dropped, total = [], 0
    for piece in sorted(found, key=lambda piece: -piece.used):
        total += piece.bytes
        if piece.used < oldest or total > largest:
            dropped.append(piece)
            total -= piece.bytes
    return dropped


def remove(piece: Piece) -> bool:
    """False where it is in use, or cannot be removed."""
    lock = {"worktrees": piece.path.with_name(f"{piece.path.name}.lock"), "hook": piece.path / ".lock"}.get(piece.part)
    try:
        if lock is None:
            shutil.rmtree(piece.path) if piece.path.is_dir() else piece.path.unlink()
        else:
            with FileLock(lock, timeout=0):
                shutil.rmtree(piece.path)
    except (Timeout, OSError):
        return False
    return True


def _piece(part: str, path: Path, files: Iterable[Path]) -> Piece:
    size, used = 0, 0.0
    for file in files:
        with suppress(OSError):  # removed since
            stat = file.lstat()
            size += stat.st_blocks * 512
            used = max(used, stat.st_mtime if part in _DEPTH else max(stat.st_mtime, stat.st_atime))
    # The files of a checkout have times made from their content: when it was used its record says.
    if part == "worktrees":
        with suppress(OSError):
            used = (path / "state.json").stat().st_mtime
    return Piece(part, path, size, used)


def _files(folder: Path) -> Iterator[Path]:
    for root, _, names in os.walk(folder):
        yield from (Path(root) / name for name in names)
