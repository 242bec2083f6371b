"""One directory that holds the files of one commit, and becomes another commit by writing what differs."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from bisect_recompute.errors import UsageError
from bisect_recompute.history.objects import MODE_EXECUTABLE, MODE_LINK, TreeEntry


class Slot:
    """``folder/tree`` holds the files, ``folder/state.json`` what was written there.

    The files are git's blobs byte for byte: nothing of git's checkout machinery takes part, so no hook, filter, LFS
    smudge, line-end conversion or file monitor can run. The caller holds the slot's lock.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self.tree = folder / "tree"
        self._state = folder / "state.json"

    def update(self, files: Mapping[str, TreeEntry], read: Callable[[str, str], bytes | None]) -> list[str]:
        """Makes the tree hold exactly ``files``; returns the paths left out, those that ``read(path, blob)`` lacks.

        Python's ``__pycache__`` is kept. Raises UsageError for paths that would leave the tree, OSError from the disk.
        """
        folders = _folders(files)
        # A probed commit's code may have put links in place of our own folders and files: none is followed.
        if not _is_folder(self._folder):
            _remove(self._folder)
        written = self._load() if _is_folder(self.tree) else None
        # Killed from here on, the slot has no state: the next update starts from nothing.
        _remove(self._state)
        if written is None:
            self.clear()
            written = {}
        self.tree.mkdir(parents=True, exist_ok=True)
        found: dict[str, os.stat_result] = {}
        self._sweep(self.tree, "", files, folders, found)
        state: dict[str, list] = {}
        missing = []
        for path, entry in files.items():
            target = self.tree / path
            kept = written.get(path)
            if path in found and kept == _signature(entry, found[path]):
                state[path] = kept
                continue
            content = read(path, entry.id)
            if path in found:
                target.unlink()
            if content is None:
                missing.append(path)
                continue
            _write(target, entry, content)
            state[path] = _signature(entry, target.lstat())
        self._save(state)
        return missing

    def clear(self) -> None:
        if _is_folder(self._folder):
            _remove(self._state)
            _remove(self.tree)

    def _load(self) -> dict[str, list] | None:
        try:
            with open(os.open(self._state, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                state = json.loads(file.read())
        except (OSError, ValueError):
            return None
        return state if isinstance(state, dict) else None

    def _save(self, state: dict[str, list]) -> None:
        new = self._state.with_suffix(".new")
        _remove(new)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "w") as file:
            json.dump(state, file)
        new.replace(self._state)

    def _sweep(self, folder: Path, start: str, files, folders: set[str], found: dict[str, os.stat_result]) -> None:
        """Removes what the commit does not have; notes the files that it may have."""
        with os.scandir(folder) as entries:
            for entry in list(entries):
                path = start + entry.name
                is_folder = entry.is_dir(follow_symlinks=False)
                if is_folder and path in folders:
                    self._sweep(Path(entry.path), f"{path}/", files, folders, found)
                elif not is_folder and path in files:
                    found[path] = entry.stat(follow_symlinks=False)
                elif not (is_folder and entry.name == "__pycache__"):
                    _remove(Path(entry.path))


def _folders(files: Mapping[str, TreeEntry]) -> set[str]:
    """All directories of the files. Raises UsageError where a path leaves the tree or leads through another file."""
    folders: set[str] = set()
    for path in files:
        parts = path.split("/")
        if any(part in ("", ".", "..") or part.lower() == ".git" for part in parts):
            raise UsageError(f"the commit holds the path {path!r}, which git itself refuses to check out")
        folders.update("/".join(parts[:i]) for i in range(1, len(parts)))
    both = folders.intersection(files)
    if both:
        raise UsageError(f"the commit holds {min(both)!r} both as file and as directory; its tree is damaged")
    return folders


def _write(target: Path, entry: TreeEntry, content: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if entry.mode == MODE_LINK:
        os.symlink(content, os.fsencode(target))
        return
    mode = 0o777 if entry.mode == MODE_EXECUTABLE else 0o666
    with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    os.utime(target, (_mtime(entry), _mtime(entry)))


def _mtime(entry: TreeEntry) -> int:
    """A time made from the content: Python takes a .pyc for current if size and modification second of the source agree,
    which two commits written within one second would satisfy."""
    return 1_000_000_000 + int(entry.id[:7], 16)


def _signature(entry: TreeEntry, found: os.stat_result) -> list:
    return [entry.id, entry.mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _is_folder(path: Path) -> bool:
    """A directory itself, not a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _remove(path: Path) -> None:
    """Removes a file or a whole directory, also one that a commit's code has write-protected."""
    try:
        is_folder = stat.S_ISDIR(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_folder:
        path.unlink()
        return
    path.chmod(0o700)
    for name in os.listdir(path):
        _remove(path / name)
    path.rmdir()
