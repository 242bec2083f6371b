"""Step times against iterations that NVIDIA measured (fixtures/measured/iteration-times.json).

    python tests/benchmarks/bench_time.py /path/to/Megatron-LM [CASES.json [REVISION]]

Simulates the first rank of each pipeline stage that can differ, with the arguments of the run. Prints both times, the error and where
the simulated time goes; nothing is fitted to these runs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bisect_recompute.history.repository import Repository
from bisect_recompute.history.worktree import Worktrees, cache_dir
from bisect_recompute.probe.calibration import read_cases, spread
from bisect_recompute.probe.simulate.client import Simulator

CASES = Path(__file__).resolve().parents[2] / "fixtures" / "measured" / "iteration-times.json"


def main(clone: str, cases_file: str = str(CASES), revision: str = ""):
    repository = Repository(Path(clone))
    commit = repository.commit(revision or json.loads(Path(cases_file).read_text())["revision"])
    log = cache_dir() / "logs" / "bench_time.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    errors = []
    print(f"{'case':62} {'GPUs':>10} {'measured':>9} {'simulated':>9} {'error':>7} {'TFLOP/s/GPU':>11}")
    with Worktrees(repository, cache_dir()).checkout(commit.sha) as tree, Simulator(cache_dir() / "bytecode", 600) as simulator:
        for case in read_cases(Path(cases_file)):
            recipe = case.recipe().model_copy(update={"ranks": None})
            result = simulator.probe(recipe, tree, commit.sha, {}, log)
            where = f"{case.case:62} {recipe.gpus:4} {case.gpu:>5}"
            measured = case.measured.median_iteration_seconds
            if result.throughput is None:
                print(f"{where} {measured:8.3f}s {result.status}: {result.reason}")
                continue
            step = result.throughput
            errors.append(100 * (step.step_seconds / measured - 1))
            kinds = ", ".join(f"{kind} {seconds:.3f}" for kind, seconds in step.seconds_by_kind.items())
            print(f"{where} {measured:8.3f}s {step.step_seconds:8.3f}s {errors[-1]:+6.1f}% {step.tflops_per_gpu:11.0f}  {kinds}", flush=True)
    numbers = spread(errors)
    print(f"{len(errors)} runs: absolute error median {numbers['median']:.0f} %, worst {numbers['worst']:.0f} %")


if __name__ == "__main__":
    main(*sys.argv[1:])
