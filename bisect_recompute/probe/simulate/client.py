"""The simulated probe as the rest of the tool sees it."""

from __future__ import annotations

import concurrent.futures
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter

import bisect_recompute
from bisect_recompute.errors import UsageError
from bisect_recompute.probe.recipe import Recipe, RecipeFunction
from bisect_recompute.probe.result import ProbeResult
from bisect_recompute.probe.simulate.supervisor import failure

_RESULT = TypeAdapter(ProbeResult)
START = 180.0
"""Seconds that the warm process may take to start and to queue, over a probe's own limit."""


class Simulator:
    """Runs probes through one warm process per GPU kind. Thread-safe; a context manager that leaves no process behind."""

    def __init__(self, bytecode: Path, timeout: float = 120.0):
        """``bytecode``: folder for compiled code, kept between runs. ``timeout``: seconds per probe."""
        self.timeout = timeout
        self._bytecode = bytecode
        self._servers: dict[str, _Server] = {}
        self._closed = False
        self._lock = threading.Lock()

    def warm_up(self, gpu: str = "h100"):
        """Starts the warm process now, so that its imports run beside other work."""
        self._server(gpu)

    def probe(self, recipe: Recipe | RecipeFunction, tree: Path, revision: str, blobs: Mapping[str, str], log: Path,
              command: str = "", snapshot: Path | None = None) -> ProbeResult:
        """Measures the commit checked out at ``tree``; ``blobs``: repository path -> blob id of that commit.
        ``snapshot``: where the hottest rank's memory snapshot is written.

        Whatever the commit's code does is in the result. Raises UsageError when the simulator itself cannot start.
        """
        if isinstance(recipe, RecipeFunction):
            data, gpu = {"module": recipe.module, "function": recipe.function}, "h100"
        else:
            data, gpu = recipe.model_dump(exclude_unset=True), recipe.hardware.gpu
        log.parent.mkdir(parents=True, exist_ok=True)
        job = {
            "recipe": data, "tree": str(tree.resolve()), "revision": revision, "blobs": dict(blobs), "log": str(log),
            "bytecode": str(self._bytecode), "timeout": self.timeout, "command": command,
            "snapshot": str(snapshot.absolute()) if snapshot else None,
        }
        return _RESULT.validate_python(self._server(gpu).ask(job))

    def _server(self, gpu: str) -> "_Server":
        with self._lock:
            if self._closed:  # a late thread of a run that has ended: nobody would end its process
                raise UsageError("the simulator is closed")
            if gpu not in self._servers or not self._servers[gpu].alive:
                self._servers[gpu] = _Server(gpu, self._bytecode)
            return self._servers[gpu]

    def close(self):
        with self._lock:
            self._closed = True
            for server in self._servers.values():
                server.close()
            self._servers.clear()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


class _Server:
    def __init__(self, gpu: str, folder: Path):
        # Away from the user's directory: `python -m` puts the working directory before all else on sys.path.
        empty = folder / "empty"
        empty.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bisect_recompute.probe.simulate.server", gpu], cwd=empty,
            env={**os.environ, "PYTHONPATH": _python_path()},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )
        self._ids = itertools.count()
        self._waiting: dict[int, tuple[dict, concurrent.futures.Future]] = {}
        self._lock = threading.Lock()
        self._errors: list[str] = []
        self._ready = False
        self.alive = True
        threading.Thread(target=self._read_errors, daemon=True).start()
        threading.Thread(target=self._read_answers, daemon=True).start()

    def ask(self, job: dict) -> dict:
        future: concurrent.futures.Future = concurrent.futures.Future()
        with self._lock:
            job["id"] = next(self._ids)
            self._waiting[job["id"]] = job, future
            try:
                self._process.stdin.write(json.dumps(job) + "\n")
                self._process.stdin.flush()
            except (BrokenPipeError, ValueError):
                self._give_up(job, future)
        try:
            return future.result(timeout=START + job["timeout"])
        except concurrent.futures.TimeoutError:
            self._process.kill()  # it was stopped: its own limits would have answered long ago
            return future.result()

    def _read_answers(self):
        for line in self._process.stdout:
            answer = json.loads(line)
            if answer.get("ready"):
                self._ready = True
                continue
            with self._lock:
                _, future = self._waiting.pop(answer["id"], (None, None))
            if future is not None and not future.done():
                future.set_result(answer["result"])
        self._process.wait()
        with self._lock:
            self.alive = False
            for job, future in self._waiting.values():
                self._give_up(job, future)
            self._waiting.clear()

    def _give_up(self, job: dict, future):
        """A simulator that never was ready cannot run here; one that died later was killed under its probes."""
        self.alive = False
        if future.done():
            return
        if self._ready:
            future.set_result(failure(job, "failed", "import", "the simulator was killed while this probe ran", 0.0, True))
            return
        last = [line for line in self._errors if line.strip()][-1:] or ["it ended without a word"]
        future.set_exception(UsageError(
            f"the simulator cannot run: {last[0].strip()}; `bisect-recompute doctor` says what is missing "
            "(pip install 'bisect-recompute[simulate]')"
        ))

    def _read_errors(self):
        for line in self._process.stderr:
            self._errors.append(line)
            del self._errors[:-50]

    def close(self):
        try:
            self._process.stdin.close()
        except OSError:
            pass
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _python_path() -> str:
    """Where this tool itself was imported from, then what the user gave, without the working directory."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    here = os.path.realpath(os.getcwd())
    kept = [entry for entry in given if entry and os.path.realpath(entry) != here]
    return os.pathsep.join([*kept, str(Path(bisect_recompute.__file__).resolve().parents[1])])
