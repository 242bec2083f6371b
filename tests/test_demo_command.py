"""`bisect-recompute demo` from the call to the verdict, on the installed megatron-core."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bisect_recompute.cli.demo import demo_folder, unpack

ROOT = Path(__file__).resolve().parents[1]
MANIFEST = json.loads((ROOT / "fixtures" / "demo" / "manifest.json").read_text())


def demo(*args, cwd, cache):
    environment = {**os.environ, "BISECT_RECOMPUTE_CACHE": str(cache), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "bisect_recompute", "demo", *args]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def own_repository(tmp_path_factory):
    """A user's repository with a commit, a staged file and an untracked one; (folder, its state as git tells it)."""
    folder = tmp_path_factory.mktemp("own")

    def git(*args):
        identity = ["-c", "user.name=a", "-c", "user.email=a@lab.example"]
        return subprocess.run(["git", *identity, *args], cwd=folder, check=True, capture_output=True, text=True).stdout

    def state():
        return [git("status", "--porcelain", "--ignored"), git("for-each-ref"), git("worktree", "list"), git("stash", "list"),
                git("diff", "--cached"), (folder / ".git" / "config").read_text()]

    git("init", "-q")
    (folder / "kept.txt").write_text("kept\n")
    git("add", ".")
    git("commit", "-qm", "Start")
    (folder / "kept.txt").write_text("staged\n")
    git("add", ".")
    (folder / "loose.txt").write_text("loose\n")
    return folder, state


@pytest.fixture(scope="module")
def finished(own_repository, tmp_path_factory):
    folder, state = own_repository
    before = state()
    out = tmp_path_factory.mktemp("demo") / "out"
    done = demo("--json", "--out", str(out), cwd=folder, cache=tmp_path_factory.mktemp("cache"))
    assert done.returncode == 0, done.stderr
    assert state() == before
    return json.loads(done.stdout), out


def test_names_the_commit_that_drops_the_module(finished):
    verdict, out = finished
    assert verdict["outcome"] == "culprit"
    assert verdict["culprit"]["commit"] == MANIFEST["culprit"]
    assert verdict["range"]["good"] == MANIFEST["good_sha"] and verdict["range"]["bad"] == MANIFEST["bad_sha"]
    assert json.loads((out / "verdict.json").read_text()) == verdict


def test_memory_shift_is_what_the_shapes_say(finished):
    verdict, _ = finished
    layers, tokens, hidden, ffn, parallel = 32, 4096, 4096, 14336, 4
    kept_per_layer = (
        2 * tokens * 2 * ffn // parallel  # bf16 output of linear_fc1: gate and value
        + 2 * tokens * ffn // parallel  # bf16 output of SwiGLU
        + 2 * tokens // parallel * hidden  # bf16 output of the norm before it, sequence parallel
        + 4 * tokens // parallel  # fp32 reciprocal of its standard deviation
    )
    memory = verdict["metrics"]["memory"]
    assert memory["shifted"] and memory["bad"] - memory["good"] == layers * kept_per_layer
    kept = {tuple(t["shape"]): t["bytes"] for t in verdict["cause"]["tensors"]}
    assert kept[(tokens, 2 * ffn // parallel)] == layers * 2 * tokens * 2 * ffn // parallel
    # In the backward pass the first product of the MLP is no longer computed again: the step gets faster, not slower.
    assert verdict["metrics"]["throughput"]["bad"] > verdict["metrics"]["throughput"]["good"]


def test_names_the_setting(finished):
    verdict, _ = finished
    assert verdict["cause"]["kind"] == "setting"
    change = next(c for c in verdict["cause"]["changes"] if c["recipe"].endswith("llama3_8b_pretrain_config"))
    assert {key: change[key] for key in MANIFEST["culprit_change"]} == MANIFEST["culprit_change"]


def test_unpacks_once_to_the_shipped_commits(tmp_path, monkeypatch):
    monkeypatch.setenv("BISECT_RECOMPUTE_CACHE", str(tmp_path))
    stream = demo_folder() / "history.fast-export"
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(unpack, [stream] * 4))
    assert len(folders) == 1
    folder = folders.pop()
    head = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    assert head == MANIFEST["bad_sha"]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    done = demo(cwd=tmp_path, cache=tmp_path / "file")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: cannot unpack the demo's history in ") and done.stderr.count("\n") == 1
    assert "BISECT_RECOMPUTE_CACHE" in done.stderr
