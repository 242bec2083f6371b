"""Runs a user's command on a commit and reads what it measured."""

from __future__ import annotations

import codecs
import errno
import itertools
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from bisect_recompute.errors import UsageError
from bisect_recompute.probe.command.log import LogReader
from bisect_recompute.probe.recipe import Thresholds
from bisect_recompute.probe.result import MemoryUse, ProbeResult, Throughput

MARK = "BISECT_RECOMPUTE_PROBE"
"""In the environment of all that a command starts: nothing of it may stay."""
LONGEST = 2**16
"""Characters of a line; the rest of a longer one is another line."""
METRICS = "metrics.json"
PLACEHOLDERS = ("commit", "worktree", "out", "recipe")


@dataclass(frozen=True)
class CommandRecipe:
    command: str
    """Split like a shell would; then each placeholder is filled in, whatever is in its value. No shell runs it."""
    recipe: str
    thresholds: Thresholds = Thresholds()

    @property
    def name(self) -> str:
        return self.recipe

    def stated_fields(self) -> set[str]:
        return set()

    def words(self, **values: str) -> list[str]:
        """Raises UsageError: no command line, or an unknown placeholder."""
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            raise UsageError(f"--command is no command line: {error}") from None
        unknown = sorted(set(re.findall(r"\{(\w+)\}", self.command)) - set(PLACEHOLDERS))
        if unknown or not words:
            what = f"the placeholder {{{unknown[0]}}} is not known" if unknown else "it is empty"
            raise UsageError(f"--command: {what}; known are {', '.join(f'{{{name}}}' for name in PLACEHOLDERS)}")
        return [re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), word) for word in words]


WATCH = Path(__file__).with_name("watch.py")


@dataclass(frozen=True)
class _Started:
    process: subprocess.Popen
    mark: str
    """Of all that it starts."""
    alive: int
    """Descriptor that closes with this process."""


class Commands:
    """Runs commands, several at once if asked. Of all that they started nothing outlives ``close``."""

    def __init__(self, timeout: float):
        """Seconds of one command."""
        self.timeout = timeout
        self._mark, self._numbers = uuid.uuid4().hex, itertools.count()
        self._lock, self._closed = threading.Lock(), False

    def start(self, words: list[str], tree: Path, out: Path, more: Mapping[str, str]) -> "_Started":
        """``out`` is removed, and all that it starts ended, when this process is killed. ``more``: environment variables.
        Raises OSError."""
        with self._lock:
            if self._closed:
                raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
            mark = f"{self._mark}-{next(self._numbers)}"
            closing, alive = os.pipe()
            try:
                process = subprocess.Popen(
                    [sys.executable, str(WATCH), str(closing), str(out), *words], cwd=tree,
                    env={**os.environ, **more, MARK: mark, "PYTHONUNBUFFERED": "1"}, start_new_session=True,
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=(closing,),
                )
            except OSError:
                os.close(alive)
                raise
            finally:
                os.close(closing)
            return _Started(process, mark, alive)

    def close(self) -> None:
        with self._lock:
            self._closed = True
        _kill_marked(self._mark)


def run_command(
    commands: Commands, recipe: CommandRecipe, tree: Path, sha: str, log: Path, command: str
) -> ProbeResult:
    """Ok: the command ended with 0 and measured something. All that it started has ended when this returns or raises."""
    began = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bisect-recompute-") as out:
        words = recipe.words(commit=sha, worktree=str(tree), out=out, recipe=recipe.recipe)
        reader = LogReader()
        status, stage, reason = _execute(commands, words, tree, Path(out), log, reader)
        memory, throughput = reader.memory(), reader.throughput()
        if status == "ok":
            try:
                memory, throughput = _written(Path(out) / METRICS) or (memory, throughput)
            except ValueError as error:
                status, stage, reason = "failed", "run", f"{METRICS}: {error}"
    if status == "ok" and memory is None and throughput is None:
        reason = f"it ended well and measured nothing: no {METRICS} in {{out}}, no known log line"
        status, stage = "failed", "run"
    if status != "ok":
        memory = throughput = None  # of a run that was cut short a peak is no peak
    return ProbeResult(
        sha, status, stage, reason, time.monotonic() - began, command, probe="command", memory=memory,
        throughput=throughput,
    )


