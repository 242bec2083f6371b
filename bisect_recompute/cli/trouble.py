"""Trouble that is no fault of the call and none of the tool: a full disk, a repository that is gone."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from bisect_recompute.errors import UsageError


class Failed(Exception):
    """The command cannot go on (exit code 1). The message is one line."""


@contextmanager
def one_line_of_trouble() -> Iterator[None]:
    """Around a command: OSError and GitFailed become Failed, or UsageError for a path that can be nowhere."""
    try:
        yield
    except OSError as error:
        kind = UsageError if error.errno == errno.ENAMETOOLONG else Failed
        raise kind(_reason(error)) from None
    except Exception as error:
        if not _of_git(error):
            raise
        raise Failed(f"git failed: {error}") from None


@contextmanager
def kept_for_resume(resume: str) -> Iterator[None]:
    """Around a run that is under way: a full disk and the like is Failed, and names the command that goes on."""
    try:
        with one_line_of_trouble():
            yield
    except Failed as error:
        raise Failed(f"{error}; nothing measured is lost, go on with: {resume}") from None


def _reason(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)


def _of_git(error: Exception) -> bool:
    from bisect_recompute.history.git import GitFailed  # GitPython takes its time

    return isinstance(error, GitFailed)
