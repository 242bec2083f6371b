"""Recipes of a repository that pins Megatron-LM, by the name of their function."""

import json

import pytest
from bridge_history import COMMON, RECIPE, SUBMODULE, bridge_history
from command_line import KEPT_BYTES, MLP, call, refused


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cli-bridge-cache")


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    return bridge_history(tmp_path_factory.mktemp("cli-bridge"))


@pytest.fixture
def run(history, cache, tmp_path):
    def run(good, bad, *options):
        done = call("run", history.range(good, bad), "--repo", history.repo.path, "--submodule-repo", history.core.repo.path,
                    "--recipe", RECIPE, "--out", "out", "--json", *options, cwd=tmp_path, cache=cache)
        return done, json.loads(done.stdout or "null")

    return run


def test_a_helper_that_drops_a_module_is_named_with_its_line(run, history):
    done, verdict = run("base", "docs")
    assert done.returncode == 0, done.stderr
    assert (verdict["culprit"]["commit"], verdict["culprit"]["via"]) == (history.shas["dropped"], None)
    assert verdict["cause"]["kind"] == "setting"
    (change,) = verdict["cause"]["changes"]
    assert (change["field"], change["old"], change["new"]) == ("recompute_modules", ["core_attn", "mlp"], ["core_attn"])
    assert (change["file"], change["line"]) == (COMMON, 6)
    # Gate and up of both layers are kept now; before, the peak came with those of one layer, recomputed.
    assert ("decoder.layers.*.mlp.linear_fc1", [4096, 512], 1) in [
        (t["module"], t["shape"], t["count"]) for t in verdict["cause"]["tensors"]
    ]
    # Revisions with equal settings and an equal Megatron-LM are probed once.
    assert verdict["probes"]["run"] == 2


def test_a_commit_inside_a_bump_is_named_with_the_bump(run, history, tmp_path, cache):
    done, verdict = run("docs", "tip")
    assert done.returncode == 0, done.stderr
    culprit = verdict["culprit"]
    assert (culprit["commit"], culprit["repository"]) == (history.core.shas["kept"], "megatron")
    assert culprit["via"] == {"commit": history.shas["bump"], "submodule": SUBMODULE}
    assert verdict["range"]["bad"] == history.shas["tip"]
    memory = verdict["metrics"]["memory"]
    assert memory["bad"] - memory["good"] == KEPT_BYTES
    assert MLP in {t["file"] for t in verdict["cause"]["tensors"]}
    assert f"which moves `{SUBMODULE}`" in (tmp_path / "out" / "ticket.md").read_text()

    before = (tmp_path / "out" / "probes.jsonl").read_text()
    (tmp_path / "out" / "verdict.json").unlink()
    again = call("resume", "out", "--json", cwd=tmp_path, cache=cache)
    assert json.loads(again.stdout)["culprit"] == culprit
    assert (tmp_path / "out" / "probes.jsonl").read_text() == before


def test_settings_that_change_together_with_an_idle_bump_are_to_blame(run, history):
    done, verdict = run("base", "both")
    assert done.returncode == 0, done.stderr
    assert (verdict["culprit"]["commit"], verdict["culprit"]["via"]) == (history.shas["both"], None)
    assert verdict["cause"]["kind"] == "setting"
    assert any("the bump is not to blame" in e["text"] for e in verdict["evidence"])


def probe(history, recipe, *options):
    return ("probe", "main", "--repo", history.repo.path, "--recipe", recipe, *options)


def test_what_cannot_be_known_is_asked_for(history, cache, tmp_path):
    core = ("--submodule-repo", history.core.repo.path)
    line = refused(*probe(history, "toy_pretrain_config", *core), cwd=tmp_path, cache=cache)
    assert "--set parallel.data_parallel_size=N" in line
    done = call(*probe(history, "toy_pretrain_config", *core, "--set", "parallel.data_parallel_size=2", "--json"),
                cwd=tmp_path, cache=cache)
    two = call(*probe(history, RECIPE, *core, "--json"), cwd=tmp_path, cache=cache)
    assert json.loads(done.stdout)["memory"] == json.loads(two.stdout)["memory"]

    line = refused(*probe(history, "stranger_pretrain_2gpu_config", *core), cwd=tmp_path, cache=cache)
    assert "nobody/knows-this" in line and "--set model.num_layers=VALUE" in line
    line = refused(*probe(history, RECIPE, *core, "--set", "model.hidden_siz=64"), cwd=tmp_path, cache=cache)
    assert "hidden_siz" in line and "hidden_size" in line
    line = refused(*probe(history, RECIPE, *core, "--set", "hidden_size"), cwd=tmp_path, cache=cache)
    assert "GROUP.FIELD=VALUE" in line


def test_a_clone_of_the_submodule_is_needed(history, cache, tmp_path):
    assert "--submodule-repo PATH" in refused(*probe(history, RECIPE), cwd=tmp_path, cache=cache)
    other = history.repo.path
    line = refused(*probe(history, RECIPE, "--submodule-repo", other), cwd=tmp_path, cache=cache)
    assert history.core.shas["tip"][:10] in line and "fetch" in line
