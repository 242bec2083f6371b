"""The warm parent process: has imported torch and Transformer Engine, forks one supervised child per probe.

Reads jobs as JSON lines on standard input, writes answers as JSON lines on standard output. It ends, with its children,
when its input closes: a killed tool leaves nothing behind.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import sys
import time
from dataclasses import dataclass, field

import psutil

from bisect_recompute.probe.gpu import GPUS
from bisect_recompute.probe.simulate import supervisor

GRACE = 10.0
"""Seconds over a probe's limit after which its supervisor is taken for stopped."""


@dataclass
class Running:
    job: dict
    pid: int
    descriptor: int
    data: bytes = b""
    started: float = field(default_factory=time.monotonic)

    @property
    def deadline(self) -> float:
        return self.started + self.job["timeout"] + GRACE


class Server:
    def __init__(self, answers):
        self.answers = answers
        self.selector = selectors.DefaultSelector()
        self.selector.register(0, selectors.EVENT_READ, None)
        self.running: dict[int, Running] = {}
        self.input = b""

    def serve(self):
        try:
            while True:
                for key, _ in self.selector.select(self._next_deadline()):
                    if key.data is None:
                        if not self._read_jobs():
                            return
                    else:
                        self._read_answer(key.data)
                for probe in list(self.running.values()):
                    if time.monotonic() > probe.deadline:
                        self._end(probe, "timeout", f"no answer within {probe.job['timeout']:g} s; its supervisor was stopped")
        finally:
            supervisor.kill_descendants()

    def _next_deadline(self):
        deadlines = [probe.deadline for probe in self.running.values()]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _read_jobs(self) -> bool:
        data = os.read(0, 1 << 16)
        if not data:
            return False
        *lines, self.input = (self.input + data).split(b"\n")
        for line in lines:
            self._start(json.loads(line))
        return True

    def _start(self, job: dict):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                supervisor.keep_only(write)
                supervisor.supervise(job, write)
            finally:
                os._exit(0)
        os.close(write)
        probe = Running(job, pid, read)
        self.running[pid] = probe
        self.selector.register(read, selectors.EVENT_READ, probe)

    def _read_answer(self, probe: Running):
        data = os.read(probe.descriptor, 1 << 16)
        probe.data += data
        if data and not probe.data.endswith(b"\n"):
            return
        if probe.data.endswith(b"\n"):
            self._answer(probe, json.loads(probe.data))
        else:
            self._end(probe, "failed", "the commit's code killed the process that watches it")

    def _end(self, probe: Running, status: str, reason: str):
        seconds = round(time.monotonic() - probe.started, 3)
        self._answer(probe, supervisor.failure(probe.job, status, "import", reason, seconds))

    def _answer(self, probe: Running, result: dict):
        self.selector.unregister(probe.descriptor)
        os.close(probe.descriptor)
        del self.running[probe.pid]
        self._kill_strays()
        self.answers.write(json.dumps({"id": probe.job["id"], "result": result}) + "\n")
        self.answers.flush()

    def _kill_strays(self):
        """Whatever is below us and below no running supervisor: what a killed or finished one has left."""
        for process in psutil.Process().children():
            if process.pid not in self.running:
                for each in [*process.children(recursive=True), process]:
                    try:
                        each.kill()
                    except psutil.NoSuchProcess:
                        pass
        for pid in [p.pid for p in psutil.Process().children()]:
            if pid not in self.running:
                try:
                    os.waitpid(pid, 0)
                except ChildProcessError:
                    pass


def main(gpu_name: str):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the tool's to handle; it closes our input
    supervisor.set_process(supervisor.PR_SET_CHILD_SUBREAPER, 1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from bisect_recompute.probe.simulate.runtime import prepare

    prepare(GPUS[gpu_name])
    gc.collect()
    gc.freeze()  # keep the warm heap out of the children's collections
    answers.write(json.dumps({"ready": True}) + "\n")
    answers.flush()
    Server(answers).serve()


if __name__ == "__main__":
    main(sys.argv[1])
