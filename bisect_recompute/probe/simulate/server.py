"""The warm parent process: has imported torch and Transformer Engine, forks one child per probe.

Reads jobs as JSON lines on standard input, writes answers as JSON lines on standard output. It ends, with its children,
when its input closes: a killed tool leaves nothing behind.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import selectors
import signal
import sys
import time
from dataclasses import dataclass, field

from bisect_recompute.probe.gpu import GPUS


@dataclass
class Child:
    job: dict
    pid: int
    descriptor: int
    deadline: float
    data: bytes = b""
    stage: str = "import"
    result: dict | None = None
    timed_out: bool = False
    started: float = field(default_factory=time.monotonic)


class Server:
    def __init__(self, answers):
        self.answers = answers
        self.selector = selectors.DefaultSelector()
        self.selector.register(0, selectors.EVENT_READ, None)
        self.children: dict[int, Child] = {}
        self.input = b""

    def serve(self):
        try:
            while True:
                for key, _ in self.selector.select(self._next_deadline()):
                    if key.data is None:
                        if not self._read_jobs():
                            return
                    else:
                        self._read_child(key.data)
                now = time.monotonic()
                for child in self.children.values():
                    if now > child.deadline and not child.timed_out:
                        child.timed_out = True
                        _kill(child.pid)
        finally:
            for child in self.children.values():
                _kill(child.pid)

    def _next_deadline(self):
        waiting = [c.deadline for c in self.children.values() if not c.timed_out]
        return max(0.0, min(waiting) - time.monotonic()) if waiting else None

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
            status = 1
            try:
                os.setsid()
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: do not outlive the server
                os.close(read)
                devnull = os.open(os.devnull, os.O_RDONLY)
                os.dup2(devnull, 0)
                from bisect_recompute.probe.simulate import child

                child.main(job, write)
                status = 0
            finally:
                os._exit(status)
        os.close(write)
        child = Child(job, pid, read, time.monotonic() + job["timeout"])
        self.children[pid] = child
        self.selector.register(read, selectors.EVENT_READ, child)

    def _read_child(self, child: Child):
        data = os.read(child.descriptor, 1 << 16)
        if data:
            *lines, child.data = (child.data + data).split(b"\n")
            for line in lines:
                message = json.loads(line)
                child.stage = message.get("stage", child.stage)
                child.result = message.get("result", child.result)
            return
        self.selector.unregister(child.descriptor)
        os.close(child.descriptor)
        _kill(child.pid)
        _, status = os.waitpid(child.pid, 0)
        del self.children[child.pid]
        self._answer(child, status)

    def _answer(self, child: Child, status: int):
        seconds = round(time.monotonic() - child.started, 3)
        result = child.result
        if result is None:
            if child.timed_out:
                reason = f"no answer within {child.job['timeout']:g} s"
            elif os.WIFSIGNALED(status):
                reason = f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
            else:
                reason = f"ended with exit code {os.WEXITSTATUS(status)} and no answer"
            result = {
                "revision": child.job["revision"], "status": "timeout" if child.timed_out else "failed",
                "stage": child.stage, "reason": reason, "seconds": seconds, "command": child.job["command"],
                "log": child.job["log"],
            }
        self.answers.write(json.dumps({"id": child.job["id"], "result": result}) + "\n")
        self.answers.flush()


def _kill(pid: int):
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def main(gpu_name: str):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the tool's to handle; it closes our input
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from bisect_recompute.probe.simulate.runtime import prepare

    prepare(GPUS[gpu_name])
    gc.collect()
    gc.freeze()  # keep the warm heap out of the children's collections
    Server(answers).serve()


if __name__ == "__main__":
    main(sys.argv[1])
