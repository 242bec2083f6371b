"""Real git repositories for tests: same calls, same commit ids."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

_EPOCH = 1_700_000_000


class GitRepo:
    """A repository at ``path`` with a work tree; every commit is one minute after the one before."""

    def __init__(self, path: Path, *init: str):
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self.commits = 0
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        self.env.update(
            GIT_CONFIG_GLOBAL=os.devnull,
            GIT_CONFIG_NOSYSTEM="1",
            GIT_AUTHOR_NAME="Ada Lovelace",
            GIT_AUTHOR_EMAIL="ada@example.com",
            GIT_COMMITTER_NAME="Ada Lovelace",
            GIT_COMMITTER_EMAIL="ada@example.com",
        )
        self.git("init", "-q", "-b", "main", *init)

    def git(self, *args: str, input: str | bytes | None = None, check: bool = True, **env: str) -> str:
        """``git ARGS`` in the repository: its standard output without the last newline."""
        done = subprocess.run(
            ["git", *args],
            cwd=self.path,
            env={**self.env, **env},
            input=input.encode() if isinstance(input, str) else input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
        )
        if check and done.returncode:
            raise AssertionError(f"git {' '.join(args)}: {done.stderr.decode('utf-8', 'replace')}")
        return os.fsdecode(done.stdout).rstrip("\n")

    def write(self, files: dict[str, str | bytes | None]) -> None:
        """Writes files of the work tree; None removes one."""
        for name, content in files.items():
            target = self.path / name
            if content is None:
                target.unlink()
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.encode() if isinstance(content, str) else content)

    def commit(
        self, subject: str, files: dict[str, str | bytes | None] | None = None, author: str = "Ada Lovelace"
    ) -> str:
        """Commits the files written (none: an empty commit) and returns the commit id."""
        self.write(files or {})
        self.git("add", "-A")
        self.git(
            "commit", "-q", "--allow-empty", "--no-verify", "--cleanup=verbatim", "-F", "-",
            input=subject, **self._dates(), GIT_AUTHOR_NAME=author,
        )
        return self.head()

    def merge(self, *branches: str, subject: str = "Merge", options: tuple[str, ...] = ()) -> str:
        """Merges branches into the current one, always with a merge commit; returns its id."""
        self.git("merge", "-q", "--no-ff", "-m", subject, *options, *branches, **self._dates())
        return self.head()

    def switch(self, branch: str, start: str | None = None) -> None:
        """Switches to a branch; with ``start``, creates it there first."""
        self.git("checkout", "-q", *(["-b", branch, start] if start else [branch]))

    def head(self) -> str:
        return self.git("rev-parse", "HEAD")

    def linear(self, count: int, file: str = "file.txt") -> list[str]:
        """``count`` commits that each change ``file``; their ids, oldest first."""
        return [self.commit(f"commit {i}", {file: f"{i}\n"}) for i in range(count)]

    def clone(self, path: Path, *options: str) -> GitRepo:
        """``git clone OPTIONS`` over the file protocol (so that --depth and --filter work)."""
        other = object.__new__(GitRepo)
        other.path, other.env, other.commits = Path(path), self.env, self.commits
        self.git("config", "uploadpack.allowFilter", "true")
        self.git("clone", "-q", *options, f"file://{self.path}", str(path))
        return other

    def delete(self) -> None:
        shutil.rmtree(self.path)

    def _dates(self) -> dict[str, str]:
        self.commits += 1
        date = f"{_EPOCH + 60 * self.commits} +0000"
        return {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
