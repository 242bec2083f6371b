"""Stands between the tool and a command: when the tool is gone, whatever killed it, all that the command started ends too.

    watch.py DESCRIPTOR FOLDER COMMAND ...

DESCRIPTOR is a pipe that nobody writes to and that closes with the tool; FOLDER is removed then. It ends as the command does.
Run by its path, with nothing of the package imported: the working directory is the commit's.
"""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys

del sys.path[0]  # this folder: its modules are none of those that follow

import psutil  # noqa: E402

PR_SET_CHILD_SUBREAPER = 36


def main(descriptor: int, folder: str, words: list[str]) -> None:
    try:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # what leaves its parent becomes our child, not init's
    except (AttributeError, OSError):  # Linux has it
        pass
    try:
        command = subprocess.Popen(words)
    except OSError as error:
        sys.exit(f"{words[0]}: {error.strerror}")
    while command.poll() is None:
        if select.select([descriptor], [], [], 0.1)[0]:  # closed
            end_all()
            shutil.rmtree(folder, ignore_errors=True)
            return
    status = command.returncode
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


def end_all() -> None:
    """Again, as one may start another meanwhile."""
    for _ in range(20):
        others = psutil.Process().children(recursive=True)
        if not others:
            return
        for process in others:
            try:
                process.kill()
            except psutil.Error:
                pass
        psutil.wait_procs(others, timeout=1)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
