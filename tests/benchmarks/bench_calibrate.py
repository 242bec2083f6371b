"""The simulator against Megatron-LM's own formula, on the same measured runs.

    python tests/benchmarks/bench_calibrate.py /path/to/Megatron-LM [CASES.json [REVISION]]

Megatron-LM prints a theoretical footprint at the start of training (megatron/training/theoretical_memory_usage.py: weights,
optimizer and activations of a GPT). Prints both errors per case, and the spread of both.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bisect_recompute.history.repository import Repository
from bisect_recompute.history.worktree import Worktrees, cache_dir
from bisect_recompute.probe.calibration import read_cases, spread

CASES = Path(__file__).resolve().parents[2] / "fixtures" / "measured" / "h100.json"
MIB = 1 << 20
FORMULA = """\
import contextlib, io, os, sys
from pathlib import Path
tree, world, *arguments = sys.argv[1:]
sys.argv = ["pretrain_gpt.py", *arguments]
os.environ.update(RANK="0", WORLD_SIZE=world)
from bisect_recompute.probe.gpu import GPUS
from bisect_recompute.probe.simulate import runtime, vocabulary
from bisect_recompute.probe.simulate.imports import CommitFinder
runtime.prepare(GPUS["h100"])
CommitFinder(Path(tree), Path(tree).parent / "bytecode").install()
from megatron.training.arguments import parse_args, validate_args
from megatron.training import theoretical_memory_usage as usage
with contextlib.redirect_stdout(io.StringIO()):
    args = parse_args()
    args.tokenizer_type = args.tokenizer_type or "GPT2BPETokenizer"
    validate_args(args)
    unit = args.make_vocab_size_divisible_by * args.tensor_model_parallel_size
    args.padded_vocab_size = -(-vocabulary.vocab_size(args) // unit) * unit
    usage.print_rank_0 = lambda *text: None
    microbatches = args.global_batch_size // (args.micro_batch_size * args.data_parallel_size)
    total = usage.report_theoretical_memory(args, num_microbatches=microbatches)[-1]
print(total)
"""


def main(clone: str, cases_file: str = str(CASES), revision: str = ""):
    revision = revision or json.loads(Path(cases_file).read_text()).get("revision", "HEAD")
    done = subprocess.run(
        [sys.executable, "-m", "bisect_recompute", "calibrate", cases_file, "--repo", clone, "--revision", revision, "--json"],
        check=True, stdout=subprocess.PIPE, text=True,
    )
    simulated = {case["case"]: case["error_pct"] for case in json.loads(done.stdout)["cases"]}
    repository = Repository(Path(clone))
    formula = {}
    with Worktrees(repository, cache_dir()).checkout(repository.commit(revision).sha) as tree:
        for case in read_cases(Path(cases_file)):
            total = theoretical(case, tree)
            formula[case.case] = None if total is None else 100 * (total - case.measured.peak_bytes) / case.measured.peak_bytes
    print(f"{'case':90} {'simulated':>10} {'formula':>10}")
    for name, error in simulated.items():
        print(f"{name:90} {_percent(error):>10} {_percent(formula[name]):>10}")
    both = [name for name in simulated if None not in (simulated[name], formula[name])]
    for what, errors in (("simulated", simulated), ("formula", formula)):
        numbers = spread([errors[name] for name in both])
        print(f"{what}, {len(both)} cases that both know: median {numbers['median']:.2f} %, 90th percentile {numbers['p90']:.2f} %, "
              f"worst {numbers['worst']:.1f} %")


def theoretical(case, tree: Path) -> float | None:
    """Bytes by the formula; None where it has no answer (other families than GPT, options that it refuses)."""
    if case.case.partition("/")[0] not in ("gpt", "moe", "mixtral"):
        return None
    recipe = case.recipe()
    command = [sys.executable, "-c", FORMULA, str(tree), str(recipe.gpus), *recipe.launch.arguments, "--train-iters", "10", "--lr", "1e-4"]
    done = subprocess.run(command, capture_output=True, text=True)
    return float(done.stdout) * MIB if done.returncode == 0 and done.stdout.strip() else None


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f} %"


if __name__ == "__main__":
    main(*sys.argv[1:])
