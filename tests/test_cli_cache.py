"""What is kept between runs, and pruning it."""

import json
import os
import time

import pytest
from command_line import RECIPE, call, megatron_history
from filelock import FileLock


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    return megatron_history(tmp_path_factory.getbasetemp())


def test_no_later_run_probes_equal_code_again(history, tmp_path):
    (tmp_path / "small.yaml").write_text(RECIPE)
    cache = tmp_path / "cache"

    def run(out, *options):
        done = call("run", history.range("base", "tip"), "--repo", history.repo.path, "--recipe", "small.yaml", "--out", out,
                    "--json", "--quiet", *options, cwd=tmp_path, cache=cache)
        assert done.returncode == 0
        return json.loads(done.stdout)

    first, second = run("first"), run("second")
    assert first["probes"]["run"] >= 4 and second["probes"]["run"] == 0 and second["probes"]["reused"] >= 4
    for key in ("culprit", "metrics", "cause"):
        assert first[key] == second[key]
    lines = [json.loads(line) for line in (tmp_path / "second" / "probes.jsonl").read_text().splitlines()]
    assert lines and all(line["earlier"] and line["log"] is None for line in lines)
    # The record of the second run stands alone.
    (tmp_path / "second" / "verdict.json").unlink()
    assert json.loads(call("resume", "second", "--json", cwd=tmp_path, cache=tmp_path / "other").stdout) == second
    assert run("third", "--no-cache")["probes"]["run"] == first["probes"]["run"]

    cleared = call("cache", "--prune", "--max-size", "0", "--json", cwd=tmp_path, cache=cache)
    assert json.loads(cleared.stdout)["parts"]["measurements"] < 100_000
    assert run("fourth")["probes"]["run"] == first["probes"]["run"]


def test_cache_is_shown_and_pruned(tmp_path):
    cache, old = tmp_path / "cache", time.time() - 40 * 86_400
    for path, size, used in (
        ("bytecode/ab/old", 50_000, old),
        ("bytecode/ab/new", 50_000, None),
        ("worktrees/key/0/tree/a.py", 50_000, None),
        ("worktrees/key/0/state.json", 10, old),
        ("worktrees/key/1/tree/b.py", 50_000, None),
        ("worktrees/key/1/state.json", 10, old),
        ("mine/precious", 50_000, old),
    ):
        (cache / path).parent.mkdir(parents=True, exist_ok=True)
        (cache / path).write_bytes(os.urandom(size))
        if used:
            os.utime(cache / path, (used, used))
    before = json.loads(call("cache", "--json", cwd=tmp_path, cache=cache).stdout)
    assert 100_000 <= before["parts"]["bytecode"] <= 120_000 and before["folder"] == str(cache)
    with FileLock(cache / "worktrees" / "key" / "1.lock"):
        done = call("cache", "--prune", cwd=tmp_path, cache=cache)
    assert done.returncode == 0 and " MiB removed" in done.stdout.splitlines()[0]
    left = sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file())
    assert left == ["bytecode/ab/new", "mine/precious", "worktrees/key/0.lock", "worktrees/key/1.lock",
                    "worktrees/key/1/state.json", "worktrees/key/1/tree/b.py"]
    call("cache", "--prune", "--max-size", "0", cwd=tmp_path, cache=cache)
    left = sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file())
    assert left == ["mine/precious", "worktrees/key/0.lock", "worktrees/key/1.lock"]
