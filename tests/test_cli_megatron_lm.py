"""The main job on real Megatron-LM history."""

import json
import os

import pytest
from command_line import ROOT, call

CLONE = os.environ.get("BISECT_RECOMPUTE_MEGATRON_LM", "")
pytestmark = [
    pytest.mark.megatron_lm,
    pytest.mark.skipif(not CLONE, reason="BISECT_RECOMPUTE_MEGATRON_LM names no Megatron-LM clone"),
]
SPAN = "66a1dfc86f..950aa43533"
CULPRIT = "2e29a5e1e302d55b9fc4cf14653b5aba231cf43c"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("megatron-lm-cache")


def recipe(tmp_path, fused: bool):
    path = tmp_path / "llama3-70b.yaml"
    text = (ROOT / "recipes" / "llama3-70b.yaml").read_text()
    path.write_text(text.replace("bias_activation_fusion: true", f"bias_activation_fusion: {str(fused).lower()}"))
    return path


def test_names_the_commit_that_keeps_one_more_tensor(tmp_path, cache):
    done = call(
        "run",
        SPAN,
        "--repo",
        CLONE,
        "--recipe",
        recipe(tmp_path, fused=False),
        "--out",
        "out",
        "--json",
        cwd=tmp_path,
        cache=cache,
    )
    assert done.returncode == 0
    verdict = json.loads(done.stdout)
    assert verdict["culprit"]["commit"] == CULPRIT and verdict["range"]["commits"] == 353
    memory = verdict["metrics"]["memory"]
    # [sequence 4096, ffn 28672] in bf16, over tensor parallel 8, in each of 80 layers.
    assert memory["bad"] - memory["good"] == 80 * 4096 * 28672 * 2 // 8
    (tensor,) = verdict["cause"]["tensors"]
    assert (tensor["count"], tensor["shape"], tensor["file"]) == (
        80,
        [4096, 1, 3584],
        "megatron/core/transformer/mlp.py",
    )
    assert "offset" in tensor["source"]
    assert verdict["probes"]["run"] <= 14


def test_with_the_fusion_on_nothing_shifts(tmp_path, cache):
    done = call(
        "run",
        SPAN,
        "--repo",
        CLONE,
        "--recipe",
        recipe(tmp_path, fused=True),
        "--out",
        "out",
        cwd=tmp_path,
        cache=cache,
    )
    assert done.returncode == 3


def test_first_parents_alone_name_the_merge(tmp_path, cache):
    done = call(
        "run",
        SPAN,
        "--repo",
        CLONE,
        "--recipe",
        recipe(tmp_path, fused=False),
        "--out",
        "out",
        "--json",
        "--first-parent",
        cwd=tmp_path,
        cache=cache,
    )
    verdict = json.loads(done.stdout)
    assert (verdict["culprit"]["commit"][:10], verdict["range"]["commits"]) == ("de48755da0", 272)
