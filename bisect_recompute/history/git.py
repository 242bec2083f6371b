"""Runs git's plumbing on a repository that is only read, through GitPython."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

# A missing git is reported by the first command; GitPython would raise on import.
os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
from git.cmd import Git as Command
from git.exc import GitCommandNotFound

from bisect_recompute.errors import UsageError

# Inside `git bisect run`, hooks and wrappers GIT_DIR, GIT_INDEX_FILE, GIT_WORK_TREE & co. point at another repository.
_KEPT = ("GIT_EXEC_PATH", "GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM", "GIT_PYTHON_REFRESH")
# Nothing may write or ask; a partial clone would fetch what is read and store it in the user's repository.
_SET = dict(GIT_OPTIONAL_LOCKS="0", GIT_TERMINAL_PROMPT="0", GIT_NO_LAZY_FETCH="1", GIT_ALLOW_PROTOCOL="none")


def _without_redirections() -> list[str]:
    """GitPython hands on all of ``os.environ`` and cannot leave a variable out: ``env -u`` takes them away."""
    names = (n for n in os.environ if n.startswith("GIT_") and not n.startswith("GIT_CONFIG_") and n not in _KEPT)
    unset = [f"-u{name}" for name in names]
    return ["env", *unset] if unset else []


class GitFailed(Exception):
    """A git command ended with an error; ``code`` is its exit status, the message its last line on stderr."""

    def __init__(self, code: int, stderr: bytes):
        self.code = code
        self.stderr = stderr.decode("utf-8", "replace").strip()
        super().__init__(self.stderr.splitlines()[-1] if self.stderr else f"git ended with status {code}")


class Git:
    """git on one repository: ``args`` are the options that select it."""

    def __init__(self, *args: str):
        self._args = args

    @classmethod
    def at(cls, git_dir: Path) -> Git:
        return cls(f"--git-dir={git_dir}")

    def run(self, *args: str, input: bytes = b"") -> bytes:
        """Standard output of ``git ARGS``. Raises GitFailed, and UsageError where git itself is missing."""
        process = self.start(*args)
        output, errors = process.communicate(input)
        if process.returncode:
            raise GitFailed(process.returncode, errors)
        return output

    def line(self, *args: str) -> str:
        return os.fsdecode(self.run(*args)).rstrip("\n")

    def start(self, *args: str) -> Command.AutoInterrupt:
        """``git ARGS`` with pipes at its standard input, output and error; ended when the object goes."""
        # Ctrl-C is for us: git must not die of it while another thread waits for its answer.
        options = dict(istream=subprocess.PIPE, as_process=True, env=_SET, start_new_session=True)
        try:
            return Command().execute([*_without_redirections(), "git", *self._args, *args], **options)
        except GitCommandNotFound:
            raise UsageError("git is not on PATH: install git 2.25 or newer") from None
