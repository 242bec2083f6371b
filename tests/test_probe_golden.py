"""Recorded values through the real command line: every form that Megatron-LM's golden files had, and real history."""

import json
import os
import subprocess

import pytest
from command_line import call, refused

FOLDER = "tests/functional_tests/test_cases/moe/case_a"
FILE = f"{FOLDER}/golden_values_dev_dgx_h100.json"
CLONE = os.environ.get("BISECT_RECOMPUTE_MEGATRON_LM", "")


def series(*values, start=1):
    return {"start_step": start, "end_step": len(values), "step_interval": 1, "values": dict(zip("123456789", values))}


def golden(peak, seconds=0.5):
    return json.dumps(
        {"mem-max-allocated-bytes": series(peak - 7.0, float(peak)), "iteration-time": series("nan", 9.0, seconds)}
    )


@pytest.fixture
def probe(repo, tmp_path):
    def probe(content, *, recipe="case_a", status=0):
        sha = repo.commit("record", {FILE: content} if content else None)
        done = call(
            "probe",
            sha,
            "--repo",
            repo.path,
            "--probe",
            "golden",
            "--recipe",
            recipe,
            "--json",
            cwd=tmp_path,
            cache=tmp_path,
        )
        assert done.returncode == status, done.stderr
        return json.loads(done.stdout)

    return probe


def test_values_by_step(probe):
    peaks = series("nan", 10.0, 12.0, 12.0)
    # As text the steps would sort 1, 10, 2; the later half of the four that were logged is 2 and 3 seconds.
    times = {"values": {"1": "nan", "2": 60.0, "10": 3.0, "9": 2.0, "3": 50.0}}
    data = {"mem-max-allocated-bytes": peaks, "mem-allocated-bytes": series(8.0, 9.0), "iteration-time": times}
    found = probe(json.dumps(data))
    memory = found["memory"]
    assert (memory["peak_bytes"], memory["first_peak_bytes"], memory["allocated_bytes"]) == (12, 10, 9)
    assert memory["by_rank"] == {} and memory["reserved_bytes"] is None
    assert found["throughput"]["step_seconds"] == 2.5 and found["throughput"]["tflops_per_gpu"] is None
    assert found["probe"] == "golden" and list(found["provenance"]["modules"]) == [FILE]


def test_lists_means_and_single_numbers_of_other_years(probe):
    listed = probe(
        json.dumps(
            {
                "iteration-time": {"start_step": 0, "values": [9.0, 5.0, 4.0, 2.0]},
                "mem-allocated-bytes": {"values": [1.0]},
            }
        )
    )
    assert (listed["memory"], listed["throughput"]["step_seconds"]) == (None, 3.0), "allocated is no peak"
    mean = probe(json.dumps({"iteration_timing_avg": 0.25, "lm loss": series(1.0)}))
    assert (mean["memory"], mean["throughput"]["step_seconds"]) == (None, 0.25)
    assert (
        probe(json.dumps({"0": {}, "throughput": [1.0], "mem-max-allocated-bytes": 77}))["memory"]["peak_bytes"] == 77
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"lm loss": {"values": {"1": 2.0}}}', "the file has neither mem-max-allocated-bytes nor iteration-time"),
        ('{"mem-max-allocated-bytes": {"values": {"1": NaN, "2": "nan", "3": true, "4": -1}}}', "the file has neither"),
        ("<<<<<<< HEAD\n", "the file is no JSON"),
        ('"generated text"', "the file records no values by name"),
    ],
)
def test_a_file_without_values_cannot_be_measured(probe, content, reason):
    found = probe(content, status=5)
    assert (found["status"], found["stage"], found["memory"]) == ("failed", "checkout", None)
    assert found["reason"].startswith(reason)


def test_run_names_the_commit_that_recorded_the_shift(repo, tmp_path):
    base = repo.commit("base", {FILE: golden(1000)})
    repo.linear(3)
    other = repo.commit("another case", {f"{FOLDER}2/golden_values.json": golden(5)})
    repo.commit("no shift", {FILE: golden(1001)})
    repo.commit("removed", {FILE: None})
    culprit_parent = repo.commit("back", {FILE: golden(1001)})
    culprit = repo.commit("record more", {FILE: golden(1100, 0.2)})
    repo.linear(5, "other.txt")
    done = call(
        "run",
        f"{base}..main",
        "--repo",
        repo.path,
        "--probe",
        "golden",
        "--recipe",
        FOLDER,
        "--metric",
        "memory",
        "--out",
        "out",
        "--json",
        cwd=tmp_path,
        cache=tmp_path,
    )
    verdict = json.loads(done.stdout)
    assert (done.returncode, verdict["culprit"]["commit"], verdict["culprit"]["last_good"]) == (
        0,
        culprit,
        culprit_parent,
    )
    assert verdict["metrics"]["memory"] | {"change_pct": 0} == {
        "good": 1001,
        "bad": 1100,
        "unit": "bytes",
        "change_pct": 0,
        "shifted": True,
    }
    throughput = verdict["metrics"]["throughput"]
    # The last of two logged steps; 9 s is the warm-up.
    assert (throughput["unit"], throughput["good"], throughput["bad"]) == ("steps/s", 2.0, 5.0)
    assert verdict["cause"]["kind"] == "unknown" and verdict["probe"] == "golden" and verdict["probes"]["run"] <= 6
    ticket = (tmp_path / "out" / "ticket.md").read_text()
    assert "own tests recorded" in ticket and "Simulated" not in ticket
    again = call("resume", "out", cwd=tmp_path, cache=tmp_path)
    assert again.returncode == 0 and f"{culprit[:10]} is the first bad commit" in again.stdout
    # The command of the verdict does the same.
    (tmp_path / "out" / "verdict.json").unlink()
    assert call("resume", "out", cwd=tmp_path, cache=tmp_path).returncode == 0
    assert "--probe golden" in verdict["reproduce"] and other not in verdict["suspects"]


