"""`git bisect run bisect-recompute hook`, with git itself."""

import json
import os
import subprocess
import sys

import pytest
from command_line import RECIPE, call, environment, megatron_history

from bisect_recompute.cli.hook import _bisection


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cli-hook-cache")


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    return megatron_history(tmp_path_factory.getbasetemp())


@pytest.fixture
def clone(history, tmp_path):
    (tmp_path / "small.yaml").write_text(RECIPE)
    clone = history.repo.clone(tmp_path / "clone")
    clone.git("fetch", "-q", "origin", "other")
    return clone


def hook(clone, cache, *args):
    return call("hook", "--recipe", "../small.yaml", *args, cwd=clone.path, cache=cache)


def files_of(repo):
    return {str(p): p.stat().st_mtime_ns for p in repo.path.rglob("*") if p.is_file()}


def test_git_bisect_run_names_the_culprit(clone, history, cache):
    clone.git("bisect", "start", history.shas["tip"], history.shas["base"])
    command = [sys.executable, "-m", "bisect_recompute", "hook", "--recipe", "../small.yaml"]
    done = subprocess.run(
        ["git", "bisect", "run", *command], cwd=clone.path, env=environment(cache), capture_output=True, text=True
    )
    assert done.returncode == 0, done
    assert f"{history.shas['kept']} is the first bad commit" in done.stdout
    assert f"bad: {history.shas['kept'][:10]} kept " in done.stderr


def test_answers_good_bad_and_skip_and_writes_nothing_into_the_repository(clone, history, cache):
    clone.git("bisect", "start", history.shas["tip"], history.shas["base"])
    for name, code, side in (("comment", 0, "good"), ("kept", 1, "bad"), ("broken", 125, "skip")):
        clone.git("checkout", "-q", history.shas[name])
        before = files_of(clone)
        done = hook(clone, cache, "--json")
        assert (done.returncode, json.loads(done.stdout)["side"]) == (code, side)
        assert files_of(clone) == before
    # Asked again, nothing is measured: it answers without the simulator.
    clone.git("checkout", "-q", history.shas["kept"])
    blocker = clone.path.parent / "blocker"
    blocker.mkdir()
    (blocker / "torch.py").write_text("raise ImportError('not to be loaded')\n")
    env = {"PYTHONPATH": f"{blocker}{os.pathsep}{environment(cache)['PYTHONPATH']}"}
    again = call("hook", "--recipe", "../small.yaml", cwd=clone.path, cache=cache, env=env)
    assert again.returncode == 1 and again.stderr.startswith(f"bad: {history.shas['kept'][:10]} ")


@pytest.mark.parametrize("output", ["2>/dev/full", "2>&1 | true", ">&-", "2>&-", ">&- 2>&-"])
def test_an_answer_that_cannot_be_said_is_still_the_answer(clone, history, cache, output):
    """A full disk behind a log must not turn good into bad."""
    clone.git("checkout", "-q", history.shas["comment"])
    refs = f"--good {history.shas['base']} --bad {history.shas['tip']}"
    run = f"{sys.executable} -m bisect_recompute hook --recipe ../small.yaml"

    def code(arguments):
        line = f"set -o pipefail; {run} {arguments} {output}"
        return subprocess.run(["bash", "-c", line], cwd=clone.path, env=environment(cache), capture_output=True).returncode

    assert code(refs) == 0
    assert code(f"{refs} --no-such-option") == 128


def stops(done) -> str:
    assert (done.returncode, done.stdout) == (128, "")
    return done.stderr.splitlines()[-1]


def test_everything_wrong_stops_git_bisect_run(clone, history, cache, tmp_path):
    assert stops(hook(clone, cache)).startswith("error: no good commit is known: run this under `git bisect run`")
    assert stops(hook(clone, cache, "--good", "nope", "--bad", "main")).startswith("error: unknown revision 'nope'")
    assert stops(hook(clone, cache, "--colour")).startswith("error: No such option '--colour'")
    assert stops(hook(clone, cache, "--probe", "slurm")).startswith("error: --probe slurm is not there yet")
    assert stops(call("hook", cwd=clone.path, cache=cache)).startswith("error: Missing option '--recipe'")
    assert stops(call("hook", "--recipe", "../small.yaml", cwd=tmp_path, cache=cache)).startswith(
        "error: not a repository"
    )
    # 1 to 127 would be taken for an answer.
    assert stops(
        call("hook", "--recipe", "no.yaml", "--good", "main~1", "--bad", "main", cwd=clone.path, cache=cache)
    ).startswith("error: no such recipe: no.yaml")


def test_references_that_cannot_be_told_apart_or_measured(clone, history, cache):
    said = stops(hook(clone, cache, "--good", history.shas["base"], "--bad", history.shas["comment"]))
    assert said.startswith(
        f"error: good {history.shas['base'][:10]} and bad {history.shas['comment'][:10]} do not differ by the "
        "threshold: memory "
    )
    said = stops(hook(clone, cache, "--good", history.shas["base"], "--bad", history.shas["broken"]))
    assert said.startswith(
        f"error: the bad reference {history.shas['broken'][:10]} cannot be probed: failed at import: SyntaxError"
    )


def test_references_are_read_from_gits_own_log(repo):
    shas = repo.linear(6)
    git_dir = repo.path / ".git"
    assert _bisection(git_dir) == {"good": None, "bad": None}
    repo.git("bisect", "start", "HEAD", shas[0])
    repo.git("bisect", "good")
    repo.git("bisect", "bad")
    assert _bisection(git_dir) == {"good": shas[0], "bad": shas[5]}
    repo.git("bisect", "reset")
    repo.git("bisect", "start", "--term-old", "fast", "--term-new", "slow")
    repo.git("bisect", "slow", shas[4])
    assert _bisection(git_dir) == {"good": None, "bad": shas[4]}
    repo.git("bisect", "fast", shas[1])
    assert _bisection(git_dir) == {"good": shas[1], "bad": shas[4]}


def test_one_reference_or_a_limit_is_enough(clone, history, cache):
    sides = {}
    for name in ("comment", "kept", "broken"):
        clone.git("checkout", "-q", history.shas[name])
        done = hook(clone, cache, "--against", history.shas["base"], "--json")
        sides[name] = json.loads(done.stdout)["side"]
        assert done.returncode == {"good": 0, "bad": 1, "skip": 125}[sides[name]]
    assert sides == {"comment": "good", "kept": "bad", "broken": "skip"}
    clone.git("checkout", "-q", history.shas["kept"])
    for option, size, code in (("--limit", "1GiB", 0), ("--limit", "1MiB", 1), ("--min-tflops", "1e9", 1), ("--min-tflops", "0", 0)):
        assert hook(clone, cache, option, size, "--quiet").returncode == code
    done = hook(clone, cache, "--against", "HEAD", "--limit", "1GiB")
    assert done.returncode == 128 and "take one" in done.stderr
