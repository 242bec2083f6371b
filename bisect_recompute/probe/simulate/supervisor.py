"""The process between the warm server and one probe: what the commit's code does to its parent, its session or its time
limit ends here, and so does every process that it leaves behind."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import time

import psutil

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LONGEST_OUTPUT = 256 * 2**20
"""Bytes that a probe may write to one file, its log included."""


def set_process(option: int, value: int):
    ctypes.CDLL(None).prctl(option, value)


def supervise(job: dict, answer: int):
    """Forks the probe, waits for its result, its end or its time limit, and writes the answer, one line."""
    os.setsid()
    set_process(PR_SET_PDEATHSIG, signal.SIGKILL)
    set_process(PR_SET_CHILD_SUBREAPER, 1)  # daemons of the probe become our children, not init's
    began = time.monotonic()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _probe(job, write)
    os.close(write)
    keep_only(read, answer)
    seen = _follow(pid, read, began + job["timeout"])
    seen["starved"] = seen["timed_out"] and _starved(pid, time.monotonic() - began)
    kill_descendants()
    line = json.dumps(_result(job, seen, round(time.monotonic() - began, 3))) + "\n"
    with os.fdopen(answer, "w") as stream:
        stream.write(line)


def _probe(job: dict, write: int):
    status = 1
    try:
        os.setsid()
        set_process(PR_SET_PDEATHSIG, signal.SIGKILL)
        keep_only(write)
        resource.setrlimit(resource.RLIMIT_FSIZE, (LONGEST_OUTPUT, LONGEST_OUTPUT))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        from bisect_recompute.probe.simulate import child

        child.main(job, write)
        status = 0
    finally:
        os._exit(status)


def keep_only(*descriptors: int):
    """Closes every other descriptor above the standard ones: the pipes of other probes are not this one's to write."""
    previous = 2
    for descriptor in sorted(descriptors):
        os.closerange(previous + 1, descriptor)
        previous = descriptor
    os.closerange(previous + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _follow(pid: int, read: int, deadline: float) -> dict:
    """Until the result is there, the probe has ended, or the time is over: a pipe that a daemon holds open tells nothing."""
    seen = {"stage": "import", "result": None, "status": None, "timed_out": False}
    os.set_blocking(read, False)
    data = b""
    while seen["result"] is None:
        ended, status = os.waitpid(pid, os.WNOHANG)  # before reading: what it wrote last is there then
        *lines, data = (data + _available(read)).split(b"\n")
        for line in lines:
            _note(seen, line)
        if ended:
            seen["status"] = status
            break
        if time.monotonic() > deadline:
            seen["timed_out"] = True
            break
        if not lines:
            select.select([read], [], [], 0.02)
            time.sleep(0.005)  # a closed pipe is always ready
    return seen


def _available(read: int) -> bytes:
    chunks = []
    while True:
        try:
            chunk = os.read(read, 1 << 16)
        except BlockingIOError:
            break
        if not chunk:
            break
        chunks.append(chunk)
    return b"".join(chunks)


def _note(seen: dict, line: bytes):
    """The commit's code may have written to the pipe as well: what is no message is passed over."""
    try:
        message = json.loads(line)
    except ValueError:
        return
    if isinstance(message, dict):
        seen["stage"] = str(message.get("stage", seen["stage"]))
        seen["result"] = message.get("result", seen["result"])


def _result(job: dict, seen: dict, seconds: float) -> dict:
    if isinstance(seen["result"], dict):
        return seen["result"]
    by_machine = seen["starved"]
    if seen["timed_out"]:
        reason = f"no answer within {job['timeout']:g} s"
    elif os.WIFSIGNALED(seen["status"] or 0):
        number = os.WTERMSIG(seen["status"])
        reason, by_machine = f"killed by {_signal_name(number)}", number == signal.SIGKILL
    else:
        reason = f"ended with exit code {os.WEXITSTATUS(seen['status'] or 0)} and no answer"
    return failure(job, "timeout" if seen["timed_out"] else "failed", seen["stage"], reason, seconds, by_machine)


def _starved(pid: int, seconds: float) -> bool:
    """On a machine with more to do than processors, a probe that got less than half of one."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return False
    used = times.user + times.system + times.children_user + times.children_system
    return used < seconds / 2 and os.getloadavg()[0] > (os.cpu_count() or 1)


def failure(job: dict, status: str, stage: str, reason: str, seconds: float, by_machine: bool = False) -> dict:
    """A ProbeResult as JSON for a probe that gave none."""
    return {"revision": job["revision"], "status": status, "stage": stage, "reason": reason, "seconds": seconds,
            "command": job["command"], "log": job["log"], "by_machine": by_machine}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def kill_descendants():
    """Again and again, since one may fork while another is killed."""
    me = psutil.Process()
    for _ in range(20):
        processes = me.children(recursive=True)
        if not processes:
            return
        for process in processes:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        psutil.wait_procs(processes, timeout=1)
