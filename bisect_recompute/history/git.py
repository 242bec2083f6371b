"""Runs git's plumbing on a repository that is only read."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import IO

from bisect_recompute.errors import UsageError

# Inside `git bisect run`, hooks and wrappers GIT_DIR, GIT_INDEX_FILE, GIT_WORK_TREE & co. point at another repository.
_KEPT = ("GIT_EXEC_PATH", "GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM")


def git_environment() -> dict[str, str]:
    """The environment for every git process: the user's, without what redirects git or lets it write or ask."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name.startswith("GIT_CONFIG_") or name in _KEPT
    }
    env.update(
        LC_ALL="C",
        LANGUAGE="C",
        GIT_OPTIONAL_LOCKS="0",
        GIT_TERMINAL_PROMPT="0",
        # A partial clone fetches what is read and stores it: that would change the user's repository.
        GIT_NO_LAZY_FETCH="1",
        GIT_ALLOW_PROTOCOL="none",
    )
    return env


class GitFailed(Exception):
    """A git command ended with an error; ``code`` is its exit status, the message its last line on stderr."""

    def __init__(self, code: int, stderr: bytes):
        lines = stderr.decode("utf-8", "replace").strip().splitlines()
        super().__init__(lines[-1] if lines else f"git ended with status {code}")
        self.code = code
        self.stderr = "\n".join(lines)


class Git:
    """git on one repository: ``args`` are the options that select it."""

    def __init__(self, *args: str):
        self._args = ("git", *args)

    @classmethod
    def at(cls, git_dir: Path) -> Git:
        return cls(f"--git-dir={git_dir}")

    def run(self, *args: str, input: bytes | None = None) -> bytes:
        """Standard output of ``git ARGS``. Raises GitFailed, and UsageError where git itself is missing."""
        try:
            done = subprocess.run(
                [*self._args, *args],
                input=input,
                stdin=subprocess.DEVNULL if input is None else None,
                capture_output=True,
                env=git_environment(),
            )
        except FileNotFoundError:
            raise UsageError("git is not on PATH: install git 2.25 or newer") from None
        if done.returncode:
            raise GitFailed(done.returncode, done.stderr)
        return done.stdout

    def line(self, *args: str) -> str:
        return os.fsdecode(self.run(*args)).rstrip("\n")

    def start(self, *args: str, stderr: IO) -> subprocess.Popen:
        """A long-lived ``git ARGS`` that talks over its standard input and output."""
        return subprocess.Popen(
            [*self._args, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=git_environment(),
            # Ctrl-C is for us: git must not die of it while another thread waits for its answer.
            start_new_session=True,
        )