def test_scan_lists_every_recorded_shift(repo, tmp_path):
    base = repo.commit("base", {FILE: golden(1000, 0.5)})
    repo.linear(2)
    up = repo.commit("up", {FILE: golden(1100, 0.5)})
    slower = repo.commit("slower", {FILE: golden(1100, 1.0)})
    done = call(
        *("scan", f"{base}..main", "--repo", repo.path, "--probe", "golden", "--recipe", "case_a", "--out", "out"),
        *("--json", "--quiet"),
        cwd=tmp_path,
        cache=tmp_path,
    )
    found = json.loads(done.stdout)
    assert [step["culprit"]["commit"] for step in found["shifts"]] == [up, slower], done.stderr
    assert (found["throughput_unit"], [point["throughput"] for point in found["points"]]) == ("steps/s", [2.0] * 4 + [1.0])
    assert "steps/s" in (tmp_path / "out" / "timeline.svg").read_text()


def test_an_end_without_the_file_is_said(repo, tmp_path):
    base = repo.commit("base", {"a": "a"})
    repo.commit("record", {FILE: golden(1000)})
    done = call(
        "run",
        f"{base}..main",
        "--repo",
        repo.path,
        "--probe",
        "golden",
        "--recipe",
        "case_a",
        "--out",
        "out",
        cwd=tmp_path,
        cache=tmp_path,
    )
    assert done.returncode == 5 and f"{FILE} is not there at this commit" in done.stderr


def test_names(repo, tmp_path):
    def refusal(recipe, *options):
        return refused(
            "probe",
            "--repo",
            repo.path,
            "--probe",
            "golden",
            "--recipe",
            recipe,
            *options,
            cwd=tmp_path,
            cache=tmp_path,
        )

    repo.commit("none", {"a": "a"})
    assert (
        refusal("case_a")
        == f"no golden values of case_a at {repo.head()[:10]}: project has no file golden_values*.json there"
    )
    second = f"{FOLDER}/golden_values_dev_dgx_a100.json"
    repo.commit("two", {FILE: golden(1000), second: golden(3)})
    assert refusal("moe/case_a").endswith(f"say which: {second}, {FILE}")
    assert refusal("case_b").endswith("; did you mean case_a?")
    assert refusal("case_a", "--snapshot", "x.pickle").startswith("--snapshot is for --probe simulate")
    assert "--set" in refusal(FILE, "--set", "model.num_layers=2")


CASE = "moe/gpt3_mcore_te_tp2_pp2_ep4_etp1_memory_speed/golden_values_dev_dgx_h100.json"


@pytest.mark.megatron_lm
@pytest.mark.skipif(not CLONE, reason="BISECT_RECOMPUTE_MEGATRON_LM names no Megatron-LM clone")
@pytest.mark.parametrize(
    ("span", "percent"),
    [("08abeedbfe..e8024d716f^", -1.09), ("c08d89bea0..f5590597c4^", 2.72), ("e8024d716f..b9d3736e91^", -1.39)],
)
def test_commits_at_which_nvidia_recorded_another_peak(span, percent, tmp_path):
    """git's own log of the file is the oracle: the one commit of the span after which the recorded peak is another."""

    def git(*args):
        return subprocess.run(["git", "-C", CLONE, *args], capture_output=True, text=True, check=True).stdout

    path = f"tests/functional_tests/test_cases/{CASE}"

    def peak(revision):
        return max(json.loads(git("show", f"{revision}:{path}"))["mem-max-allocated-bytes"]["values"].values())

    touching = git("log", "--format=%H", "--reverse", span, "--", path).split()
    (culprit,) = [sha for sha in touching if peak(sha) != peak(f"{sha}^")]
    done = call(
        "run",
        span,
        "--repo",
        CLONE,
        "--probe",
        "golden",
        "--recipe",
        CASE,
        "--metric",
        "memory",
        "--direction",
        "any",
        "--out",
        "out",
        "--json",
        cwd=tmp_path,
        cache=tmp_path,
    )
    verdict = json.loads(done.stdout)
    memory = verdict["metrics"]["memory"]
    assert (verdict["culprit"]["commit"], memory["good"], memory["bad"]) == (
        culprit,
        peak(f"{culprit}^"),
        peak(culprit),
    )
    assert round(memory["change_pct"], 2) == percent
