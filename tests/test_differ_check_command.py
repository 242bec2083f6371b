"""The command: on a probe recipe against a Megatron-LM revision, and on recipes of a repository."""

import json
import os
from pathlib import Path

import pytest
from command_line import call, refused
from gitrepo import GitRepo

CONFIG = """
class TransformerConfig:
    num_layers: int = 0
    recompute_granularity: str = None
    recompute_method: str = None
    recompute_num_layers: int = None
    recompute_modules: list = None
    cpu_offloading: bool = False
    sequence_parallel: bool = False
    pipeline_model_parallel_size: int = 1

    def __post_init__(self):
        if self.cpu_offloading and self.recompute_granularity is not None:
            raise ValueError("not together")
        if self.recompute_modules is None:
            self.recompute_modules = ["core_attn"]
        if self.recompute_granularity == "selective":
            allowed_modules = {"core_attn", "mlp"}
            invalid_modules = set(self.recompute_modules) - allowed_modules
            assert not invalid_modules, f"{invalid_modules}"
"""
RECIPE = """
model:
  num_layers: 4
  hidden_size: 64
  num_attention_heads: 4
  vocab_size: 100
  recompute_granularity: selective
  recompute_modules: [core_atn]
  cpu_offloading: true
training: {seq_length: 64, global_batch_size: 1}
"""
BRIDGE_RECIPE = """
class Model:
    pass


class ConfigContainer:
    def __init__(self, model):
        self.model = model


def llama_pretrain_config() -> ConfigContainer:
    cfg = ConfigContainer(model=Model())
    cfg.model.recompute_modules = ["mlp"]
    cfg.model.recompute_granularity = None
    return cfg
"""


@pytest.fixture
def run(tmp_path):
    return lambda *args, by=call: by(*args, cwd=tmp_path, cache=tmp_path / "cache")


@pytest.fixture
def core(tmp_path):
    repo = GitRepo(tmp_path / "core")
    repo.commit("config", {"megatron/core/transformer/transformer_config.py": CONFIG})
    return repo


def test_a_probe_recipe_against_a_revisions_own_validator(core, run, tmp_path):
    recipe = tmp_path / "bad.yaml"
    recipe.write_text(RECIPE)
    done = run("check", "HEAD", "--repo", str(core.path), "--recipe", str(recipe), "--json")
    document = json.loads(done.stdout)
    assert document["revision"] == core.head()
    found = {f["rule"]: f for f in document["recipes"][str(recipe)]}
    label = found["unknown-label"]
    assert label["kind"] == "fails" and label["fix"] == "did you mean 'core_attn'?"
    assert (label["file"], label["line"]) == (str(recipe), 8)
    assert label["source"].endswith("megatron/core/transformer/transformer_config.py:18")
    assert found["refused"]["message"] == "this revision refuses: cpu_offloading and recompute_granularity is not None"
    text = run("check", "HEAD", "--repo", str(core.path), "--recipe", str(recipe)).stdout
    assert "did you mean 'core_attn'?" in text and "1 recipes checked" in text


def test_recipes_of_a_repository_with_and_without_the_pinned_megatron(core, run, tmp_path):
    bridge = GitRepo(tmp_path / "bridge")
    path = "src/megatron/bridge/recipes/llama/llama3.py"
    bridge.commit("recipes", {path: BRIDGE_RECIPE})
    bridge.git("update-index", "--add", "--cacheinfo", f"160000,{core.head()},3rdparty/Megatron-LM")
    bridge.git("commit", "-q", "-m", "pin")
    done = run("check", "HEAD", "--repo", str(bridge.path), "--submodule-repo", str(core.path), "--json")
    document = json.loads(done.stdout)
    assert core.head()[:10] in document["validation"]
    ((key, (finding,)),) = document["recipes"].items()
    assert key == "megatron.bridge.recipes.llama.llama3:llama_pretrain_config"
    assert (finding["kind"], finding["rule"]) == ("inert", "modules-without-selective")
    assert (finding["file"], finding["line"]) == (path, 13)
    text = run("check", "HEAD", "--repo", str(bridge.path)).stdout
    assert "--submodule-repo" in text and "modules" in text


def test_nothing_to_check_is_said_in_one_line(core, run):
    assert "no recipe at" in run("check", "HEAD", "--repo", str(core.path), by=refused)
    assert "unknown revision" in run("check", "nope", "--repo", str(core.path), by=refused)


BRIDGE = os.environ.get("BISECT_RECOMPUTE_MEGATRON_BRIDGE", "")
CORE = os.environ.get("BISECT_RECOMPUTE_MEGATRON_LM", "")
# recipe (last part): rule, of Megatron-Bridge 067f987df; read in its source by hand.
KNOWN = {
    "qwen3_next_80b_a3b_pretrain_128gpu_h100_bf16_config": "modules-without-selective",
    "qwen3_next_80b_a3b_pretrain_64gpu_b200_fp8mx_config": "modules-without-selective",
    "gpt_oss_20b_pretrain_8gpu_gb300_nvfp4_config": "layer-count-without-cpu-offloading",
    "gpt_oss_20b_pretrain_72gpu_gb300_nvfp4_config": "layer-count-without-cpu-offloading",
    "gpt_oss_120b_pretrain_64gpu_gb200_fp8mx_config": "selective-of-nothing",
    "deepseek_v3_pretrain_256gpu_vr200_fp8mx_config": "selective-of-nothing",
    "deepseek_v3_pretrain_256gpu_gb300_fp8mx_large_scale_config": "selective-of-nothing",
    "nemotron_3_super_pretrain_64gpu_b200_bf16_config": "module-inside-module",
    "nemotron_3_ultra_peft_32gpu_h100_bf16_openmathinstruct2_packed_config": "module-inside-module",
    "exaone_moe_2_0_750b_a37_peft_128gpu_h100_bf16_config": "module-inside-module",
    "qwen3_next_80b_a3b_sft_16gpu_h100_bf16_config": "module-inside-module",
    "deepseek_v4_flash_pretrain_32gpu_h100_bf16_config": "unknown-label",
}


@pytest.mark.megatron_bridge
@pytest.mark.megatron_lm
@pytest.mark.skipif(not (BRIDGE and CORE), reason="BISECT_RECOMPUTE_MEGATRON_BRIDGE and _LM name no clones")
def test_settings_without_effect_in_megatron_bridge_are_found(run):
    done = run("check", "067f987df", "--repo", BRIDGE, "--submodule-repo", CORE, "--json")
    document = json.loads(done.stdout)
    found = {key.rpartition(":")[2]: {f["rule"] for f in findings} for key, findings in document["recipes"].items()}
    assert {recipe: rule for recipe, rule in KNOWN.items() if rule not in found[recipe]} == {}
    for findings in document["recipes"].values():
        assert all(f["fix"] and f["source"] and (not f["file"] or Path(f["file"]).suffix == ".py") for f in findings)
    assert sum(bool(f) for f in document["recipes"].values()) < 100
