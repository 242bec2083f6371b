"""Launch commands on real Megatron-LM history."""

import json
import os
import subprocess

import pytest
from command_line import call

CLONE = os.environ.get("BISECT_RECOMPUTE_MEGATRON_LM", "")
pytestmark = [
    pytest.mark.megatron_lm,
    pytest.mark.skipif(not CLONE, reason="BISECT_RECOMPUTE_MEGATRON_LM names no Megatron-LM clone"),
]
NEWEST = "d98e8a64ddf34856e74b24714e3bedb2f5a39553"
COMMAND = """\
megatron_args: |
  torchrun --nproc-per-node 8 pretrain_gpt.py --use-mcore-models --transformer-impl transformer_engine --num-layers 4 \\
    --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 \\
    --micro-batch-size 1 --global-batch-size 16 --bf16 --swiglu --no-bias-swiglu-fusion --disable-bias-linear \\
    --normalization RMSNorm --position-embedding-type rope --untie-embeddings-and-output-weights \\
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --use-distributed-optimizer \\
    --tokenizer-type Llama2Tokenizer --tokenizer-model ${TOKENIZER} --save /checkpoints
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "launch.yaml"
    path.write_text(COMMAND)
    return path


@pytest.mark.parametrize(
    "date", ["2024-08-01", "2024-12-10", "2025-03-15", "2025-05-20", "2025-08-20", "2025-12-10", "2026-05-10", "2026-08-20"]
)
def test_runs_on_revisions_of_two_years(date, recipe, tmp_path, cache):
    found = ["git", "-C", CLONE, "rev-list", "-1", "--first-parent", f"--before={date}", NEWEST]
    revision = subprocess.run(found, check=True, capture_output=True, text=True).stdout.strip()
    done = call("probe", revision, "--repo", CLONE, "--recipe", recipe, "--json", "--quiet", cwd=tmp_path, cache=cache)
    result = json.loads(done.stdout)
    assert result["status"] == "ok", result["reason"]
    # Of each of the two layers of the first stage: fc1 and fc2 of the SwiGLU, q, k, v and projection, over tensor parallel 2.
    layer = (3 * 14336 + 4 * 4096) * 4096 // 2 + 2 * 4096
    embedding = 32000 * 4096 // 2
    # One bf16 buffer, of which the allocator gives up to 1 MiB more than it needs.
    assert 0 <= result["memory"]["by_category"]["parameters"] - 2 * (2 * layer + embedding) <= 2**20


def test_run_names_the_commit_with_a_launch_command(recipe, tmp_path, cache):
    done = call("run", "66a1dfc86f..950aa43533", "--repo", CLONE, "--recipe", recipe, "--out", "out", "--json", "--quiet",
                cwd=tmp_path, cache=cache)
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["culprit"]["commit"] == "2e29a5e1e302d55b9fc4cf14653b5aba231cf43c"
    (tensor,) = verdict["cause"]["tensors"]
    assert (tensor["shape"], tensor["file"]) == ([4096, 1, 7168], "megatron/core/transformer/mlp.py")


def test_a_misspelt_option_is_named(tmp_path, cache):
    path = tmp_path / "slip.yaml"
    path.write_text(COMMAND.replace("--num-layers", "--num-layrs"))
    done = call("probe", NEWEST, "--repo", CLONE, "--recipe", path, "--json", "--quiet", cwd=tmp_path, cache=cache)
    assert done.returncode == 5
    assert "unrecognized arguments: --num-layrs 4" in json.loads(done.stdout)["reason"]
