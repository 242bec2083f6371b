"""Objects of a repository, through one long-lived ``git cat-file --batch``."""

from __future__ import annotations

import os
import re
import threading
from typing import NamedTuple

from bisect_recompute.errors import UsageError
from bisect_recompute.history.git import Command, Git, GitFailed

_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")

MODE_TREE, MODE_EXECUTABLE, MODE_LINK, MODE_SUBMODULE = 0o040000, 0o100755, 0o120000, 0o160000


class TreeEntry(NamedTuple):
    mode: int
    """As in git; a plain file is none of the ``MODE_`` constants (0o100644, in old repositories 0o100664)."""
    name: bytes
    id: str


class Objects:
    """Reads objects by id; thread-safe; never fetches."""

    # GitPython's get_object_data() takes no SHA-256 ids, and fails for good once git has ended: in a partial clone git
    # ends at the first object that is missing.

    def __init__(self, git: Git):
        self._git = git
        self._lock = threading.Lock()
        self._process: Command.AutoInterrupt | None = None

    def read(self, object_id: str) -> tuple[str, bytes] | None:
        """(type, content), or None where the repository lacks the object."""
        if not _ID.fullmatch(object_id):
            raise ValueError(f"not a full object id: {object_id!r}")
        with self._lock:
            for _ in range(2):
                try:
                    return self._ask(object_id)
                except BaseException as error:
                    # Also when interrupted: an answer left unread would be taken for that of the next question.
                    said = self._stop()
                    if not isinstance(error, (OSError, EOFError)):
                        raise
                    if "promisor" in said:
                        return None
                    reason = said
                # Somebody killed git, or a repack pulled a pack from under it: a new process sees the new packs.
            raise UsageError(f"git cannot read object {object_id}: {reason}; `git fsck` tells more")

    def _ask(self, object_id: str) -> tuple[str, bytes] | None:
        if self._process is None:
            self._process = self._git.start("cat-file", "--batch")
            os.set_blocking(self._process.stderr.fileno(), False)
        # Of a damaged repository git says something at every read; a full pipe would stop it for good.
        self._process.stderr.read()
        self._process.stdin.write(object_id.encode() + b"\n")
        self._process.stdin.flush()
        header = self._process.stdout.readline()
        if not header.endswith(b"\n"):
            raise EOFError("git cat-file ended")
        words = header.split()
        if len(words) != 3:
            return None
        size = int(words[2])
        content = self._process.stdout.read(size + 1)
        if len(content) != size + 1:
            raise EOFError("git cat-file ended")
        return words[1].decode(), content[:-1]

    def _stop(self) -> str:
        """Ends git; returns the last line it said on its standard error."""
        if self._process is None:
            return ""
        process, self._process = self._process, None
        process.kill()
        _, errors = process.communicate()
        return str(GitFailed(process.returncode, errors))

    def close(self) -> None:
        with self._lock:
            self._stop()


def parse_tree(content: bytes, id_bytes: int) -> list[TreeEntry]:
    """Entries of a tree object; ``id_bytes`` is 20 (SHA-1) or 32 (SHA-256); GitPython's parser knows 20 alone."""
    entries = []
    at = 0
    while at < len(content):
        space = content.index(b" ", at)
        end = content.index(b"\0", space)
        entries.append(
            TreeEntry(int(content[at:space], 8), content[space + 1 : end], content[end + 1 : end + 1 + id_bytes].hex())
        )
        at = end + 1 + id_bytes
    return entries
