"""Runs that are killed or interrupted, and what is left of them."""

import json
import os
import signal
import time

import psutil
import pytest
from command_line import RECIPE, call, megatron_history, refused, start


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cli-resume-cache")


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    return megatron_history(tmp_path_factory.getbasetemp())


@pytest.fixture
def arguments(history, tmp_path):
    (tmp_path / "small.yaml").write_text(RECIPE)
    return (
        "run",
        history.range("base", "tip"),
        "--repo",
        history.repo.path,
        "--recipe",
        tmp_path / "small.yaml",
        "--out",
        tmp_path / "out",
        "--no-cache",
    )


def lines_of(out) -> list[str]:
    path = out / "probes.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def wait_for(condition, process):
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.01)


def started(process) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def ended(processes, seconds=10) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return not [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_killed_in_the_middle_then_resumed(arguments, history, cache, tmp_path):
    out = tmp_path / "out"
    process = start(*arguments, "--jobs", "1", cwd=tmp_path, cache=cache)
    wait_for(lambda: len(lines_of(out)) >= 3, process)
    children = started(process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert ended(children), "a probe outlives the tool"
    before = lines_of(out)
    assert not (out / "verdict.json").exists()
    with open(out / "probes.jsonl", "a") as file:
        file.write('{"commit": "torn')

    done = call("resume", out, "--json", cwd=tmp_path, cache=cache)
    assert done.returncode == 0
    verdict = json.loads(done.stdout)
    assert verdict["culprit"]["commit"] == history.shas["kept"]
    after = lines_of(out)
    assert after[: len(before)] == before
    commits = [json.loads(line)["commit"] for line in after]
    assert len(set(commits)) == len(commits) == verdict["probes"]["run"]

    # A finished run resumed says the same again and probes nothing.
    again = call("resume", out, "--json", cwd=tmp_path, cache=cache)
    assert (again.returncode, json.loads(again.stdout), lines_of(out)) == (0, verdict, after)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_keeps_its_state(arguments, history, cache, tmp_path, number):
    out = tmp_path / "out"
    process = start(
        *arguments,
        cwd=tmp_path,
        cache=cache,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    wait_for(lambda: len(lines_of(out)) >= 2, process)
    children = started(process)
    process.send_signal(number)
    said, told = process.communicate(timeout=20)
    assert process.returncode == 130 and said == "" and "Traceback" not in told
    assert told.splitlines()[-1] == f"stopped, nothing is lost; go on with: bisect-recompute resume {out}"
    assert ended(children), "a probe outlives the tool"
    before = lines_of(out)
    assert {json.loads(line)["status"] for line in before} <= {"ok", "failed"}
    assert not [line for line in before if "killed" in json.loads(line)["reason"]]

    if number == signal.SIGTERM:
        done = call("resume", out, "--quiet", cwd=tmp_path, cache=cache)
        assert done.returncode == 0 and history.shas["kept"] in done.stdout and done.stderr == ""
        assert lines_of(out)[: len(before)] == before


def test_interrupted_before_the_first_answer(arguments, cache, tmp_path):
    process = start(*arguments, cwd=tmp_path, cache=cache)
    wait_for((tmp_path / "out" / "manifest.json").exists, process)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=20)
    assert process.returncode == 130 and told.splitlines()[-1].startswith("stopped, nothing is lost; go on with:")


def test_a_second_run_over_the_same_folder(arguments, history, cache, tmp_path):
    out = tmp_path / "out"
    process = start(*arguments, cwd=tmp_path, cache=cache)
    wait_for((out / "manifest.json").exists, process)
    busy = f"another bisect-recompute is at work in {out}; wait for it, or give another folder with --out"
    assert refused(*arguments, cwd=tmp_path, cache=cache) == busy
    assert refused("resume", out, cwd=tmp_path, cache=cache) == busy
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)

    assert refused(*arguments, cwd=tmp_path, cache=cache) == (
        f"{out} holds this run, unfinished; go on with it: bisect-recompute resume {out}"
    )
    other = list(arguments)
    other[1] = history.range("base", "kept")
    assert refused(*other, cwd=tmp_path, cache=cache) == (
        f"{out} holds another run ({history.shas['base'][:10]}..{history.shas['tip'][:10]}, small); "
        "give another folder with --out"
    )


def test_resume_without_a_run(cache, tmp_path):
    assert refused("resume", cwd=tmp_path, cache=cache) == (
        "there is no run under bisect-recompute-out/ here; name its folder: bisect-recompute resume RUN"
    )
    assert refused("resume", tmp_path, cwd=tmp_path, cache=cache) == f"no run in {tmp_path}: it has no manifest.json"


def test_the_recipe_of_a_run_is_the_one_it_began_with(arguments, history, cache, tmp_path):
    process = start(*arguments, cwd=tmp_path, cache=cache)
    wait_for((tmp_path / "out" / "manifest.json").exists, process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    (tmp_path / "small.yaml").unlink()
    done = call("resume", tmp_path / "out", "--quiet", cwd=tmp_path, cache=cache)
    assert done.returncode == 0 and history.shas["kept"] in done.stdout
