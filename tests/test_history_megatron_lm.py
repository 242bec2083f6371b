import hashlib
import os
import subprocess
import time
from pathlib import Path

import pytest

from bisect_recompute.history.repository import Repository
from bisect_recompute.history.worktree import Worktrees

CLONE = os.environ.get("BISECT_RECOMPUTE_MEGATRON_LM", "")
pytestmark = [
    pytest.mark.megatron_lm,
    pytest.mark.skipif(not CLONE, reason="BISECT_RECOMPUTE_MEGATRON_LM names no Megatron-LM clone"),
]


def git(*args):
    return subprocess.run(["git", "-C", CLONE, *args], check=True, capture_output=True, text=True).stdout


def blobs(sha, *paths):
    entries = (line.split("\t") for line in git("ls-tree", "-r", "-z", sha, *paths).split("\0")[:-1])
    return {path: head.split()[2] for head, path in entries}


def test_a_range_of_272_commits_is_read_within_two_seconds():
    start = time.perf_counter()
    repository = Repository(Path(CLONE))
    commits = repository.range("66a1dfc86f..950aa43533").commits
    changes = repository.changes_in(commits)
    trees = [repository.tree(commit.sha, "megatron/") for commit in commits]
    assert time.perf_counter() - start < 2
    assert len(commits) == 272
    assert len(repository.range("66a1dfc86f..950aa43533", first_parent=False).commits) == 353
    for number in (0, 100, 271):
        assert trees[number] == blobs(commits[number].sha, "megatron/")
    for before, after, commit in zip(trees, trees[1:], commits[1:]):
        touched = {c.path for c in changes[commit.sha] if c.path.startswith("megatron/")}
        assert {p for p in before.keys() | after.keys() if before.get(p) != after.get(p)} == touched


def test_neighbouring_commits_are_checked_out_at_once(tmp_path):
    repository = Repository(Path(CLONE))
    worktrees = Worktrees(repository, tmp_path)
    seconds = []
    for revision in ("66a1dfc86f", "2e29a5e1e3~1", "2e29a5e1e3", "950aa43533"):
        sha = repository.commit(revision).sha
        start = time.perf_counter()
        with worktrees.checkout(sha) as tree:
            seconds.append(time.perf_counter() - start)
            found = {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*") if path.is_file()}
        expected = {p: b for p, b in blobs(sha).items() if "/" not in p or p.startswith(("megatron/", "examples/"))}
        assert {p: hashlib.sha1(b"blob %d\0" % len(c) + c).hexdigest() for p, c in found.items()} == expected
    assert seconds[0] < 2 and max(seconds[1:]) < 0.6  # 0.2 and 0.1 on two idle cores; tests share the machine
