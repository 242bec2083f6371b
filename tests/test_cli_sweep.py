"""Every recompute choice of a revision against the same training without recomputation."""

import json

import pytest
from command_line import RECIPE, call, megatron_history, refused

from bisect_recompute.probe.choices import CONTROL
from bisect_recompute.verdict.sweep import Row, cheapest


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder, cache = tmp_path_factory.mktemp("sweep"), tmp_path_factory.mktemp("sweep-cache")
    repo = megatron_history(tmp_path_factory.getbasetemp()).repo
    # With logits of [4096, 256] the loss would be the peak, whatever is recomputed in two layers.
    (folder / "small.yaml").write_text(RECIPE.replace("num_layers: 2", "num_layers: 6").replace("ffn_hidden_size: 256", "ffn_hidden_size: 1024"))

    def run(*options, recipe="small.yaml"):
        return call("sweep", "main", "--repo", repo.path, "--recipe", recipe, *options, cwd=folder, cache=cache)

    run.refused = lambda *options: refused(
        "sweep", "main", "--repo", repo.path, "--recipe", "small.yaml", *options, cwd=folder, cache=cache)
    run.probe = lambda recipe: call("probe", "main", "--repo", repo.path, "--recipe", recipe, "--json", cwd=folder, cache=cache)
    run.folder = folder
    return run


@pytest.fixture(scope="module")
def told(sweep):
    done = sweep("--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_each_choice_is_measured_against_the_control(told, sweep):
    rows = {row["choice"]: row for row in told["choices"]}
    control = rows["none"]
    assert (control["peak_change_pct"], control["step_change_pct"]) == (0, 0)
    assert {"selective: core_attn", "selective: layernorm", "selective: mlp", "full, uniform, 1 layer", "full, block, 3 layers"} <= rows.keys()
    assert "selective: moe_act" not in rows  # no experts
    # Of the six layers' gate, up and product [4096, 1, 1024] those of one live again at the peak.
    mlp, full = rows["selective: mlp"], rows["full, uniform, 1 layer"]
    assert mlp["saved_bytes"] >= 5 * 3 * 4096 * 1024 * 2
    assert full["peak_bytes"] < mlp["peak_bytes"] < rows["full, block, 3 layers"]["peak_bytes"] < control["peak_bytes"]
    assert full["step_change_pct"] > rows["full, block, 3 layers"]["step_change_pct"] > 0
    # The same settings in a recipe give the same number.
    text = (sweep.folder / "small.yaml").read_text().replace("training:", "  recompute_granularity: selective\n  recompute_modules: [mlp]\ntraining:")
    (sweep.folder / "mlp.yaml").write_text(text)
    assert json.loads(sweep.probe("mlp.yaml").stdout)["memory"]["peak_bytes"] == mlp["peak_bytes"]


def test_the_cheapest_choice_that_fits_is_spelled_out(told, sweep):
    assert told["cheapest"]["choice"] == "none"
    rows = {row["choice"]: row for row in told["choices"]}
    between = (rows["selective: mlp"]["peak_bytes"] + rows["full, block, 3 layers"]["peak_bytes"]) // 2
    done = sweep("--gpu-memory", str(between), "--quiet")
    assert 'cfg.model.recompute_modules = ["mlp"]' in done.stdout
    assert "--recompute-granularity selective --recompute-modules mlp" in done.stdout
    assert cheapest([Row(CONTROL, None)], between) is None  # out of memory everywhere


def test_bad_input_is_refused(sweep):
    assert "80GiB" in sweep.refused("--gpu-memory", "much")
    (sweep.folder / "launch.yaml").write_text("megatron_args: torchrun --nproc-per-node 1 pretrain_gpt.py --num-layers 2\n")
    done = sweep(recipe="launch.yaml")
    assert done.returncode == 2 and "give a YAML recipe" in done.stderr
