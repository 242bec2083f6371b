"""Megatron-Bridge: submodule bumps and source, on the real repositories."""

import os
from pathlib import Path

import pytest

from bisect_recompute.differ.evidence import expand_submodules, recompute_changes
from bisect_recompute.history.repository import Repository

BRIDGE = os.environ.get("BISECT_RECOMPUTE_MEGATRON_BRIDGE", "")
CORE = os.environ.get("BISECT_RECOMPUTE_MEGATRON_LM", "")
pytestmark = [
    pytest.mark.megatron_bridge,
    pytest.mark.skipif(not BRIDGE, reason="BISECT_RECOMPUTE_MEGATRON_BRIDGE names no Megatron-Bridge clone"),
]

BUMPS = {
    "53f91f228": "b6b49e7e60",
    "cef687f5e": "f54403492e",
    "39fbc49cf": "ada8dfe6f2",
    "220827e4b": "118933a859",
    "fab087edd": "07a23196d4",
    "7e1ba2828": "e22bcb09b9",
}
# Commits whose subject or lines hold the words and that mean nothing for recompute.
QUIET = [
    "2018704a4",
    "b3ba53aa6",
    "f36e5de7d",
    "644b9967d",
    "5960873f0",
    "1b66a8c11",
    "53d40d1bc",
    "6d6f2821b",
    "b19f2e775",
    "14e85e49e",
    "7b1dc3791",
    "4a03c498f",
    "d12548a3c",
    "49ed36ed0",
    "ed56c0a0c",
    "86cdfa6b1",
]


@pytest.fixture(scope="module")
def bridge():
    return Repository(Path(BRIDGE))


@pytest.mark.megatron_lm
@pytest.mark.skipif(not CORE, reason="BISECT_RECOMPUTE_MEGATRON_LM names no Megatron-LM clone")
@pytest.mark.parametrize("bump", BUMPS)
def test_a_bump_brings_the_commit_that_changes_behaviour(bridge, bump):
    commit = bridge.commit(bump)
    assert "submodule" in recompute_changes(bridge, [commit])[0].kinds
    ((moved, inside),) = expand_submodules(bridge, [commit], Repository(Path(CORE)))[commit.sha]
    loud = [c.commit.sha[:10] for c in inside if "checkpoint-site" in c.kinds]
    assert BUMPS[bump] in loud
    assert len(loud) < len(moved.brought)


@pytest.mark.parametrize("sha", QUIET)
def test_words_without_meaning_yield_nothing(bridge, sha):
    (found,) = recompute_changes(bridge, [bridge.commit(sha)])
    assert set(found.kinds) <= {"none", "submodule"}, found.source
