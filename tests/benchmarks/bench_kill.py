"""A run killed at random moments (SIGKILL) and resumed, again and again: nothing measured is lost, nothing stays behind.

    python tests/benchmarks/bench_kill.py [KILLS] [SEED]

Each round starts a run over the history of tests/command_line.py, kills it after a random time, resumes it (and kills that
too, half of the time) to its end, and checks: the culprit, that no commit was probed twice, that every line of the record
is whole, that no process is left and that the clone has no new ref or worktree.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from command_line import RECIPE, call, megatron_history, start  # noqa: E402


def main(kills: int, seed: int) -> None:
    rng, killed, number = random.Random(seed), 0, 0
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        history = megatron_history(work)
        (work / "small.yaml").write_text(RECIPE)
        before = _state(history.repo)
        began = time.monotonic()
        _round(history, work, "whole", [])
        longest = time.monotonic() - began
        while killed < kills:
            number += 1
            moments = [rng.uniform(0, longest) for _ in range(rng.choice((1, 2)))]
            killed += _round(history, work, f"run-{number}", moments)
            assert _state(history.repo) == before, "something was written into the repository"
            print(f"{killed} kills", flush=True)
    print(f"{number} runs, {killed} kills: the same culprit each time, no probe twice, nothing left behind")


def _round(history, work: Path, out: str, moments: list[float]) -> int:
    arguments = ("run", history.range("base", "tip"), "--repo", history.repo.path, "--recipe", "small.yaml", "--out", out,
                 "--no-cache", "--quiet")
    killed = 0
    for moment in moments:
        process = start(*arguments, cwd=work, cache=work / "cache")
        try:  # A finished one is resumed too: it says again what it found.
            process.wait(moment)
        except subprocess.TimeoutExpired:
            children = psutil.Process(process.pid).children(recursive=True)
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
            killed += 1
            # One that is still importing torch sees only then that nobody is left to answer.
            _, alive = psutil.wait_procs(children, timeout=60)
            left = [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
            assert not left, f"left behind: {left}"
        if (work / out / "manifest.json").exists():
            arguments = ("resume", out, "--quiet")
    done = call(*arguments, cwd=work, cache=work / "cache")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (work / out / "probes.jsonl").read_text().splitlines()]
    commits = [line["commit"] for line in lines]
    assert len(set(commits)) == len(commits), "a finished probe was run again"
    verdict = json.loads((work / out / "verdict.json").read_text())
    assert verdict["culprit"]["commit"] == history.shas["kept"]
    return killed


def _state(repo) -> tuple[str, str]:
    return repo.git("for-each-ref"), repo.git("worktree", "list")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50, int(sys.argv[2]) if len(sys.argv) > 2 else 1)
