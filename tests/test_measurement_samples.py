"""Repeated measurements: what is told apart from chance, and at which level."""

import itertools
import json
import statistics
import sys
from pathlib import Path

import pytest
from command_line import call, refused

from bisect_recompute.measurement.samples import compare_samples, fewest_samples, outliers, pooled
from bisect_recompute.probe.result import ProbeResult, Throughput

sys.path.insert(0, str(Path(__file__).with_name("benchmarks")))
from noise_study import NOISES, study  # noqa: E402

TRAIN = """\
import json, os, random, sys
level, out = float(open("level.txt").read()), sys.argv[1]
json.dump({"step_seconds": level * random.gauss(1, 0.01)}, open(f"{out}/metrics.json", "w"))
"""


def test_by_hand():
    found = compare_samples([100, 101, 102, 103], [110, 111, 112, 113], 0.95)
    # Four and four: P(U < 1) = 1 / 70 on either side, so the interval runs from the smallest to the largest ratio.
    assert (found.low_pct, found.high_pct) == (pytest.approx(100 * (110 / 103 - 1)), pytest.approx(13.0))
    assert found.outcome(5) == "different" and found.outcome(15) == "same" and found.outcome(10) == "open"
    assert compare_samples([100, 102, 104, 106], [101, 103, 105, 107], 0.95).outcome(0.5) == "open"


@pytest.mark.parametrize("n", [4, 5, 6])
def test_the_level_is_exact(n):
    """Of all orders that values without a shift can come in, those that are taken for one."""
    alarms = total = 0
    for chosen in itertools.combinations(range(2 * n), n):
        bad = [1 + index for index in range(2 * n) if index not in chosen]
        alarms += compare_samples([1 + index for index in chosen], bad, 0.95).outcome(0) == "different"
        total += 1
    assert 0.01 < alarms / total <= 0.05


def test_too_few():
    assert fewest_samples(0.95) == 4 and fewest_samples(0.5) == 2
    with pytest.raises(ValueError, match="3 and 3 samples are too few"):
        compare_samples([1, 2, 3], [4, 5, 6], 0.95)


@pytest.mark.parametrize("noise", NOISES)
def test_simulated_experiments(noise):
    found = study(1000, 6, noise, seed=7)
    assert found["false alarms"] <= 0.05 and found["power"] >= 0.7


def test_a_run_apart_is_named():
    assert outliers([1.0, 1.01, 0.99, 1.0, 1.5]) == [4] and outliers([1.0, 1.0, 1.0, 1.0]) == []
    runs = [ProbeResult("a", "ok", "done", "", 1.0, "", throughput=Throughput(s, 100 / s)) for s in (1.0, 1.01, 2.0, 0.99)]
    found = pooled(runs)
    assert found.throughput.step_seconds == statistics.median([1.0, 1.01, 2.0, 0.99]) and found.seconds == 4.0
    assert len(found.samples) == 4 and found.notes[0].startswith("run 3 of 4 lies apart: 2 s a step")
    failed = ProbeResult("a", "failed", "run", "x", 1.0, "")
    assert pooled([*runs, failed]) is failed


@pytest.fixture
def run(repo, tmp_path):
    def run(levels, *options):
        shas = [repo.commit(f"level {level}", {"train.py": TRAIN, "level.txt": str(level), "n": str(n)}) for n, level in enumerate(levels)]
        done = call(
            *("run", f"{shas[0]}..main", "--repo", repo.path, "--probe", "command", "--recipe", "r", "--jobs", "1"),
            *("--command", f"{sys.executable} train.py {{out}}", "--out", "out", "--json", *options),
            cwd=tmp_path, cache=tmp_path / "cache",
        )
        return shas, done.returncode, json.loads(done.stdout)

    return run


def test_run_with_repeats(run, tmp_path):
    shas, status, verdict = run([1.0, 1.0, 1.2, 1.2], "--repeats", "5")
    assert (status, verdict["culprit"]["commit"]) == (0, shas[2]) and "--repeats 5" in verdict["reproduce"]
    assert "5 and 5 runs in turn" in verdict["evidence"][0]["text"] and "more than chance" in verdict["evidence"][0]["text"]
    logs = sorted(path.name for path in (tmp_path / "out" / "logs").iterdir())
    assert f"{shas[0]}.log" in logs and f"{shas[0]}-5.log" in logs


def test_no_shift_says_what_would_have_shown(run):
    _, status, verdict = run([1.0, 1.0], "--repeats", "6", "--threshold", "8")
    text = verdict["evidence"][0]["text"]
    assert (status, verdict["outcome"]) == (3, "no-shift") and "8 % is ruled out; they would probably have shown a shift of" in text


def test_bad_calls(repo, tmp_path):
    repo.commit("a"), repo.commit("b")

    def refusal(*options):
        return refused("run", "HEAD~1..HEAD", "--repo", repo.path, "--recipe", "r", "--probe", *options, cwd=tmp_path, cache=tmp_path)

    assert refusal("command", "--command", "x", "--repeats", "3").startswith("--repeats 3: so few cannot tell a shift from chance; give 4")
