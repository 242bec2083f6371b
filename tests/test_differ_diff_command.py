"""``diff``: the document and the terminal, over real repositories; submodule bumps with what they bring."""

import json
import os
import re
import subprocess

import pytest
from command_line import call, refused
from gitrepo import GitRepo
from recipe_source import PATH, PRELUDE
from source_change import CONFIG

CLONE, CORE = (os.environ.get(f"BISECT_RECOMPUTE_MEGATRON_{name}") for name in ("BRIDGE", "LM"))
FIELD = "class TransformerConfig:\n    recompute_granularity: str = {}\n"
LINK = "3rdparty/Megatron-LM"
RECIPES = "".join(f"\n\ndef demo{i}_config():\n    return put(base(), layers=LAYERS)\n" for i in range(5))


def pin(repo: GitRepo, sha: str, subject: str = "bump") -> str:
    repo.git("update-index", "--add", "--cacheinfo", f"160000,{sha},{LINK}")
    repo.git("commit", "-q", "-m", subject)
    return repo.head()


@pytest.fixture(scope="module")
def repos(tmp_path_factory):
    """A repository of five recipes with one constant, and the Megatron-LM that it pins."""
    folder = tmp_path_factory.mktemp("diff")
    core, bridge = GitRepo(folder / "core"), GitRepo(folder / "bridge")
    core.shas = [core.commit("start", {CONFIG: FIELD.format("None")}), core.commit("docs", {"README.md": "x"}),
                 core.commit("Tidy up", {CONFIG: FIELD.format("'selective'")})]
    bridge.commit("start", {PATH: PRELUDE + "\nLAYERS = 1\n" + RECIPES})
    (bridge.path / LINK).mkdir(parents=True)
    bridge.start = pin(bridge, core.shas[0])
    bridge.commit("a longer title " * 9, {PATH: PRELUDE + "\nLAYERS = 2\n" + RECIPES})
    pin(bridge, core.shas[2])
    return bridge, core


def document(repos, tmp_path, *options, **more):
    bridge = repos[0]
    done = call("diff", f"{bridge.start}..HEAD", "--json", *options, cwd=bridge.path, cache=tmp_path, **more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["commits"]


def test_a_bump_lists_the_commits_it_brings_and_what_they_change(repos, tmp_path):
    _, core = repos
    value, bump = document(repos, tmp_path, "--submodule-repo", core.path)
    assert (value["kinds"], value["submodules"], bump["kinds"]) == (["recipe-value"], [], ["submodule"])
    (moved,) = bump["submodules"]
    assert (moved["path"], moved["old"], moved["new"], moved["lost"], moved["problem"]) == (
        LINK, core.shas[0], core.shas[2], [], "")
    assert [(c["commit"], c["kinds"]) for c in moved["commits"]] == [(core.shas[1], ["none"]), (core.shas[2], ["default"])]
    (change,) = moved["commits"][1]["changes"]
    assert (change["field"], change["old"], change["new"], change["file"], change["line"]) == (
        "recompute_granularity", None, "selective", CONFIG, 2)


@pytest.mark.parametrize("place", [f".git/modules/{LINK}", LINK])
def test_the_submodules_own_clone_is_found(repos, tmp_path, place):
    bridge, core = repos
    copy = bridge.clone(tmp_path / "copy")
    assert document((copy_of(copy, bridge), core), tmp_path)[1]["submodules"] == []
    core.clone(copy.path / place, *(["--bare"] if ".git" in place else []))
    (moved,) = document((copy, core), tmp_path)[1]["submodules"]
    assert [c["commit"] for c in moved["commits"]] == core.shas[1:]


def copy_of(copy: GitRepo, original: GitRepo) -> GitRepo:
    copy.start = original.start
    return copy


def test_what_is_kept_is_the_same_and_what_a_partial_clone_lacks_is_not_kept(repos, tmp_path):
    bridge, core = repos
    more = ("--submodule-repo", core.path)
    fresh = document(repos, tmp_path / "other", *more, "--no-cache")
    assert not list((tmp_path / "other").rglob("*.sqlite"))
    poor = copy_of(bridge.clone(tmp_path / "poor", "--no-checkout", "--filter=blob:none"), bridge)
    assert document((poor, core), tmp_path, *more) != fresh
    assert document(repos, tmp_path, *more) == fresh
    assert document((poor, core), tmp_path, *more) == fresh
    for path in tmp_path.rglob("*.sqlite"):
        path.write_bytes(b"no table")
    assert document(repos, tmp_path, *more) == fresh


def test_commits_that_the_clone_lacks_are_told(repos, tmp_path):
    stranger = GitRepo(tmp_path / "stranger")
    stranger.commit("x", {"a": ""})
    (moved,) = document(repos, tmp_path, "--submodule-repo", stranger.path)[1]["submodules"]
    assert moved["commits"] == [] and moved["problem"] == f"stranger has no commit {repos[1].shas[0][:10]}: fetch it"


def test_a_submodule_repository_that_is_none_is_refused(repos, tmp_path):
    line = refused("diff", "HEAD~1..HEAD", "--submodule-repo", tmp_path / "no", cwd=repos[0].path, cache=tmp_path)
    assert line.startswith("not a repository")


def shown(repos, tmp_path, *options, **env):
    bridge, core = repos
    done = call("diff", f"{bridge.start}..HEAD", "--submodule-repo", core.path, *options, cwd=bridge.path, cache=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout).splitlines()


def test_recipes_with_the_same_change_are_one_line(repos, tmp_path):
    lines = shown(repos, tmp_path)
    line = PRELUDE.count("\n") + 2
    assert f"  5 recipes: recompute_num_layers 1 -> 2  {PATH}:{line}" in lines
    assert any(re.fullmatch(r"  5 recipes: full/\S*1\S* -> full/\S*2\S*", text) for text in lines), lines
    assert f"  {LINK}: brings 2 commits; 1 change recompute settings or source" in lines
    assert f"      recompute_granularity null -> \"selective\"  {CONFIG}:2" in lines
    assert max(map(len, lines)) > 100


def test_recipes_asked_for_are_named(repos, tmp_path):
    lines = shown(repos, tmp_path, "--recipe", "demo[12]_config")
    assert "      megatron.bridge.recipes.demo.demo:demo2_config" in lines and not any(LINK in line for line in lines)


def test_nothing_is_wider_than_the_terminal(repos, tmp_path):
    assert max(map(len, shown(repos, tmp_path, FORCE_COLOR="1", TERM="xterm", COLUMNS="60"))) <= 60


@pytest.mark.megatron_bridge
@pytest.mark.megatron_lm
@pytest.mark.skipif(not (CLONE and CORE), reason="BISECT_RECOMPUTE_MEGATRON_BRIDGE or _LM is not set")
def test_a_real_bump(tmp_path):
    """7e1ba2828 moves Megatron-LM; the same commits by git's own answer."""
    done = call("diff", "7e1ba2828~1..7e1ba2828", "--repo", CLONE, "--submodule-repo", CORE, "--json", cwd=tmp_path, cache=tmp_path)
    ((moved,),) = [c["submodules"] for c in json.loads(done.stdout)["commits"]]
    span = f"{moved['old']}..{moved['new']}"
    asked = subprocess.run(["git", "-C", CORE, "rev-list", "--first-parent", "--reverse", span], capture_output=True, text=True,
                           check=True).stdout.split()
    assert asked and [c["commit"] for c in moved["commits"]] == asked
    assert any(c["kinds"] != ["none"] for c in moved["commits"])
