"""Our own checkouts of a user's commits; the user's repository is only read."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

from bisect_recompute.errors import UsageError
from bisect_recompute.history.objects import MODE_SUBMODULE, TreeEntry
from bisect_recompute.history.repository import Repository
from bisect_recompute.history.slot import Slot


def cache_dir() -> Path:
    """Where checkouts are kept: BISECT_RECOMPUTE_CACHE, else the user's cache directory."""
    return Path(os.environ.get("BISECT_RECOMPUTE_CACHE") or platformdirs.user_cache_dir("bisect-recompute"))


class Worktrees:
    """Slots ``cache_dir/worktrees/<repository>/<n>``, reused by later checkouts and runs. Thread- and process-safe."""

    def __init__(self, repository: Repository, cache_dir: Path, whole: bool = False):
        """``whole``: all files of any repository."""
        self._repository, self._whole = repository, whole
        key = hashlib.sha256(os.fsencode(repository.common_dir)).hexdigest()[:16]
        self._folder = Path(cache_dir).absolute() / "worktrees" / key
        self.missing: dict[str, tuple[str, ...]] = {}
        """Commit -> paths left out of its checkout because the clone lacks them (a partial clone)."""

    @contextmanager
    def checkout(self, sha: str) -> Iterator[Path]:
        """A directory with the commit's files, for this caller alone while inside.

        Of a repository with ``megatron/core``: ``megatron/``, ``examples/`` and the files at the root; of any other: all files.
        Submodules are left out. Raises UsageError where the cache cannot be written or a Python file is missing.
        """
        files = _needed(self._repository.files(sha), self._whole)
        with self._slot() as folder:
            slot = Slot(folder)
            try:
                missing = slot.update(files, self._read(sha))
            except OSError as error:
                with suppress(OSError):
                    slot.clear()
                raise _unwritable(self._folder, error) from None
            self.missing[sha] = tuple(missing)
            yield slot.tree

    def _read(self, sha: str) -> Callable[[str, str], bytes | None]:
        def read(path: str, blob: str) -> bytes | None:
            content = self._repository.read_blob(blob)
            # Without a source file the commit's code would do something else than it did for its users.
            if content is None and path.endswith(".py"):
                raise UsageError(
                    f"the clone lacks {path!r} of {sha[:10]}, it is a partial clone: "
                    f"run `git -C {self._repository.git_dir} fetch --refetch --no-filter`"
                )
            return content

        return read

    @contextmanager
    def _slot(self) -> Iterator[Path]:
        for number in itertools.count():
            lock = FileLock(self._folder / f"{number}.lock", thread_local=False)
            try:
                # A probed commit's code may have put links here: opening or filling their targets would change them.
                for path in (self._folder, Path(lock.lock_file)):
                    if path.is_symlink():
                        path.unlink(missing_ok=True)
                self._folder.mkdir(parents=True, exist_ok=True)
                lock.acquire(timeout=0)
            except Timeout:
                continue
            except OSError as error:
                raise _unwritable(self._folder, error) from None
            try:
                yield self._folder / str(number)
            finally:
                lock.release()
            return


def _needed(files: dict[str, TreeEntry], whole: bool) -> dict[str, TreeEntry]:
    core = not whole and any(path.startswith("megatron/core/") for path in files)
    return {
        path: entry
        for path, entry in files.items()
        if entry.mode != MODE_SUBMODULE and (not core or "/" not in path or path.startswith(("megatron/", "examples/")))
    }


def _unwritable(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        f"cannot keep a checkout in {folder}: {error.strerror or error}; "
        "make room there, or set BISECT_RECOMPUTE_CACHE to a directory on another disk"
    )
