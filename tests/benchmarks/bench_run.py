"""The main job against what one would do by hand: a plain `git bisect run` whose step is one cold simulated probe.

    python tests/benchmarks/bench_run.py /path/to/Megatron-LM [GOOD..BAD]

Both start with an empty cache and name the first bad commit for llama3-70b with `bias_activation_fusion: false`.
Prints probes and seconds of each, and the ratio.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bisect_recompute.probe.recipe import shipped_recipes

RANGE = "66a1dfc86f..950aa43533"
STEP = """\
import json, subprocess, sys
done = subprocess.run([sys.executable, "-m", "bisect_recompute", "probe", "HEAD", "--recipe", sys.argv[1], "--json"],
                      capture_output=True, text=True)
open(sys.argv[3], "a").write("x")
peak = json.loads(done.stdout)["memory"]["peak_bytes"] if done.returncode == 0 else None
sys.exit(125 if peak is None else int(peak > float(sys.argv[2])))
"""


def main(clone: str, span: str):
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        recipe = work / "llama3-70b.yaml"
        text = shipped_recipes()["llama3-70b"].read_text()
        recipe.write_text(text.replace("bias_activation_fusion: true", "bias_activation_fusion: false"))
        environment = {**os.environ, "BISECT_RECOMPUTE_CACHE": str(work / "cache")}
        ours, run_seconds = _run(clone, span, recipe, work, environment)
        plain, probes, plain_seconds = _git_bisect(clone, span, recipe, work, ours)
    culprit = ours["culprit"]["commit"]
    print(f"bisect-recompute run: {culprit[:10]}, {ours['probes']['run']} probes, {run_seconds:.1f} s")
    print(f"git bisect run, cold: {plain[:10]}, {probes} probes + 2 endpoints not measured, {plain_seconds:.1f} s")
    print(f"ratio: {run_seconds / plain_seconds:.2f} of the time")


def _run(clone, span, recipe, work, environment):
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "bisect_recompute", "run", span, "--repo", clone, "--recipe", str(recipe),
         "--out", str(work / "out"), "--json", "--quiet"],
        env=environment, check=True, capture_output=True, text=True,
    )
    return json.loads(done.stdout), time.monotonic() - began


def _git_bisect(clone, span, recipe, work, verdict):
    """In a clone of its own. The limit between good and bad is given to it, as one would after measuring by hand."""
    copy, step, count = work / "clone", work / "step.py", work / "count"
    step.write_text(STEP)
    subprocess.run(["git", "clone", "-q", "--shared", "--no-checkout", clone, str(copy)], check=True)
    subprocess.run(["git", "-C", str(copy), "sparse-checkout", "set", "megatron"], check=True)
    memory = verdict["metrics"]["memory"]
    good, bad = span.split("..")
    git = ["git", "-C", str(copy)]
    began = time.monotonic()
    subprocess.run([*git, "bisect", "start", bad, good], check=True, capture_output=True)
    limit = (memory["good"] + memory["bad"]) / 2
    environment = {**os.environ, "BISECT_RECOMPUTE_CACHE": str(work / "cold")}
    done = subprocess.run([*git, "bisect", "run", sys.executable, str(step), str(recipe), str(limit), str(count)],
                          env=environment, cwd=copy, check=True, capture_output=True, text=True)
    seconds = time.monotonic() - began
    culprit = next(line.split()[0] for line in done.stdout.splitlines() if line.endswith("is the first bad commit"))
    return culprit, len(count.read_text()), seconds


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else RANGE)
