"""Known commits of Megatron-LM: what they do was read from their diffs by hand."""

import os
import time
from pathlib import Path

import pytest

from bisect_recompute.differ.evidence import recompute_changes
from bisect_recompute.history.repository import Repository

CLONE = os.environ.get("BISECT_RECOMPUTE_MEGATRON_LM", "")
pytestmark = [
    pytest.mark.megatron_lm,
    pytest.mark.skipif(not CLONE, reason="BISECT_RECOMPUTE_MEGATRON_LM names no Megatron-LM clone"),
]

# commit: (kind, end of the file name, part of the sentence)
KNOWN = {
    # memory or step time moves while settings stay the same
    "08ef472e30": ("checkpoint-site", "model/transformer.py", "is_first_microbatch=is_first_microbatch"),
    "fd07469356": (
        "default",
        "transformer_config.py",
        "recompute_modules is now set to ['core_attn'] when recompute_modules is None",
    ),
    "4a91173d3e": ("checkpoint-site", "layers.py", "activation_offloading is now set to cpu_offloading_activations"),
    "650ab87d04": ("checkpoint-site", "multi_token_prediction.py", "new _checkpointed_forward"),
    "6850cc6a73": ("checkpoint-site", "attention.py", "new set_save_original_input(linear_proj) when HAVE_TE and fp8"),
    "25b8af16eb": ("default", "model_parallel_config.py", "cpu_offloading_weights now defaults to False (was True)"),
    "e8b9df156d": ("checkpoint-site", "moe_layer.py", "te_checkpoint(shared_experts): now when fp4 or fp8 (was: fp8)"),
    "04d202af31": (
        "checkpoint-site",
        "shared_experts.py",
        "set_save_original_input(linear_fc1): now only when (fp4 or fp8_recipe != 'delayed')",
    ),
    "b6b49e7e60": ("checkpoint-site", "megatron_fsdp.py", "during activation recompute"),
    "f54403492e": ("checkpoint-site", "random.py", "what it keeps alive changes"),
    "ada8dfe6f2": ("checkpoint-site", "random.py", "now only when not is_graph_capturing() and not is_graph_warmup()"),
    "118933a859": (
        "checkpoint-site",
        "hybrid_block.py",
        "new checkpointed_forward(self) when recompute_granularity == 'full' and training",
    ),
    "07a23196d4": ("checkpoint-site", "experimental/module.py", "is_recomputing is now set to"),
    "e22bcb09b9": (
        "checkpoint-site",
        "generalized_tensor_parallelism.py",
        "cache.reserve(p, dt, fwd=True, recompute=True)",
    ),
    "19deef67f9": ("checkpoint-site", "transformer_layer.py", "retain_input_tensors=_input_layernorm_returns_residual"),
    "9c1a535155": ("checkpoint-site", "multi_latent_attention.py", "now also recomputes kv_layernorm, q_layernorm"),
    "382eeea395": ("checkpoint-site", "multi_latent_attention.py", "no longer recomputes kv_layernorm, q_layernorm"),
    # starts or stops failing
    "cf8bac4cfd": (
        "validation",
        "transformer_config.py",
        "now fails when distribute_saved_activations and recompute_granularity is not None and sequence_parallel",
    ),
    "61e5ee5a1e": ("checkpoint-site", "transformer_block.py", "TransformerBlock._checkpointed_forward"),
    "97bf1e56d6": (
        "validation",
        "transformer_config.py",
        "now fails when recompute_granularity == 'selective' and recompute_num_layers is not None",
    ),
    "115b677681": ("default", "arguments.py", "--recompute-num-layers now defaults to None (was 1)"),
    "8fba594837": ("validation", "transformer_config.py", "now fails when enable_cuda_graph and recompute_granularity"),
    "0c6c1176fb": (
        "validation",
        "transformer_config.py",
        "now fails when overlap_moe_expert_parallel_comm and recompute_granularity == 'full'",
    ),
    "2caa681a1d": ("checkpoint-site", "experts.py", "GroupedMLP is removed with its"),
    "fde4059a9d": (
        "checkpoint-site",
        "extensions/transformer_engine.py",
        "retain_pinned_cpu_buffers=retain_pinned_cpu_buffers",
    ),
    "45b8eac955": (
        "validation",
        "transformer_config.py",
        "now fails when 'moe' in recompute_modules and overlap_moe_expert_parallel_comm",
    ),
    "9054192b9b": ("checkpoint-site", "transformer_block.py", "custom(layer_idx, chunk_end)"),
    "f007db77b9": ("validation", "transformer_config.py", "now fails when cpu_offloading and moe_paged_stash"),
    "acc7e64457": ("checkpoint-site", "core/recompute.py", "checkpointed_forward is recompute's own code"),
}

QUIET = {
    "5f03f6dc89": "formatting",
    "351107dffc": "quote style and imports",
    "3a70d146a3": "docstrings",
    "34e607ef41": "formatting",
    "044e2ad5aa": "type annotations",
    "15e07a2ddf": "a rename moves a block between files",
    "8de8238844": "the legacy transformer goes",
    "c4bffde9e5": "inference",
    "c304b38647": "an attribute is renamed",
    "4f49f2f363": "modules are called through a typed wrapper",
}


@pytest.fixture(scope="module")
def repository():
    return Repository(Path(CLONE))


@pytest.mark.parametrize("sha", KNOWN)
def test_a_known_change_is_found_with_its_kind_and_place(repository, sha):
    kind, file, part = KNOWN[sha]
    (found,) = recompute_changes(repository, [repository.commit(sha)])
    assert kind in found.kinds
    places = [c for c in found.source if c.kind == kind and c.file.endswith(file) and part in c.detail]
    assert places, [(c.kind, c.file, c.detail) for c in found.source]
    place = places[0]
    side = sha if "removed" not in place.detail else f"{sha}^"
    lines = repository.read_blob(repository.tree(repository.commit(side).sha)[place.file]).decode().split("\n")
    assert 1 <= place.line <= len(lines)


@pytest.mark.parametrize("sha", QUIET)
def test_a_commit_without_effect_yields_nothing(repository, sha):
    (found,) = recompute_changes(repository, [repository.commit(sha)])
    assert (found.kinds, found.source) == (("none",), ())


def test_the_labels_of_the_time_are_read_from_the_validator(repository):
    (found,) = recompute_changes(repository, [repository.commit("6850cc6a73")])
    assert "recompute_modules now accepts shared_experts" in [c.detail for c in found.source]


def test_a_range_of_272_commits_takes_well_under_two_seconds_of_processor_time(repository):
    commits = repository.range("66a1dfc86f..950aa43533").commits
    start = time.process_time()
    found = recompute_changes(repository, commits)
    assert time.process_time() - start < 3  # 1.7 s on an idle machine; others may run beside
    loud = {c.commit.sha[:10] for c in found if c.kinds != ("none",)}
    assert {"6850cc6a73", "25b8af16eb", "5769804591"} <= loud
    assert len(loud) < 20
    assert "2e29a5e1e3" not in loud, "this one moves memory outside recompute"