def _execute(commands: Commands, words: list[str], tree: Path, out: Path, log: Path, reader: LogReader) -> tuple[str, str, str]:
    """(status, stage, reason)"""
    end = run_words(commands, words, tree, out, log, reader)
    if end is None:
        return "ok", "done", ""
    if end.startswith(NOT_DONE):
        return "timeout", "run", end
    found = reader.failure()
    if found is None:
        return "failed", "run", end
    kind, stage, text = found
    return ("oom" if kind == "oom" else "failed"), stage, (text if kind in ("oom", "error") else f"{kind}: {text}")


NOT_DONE = "not done"


def run_words(
    commands: Commands, words: list[str], folder: Path, out: Path, log: Path, reader: LogReader,
    hangs: Callable[[float], bool] = lambda silent: False, more: Mapping[str, str] | None = None,
) -> str | None:
    """How the command ended, in words; None: with 0. All that it started has ended. ``hangs``: asked again and again, with
    the seconds since its last output, whether to end it."""
    try:
        started = commands.start(words, folder, out, more or {})
    except OSError as error:
        return f"{words[0]}: {error.strerror}"
    process = started.process
    try:
        silent = _read(process, log, time.monotonic() + commands.timeout, reader, hangs)
    finally:
        _end_all(process, started.mark)
        os.close(started.alive)
    if silent is not None:
        return f"{NOT_DONE} after {commands.timeout:.0f} s; it had said nothing for {silent:.0f} s"
    if process.returncode < 0:
        return f"killed by {signal.Signals(-process.returncode).name}"
    return f"exit status {process.returncode}" if process.returncode else None


def _read(
    process: subprocess.Popen, log: Path, deadline: float, reader: LogReader, hangs: Callable[[float], bool]
) -> float | None:
    """Until the command ends: None. At the deadline, or when it hangs: for how many seconds it has been silent."""
    decoder, line, spoke = codecs.getincrementaldecoder("utf-8")("replace"), "", time.monotonic()
    pipe = process.stdout.fileno()
    with open(log, "wb") as file:
        while True:
            now = time.monotonic()
            if now >= deadline or hangs(now - spoke):
                return now - spoke
            ended = process.poll() is not None
            ready = select.select([pipe], [], [], 0 if ended else min(0.5, deadline - now))[0]
            data = os.read(pipe, 2**16) if ready else b""
            if data:
                spoke = time.monotonic()
                file.write(data)
                line += decoder.decode(data)
                *lines, line = re.split(r"[\r\n]+", line)
                for text in lines:
                    reader.line(text)
                if len(line) > LONGEST:
                    reader.line(line, cut=True)
                    line = ""
            elif ended:
                reader.line(line, cut=True)
                return None
            elif ready:  # it closed its output and goes on
                try:
                    process.wait(min(0.5, deadline - now))
                except subprocess.TimeoutExpired:
                    pass


def _end_all(process: subprocess.Popen, mark: str) -> None:
    """The group, and whatever left it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    process.stdout.close()
    _kill_marked(mark)


def _kill_marked(mark: str) -> None:
    """Whose mark begins like this, and what they start meanwhile."""
    while any([_killed(other, mark) for other in psutil.process_iter()]):
        time.sleep(0.05)


def _killed(process: psutil.Process, mark: str) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE or not process.environ().get(MARK, "").startswith(mark):
            return False
        process.kill()
        return True
    except psutil.Error:
        return False


def _written(path: Path) -> tuple[MemoryUse | None, Throughput | None] | None:
    """``max_allocated_bytes``, ``step_seconds`` and ``tflops_per_gpu`` that the command wrote. Raises ValueError."""
    if not path.is_file():
        return None
    data = json.loads(path.read_text(encoding="utf-8"))
    names = ("max_allocated_bytes", "step_seconds", "tflops_per_gpu")
    if not isinstance(data, dict) or not set(data) <= set(names):
        raise ValueError(f"expected an object with {', '.join(names)}")
    for name, value in data.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise ValueError(f"{name} is no positive number")
    peak, seconds, tflops = (data.get(name) for name in names)
    if tflops and not seconds:
        raise ValueError("tflops_per_gpu needs step_seconds")
    return MemoryUse(round(peak)) if peak else None, Throughput(seconds, tflops) if seconds else None
