"""Standard output and standard error as they may be: closed, full, or a pipe that nobody reads."""

from __future__ import annotations

import io
import os
import sys


class OutputLost(Exception):
    """Standard output cannot be written; the message is the system's reason.

    No OSError: click and rich end the process by themselves, with exit code 1, when they meet a broken pipe.
    """


class _Output(io.FileIO):
    def write(self, data):
        try:
            return super().write(data)
        except OSError as error:
            raise OutputLost(error.strerror) from None


class _Messages(io.FileIO):
    """What cannot be written is dropped: a message must never change the exit code."""

    def write(self, data):
        try:
            return super().write(data) or len(data)
        except OSError:
            return len(data)


def open_streams() -> None:
    """Makes ``sys.stdout`` raise OutputLost, and ``sys.stderr`` nothing, when they cannot be written."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The next file that is opened would get the number, and be written to as if it were the stream.
            # Of 1 only reading is opened: whoever closed it must be told that the result went nowhere.
            os.set_inheritable(os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY), True)
    sys.stdout = _text(_Output(1, "w", closefd=False), sys.stdout)
    sys.stderr = _text(_Messages(2, "w", closefd=False), sys.stderr, line_buffering=True)


def drop_output() -> None:
    """What is left in the buffer goes nowhere: python would end with code 120 if it could not be written."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def _text(raw: io.FileIO, before, line_buffering: bool = False) -> io.TextIOWrapper:
    if before is not None:
        before.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=before.encoding if before else None,
        errors="backslashreplace",  # a commit's author may be called what the locale cannot write
        line_buffering=line_buffering or raw.isatty(),
    )
