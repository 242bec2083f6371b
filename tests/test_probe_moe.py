"""Mixtures of experts, multi-latent attention, multi-token prediction: what they keep, by arithmetic from the shapes.

Per layer, from models of 4 and of 6 layers: what only the peak's own layer holds cancels out.
"""

import pytest
from simulation import ROOT, recipe
from yaml import safe_dump

SEQUENCE, HIDDEN, EXPERTS, TOPK, EXPERT_FFN, SHARED_FFN, HEADS = 4096, 2048, 8, 2, 1024, 512, 16
Q_RANK, KV_RANK, NOPE, ROPE, VALUE = 512, 256, 128, 64, 128
BF16, FP32 = 2, 4
ROWS = SEQUENCE * TOPK  # tokens times experts that each goes to
RESIDUAL = SEQUENCE * HIDDEN * BF16
NORM = RESIDUAL + SEQUENCE * FP32  # normalised input and one 1/rms per row

MODEL = {
    "num_layers": 4, "hidden_size": HIDDEN, "ffn_hidden_size": 4096, "num_attention_heads": HEADS, "vocab_size": 1024,
    "position_embedding_type": "rope", "normalization": "RMSNorm", "gated_linear_unit": True, "activation_func": "silu",
    "add_bias_linear": False, "hidden_dropout": 0.0, "attention_dropout": 0.0, "bias_activation_fusion": True,
    "bias_dropout_fusion": True, "gradient_accumulation_fusion": True, "num_moe_experts": EXPERTS,
    "moe_router_topk": TOPK, "moe_ffn_hidden_size": EXPERT_FFN, "moe_grouped_gemm": True,
    "moe_token_dispatcher_type": "alltoall", "recompute_granularity": "selective", "recompute_modules": [],
}
MLA = {
    "multi_latent_attention": True, "q_lora_rank": Q_RANK, "kv_lora_rank": KV_RANK, "qk_head_dim": NOPE,
    "qk_pos_emb_head_dim": ROPE, "v_head_dim": VALUE, "qk_layernorm": True, "rope_type": "rope",
    "moe_shared_expert_intermediate_size": SHARED_FFN,
}
TRAINING = {
    "seq_length": SEQUENCE, "micro_batch_size": 1, "global_batch_size": 8, "create_attention_mask_in_dataloader": False,
}


@pytest.fixture(scope="module")
def memory(simulate, tmp_path_factory):
    path = tmp_path_factory.mktemp("recipes") / "moe.yaml"
    path.write_text(safe_dump({"model": MODEL, "training": TRAINING}))
    known = {}

    def run(parallel=None, expect="ok", **model):
        key = repr((parallel, expect, sorted(model.items())))
        if key not in known:
            result = simulate(recipe(str(path), model=model, parallel=parallel or {}), expect=expect)
            known[key] = result.memory if expect == "ok" else result
        return known[key]

    return run


def saved_per_layer(memory, *modules, **model):
    def peak(layers, chosen):
        return memory(num_layers=layers, recompute_modules=list(chosen), **model).peak_bytes

    return (peak(6, ()) - peak(6, modules) - peak(4, ()) + peak(4, modules)) / 2


def test_moe_act_saves_the_activation_between_the_two_grouped_products(memory):
    assert saved_per_layer(memory, "moe_act") == ROWS * EXPERT_FFN * BF16


def test_layernorm_saves_the_norm_before_the_experts(memory):
    """The one before attention is fused into linear_qkv, which recomputes it anyway."""
    assert saved_per_layer(memory, "layernorm") == NORM


def test_moe_saves_what_dispatch_and_experts_keep(memory):
    experts = ROWS * (HIDDEN + 3 * EXPERT_FFN) * BF16  # dispatched tokens, gate and up, activation
    # Logits and scores, routing map, probabilities and the order of the dispatched rows: under one percent of it.
    assert experts < saved_per_layer(memory, "moe") < 1.01 * experts


def test_moe_and_layernorm_add_up(memory):
    assert saved_per_layer(memory, "moe", "layernorm") == saved_per_layer(memory, "moe") + NORM


def test_mlp_saves_nothing_where_every_layer_has_experts(memory):
    assert saved_per_layer(memory, "mlp") == 0


def test_mlp_saves_in_the_dense_layers_of_a_mixed_model(memory):
    """[0, 1, 1, 1]: the first layer has a dense MLP, and only that one is recomputed."""
    mixed = {"moe_layer_freq": [0, 1, 1, 1]}
    saved = memory(**mixed).peak_bytes - memory(**mixed, recompute_modules=["mlp"]).peak_bytes
    assert saved == SEQUENCE * 3 * 4096 * BF16 + NORM


def test_mla_up_proj_saves_the_expanded_heads(memory):
    query_and_key = 2 * SEQUENCE * HEADS * (NOPE + ROPE) * BF16
    value = SEQUENCE * HEADS * VALUE * BF16
    latent_norms = SEQUENCE * (Q_RANK + KV_RANK) * BF16 + 2 * SEQUENCE * FP32
    saved = saved_per_layer(memory, "mla_up_proj", **MLA)
    assert saved == pytest.approx(query_and_key + value + latent_norms, rel=0.02)


def test_core_attn_saves_the_statistics_alone_with_multi_latent_attention(memory):
    statistics = HEADS * SEQUENCE * FP32 + 512  # of the softmax; one block for the generator's state
    assert saved_per_layer(memory, "core_attn", **MLA) == statistics


def test_shared_experts_saves_their_two_activations(memory):
    activations = SEQUENCE * 3 * SHARED_FFN * BF16
    assert saved_per_layer(memory, "shared_experts", **MLA) == pytest.approx(activations, rel=0.05)


def test_full_recompute_keeps_one_residual_a_layer(memory):
    full = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1,
            "recompute_modules": None}
    grown = memory(num_layers=6, **full).by_category["activations"] - memory(**full).by_category["activations"]
    kept_by_dispatcher = SEQUENCE * EXPERTS * (1 + FP32)  # routing map and probabilities of the last microbatch
    assert grown == 2 * (RESIDUAL + kept_by_dispatcher)


def test_expert_parallel_ranks_hold_a_share_of_the_experts_and_as_many_tokens(memory):
    """Balanced routing: each of 8 ranks sends away as many tokens as it receives."""
    one, eight = memory(), memory({"data_parallel_size": 8, "expert_model_parallel_size": 8})
    share = 4 * EXPERTS * 3 * HIDDEN * EXPERT_FFN * BF16 * 7 // 8
    assert one.by_category["parameters"] - eight.by_category["parameters"] == share
    assert eight.by_category["activations"] == pytest.approx(one.by_category["activations"], rel=0.001)


def test_expert_tensor_parallel_ranks_gather_the_tokens(memory):
    """Each of 2 ranks has half of every expert and, after the gather, the tokens of both."""
    one = {"tensor_model_parallel_size": 2, "data_parallel_size": 1, "sequence_parallel": True,
           "expert_tensor_parallel_size": 1, "expert_model_parallel_size": 2}
    two = one | {"expert_tensor_parallel_size": 2, "expert_model_parallel_size": 1}
    assert memory(two).by_category["parameters"] == memory(one).by_category["parameters"]
    assert memory(two).peak_bytes > memory(one).peak_bytes


@pytest.mark.parametrize("model", [
    {"moe_token_dispatcher_type": "allgather"}, {"moe_grouped_gemm": False}, {"moe_permute_fusion": True},
    {"moe_router_load_balancing_type": "sinkhorn"}, {"moe_router_fusion": True, "moe_aux_loss_coeff": 0.01},
    {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True},
    {"moe_expert_capacity_factor": 1.0},
    {"moe_router_load_balancing_type": "seq_aux_loss", "moe_aux_loss_coeff": 0.01},
])
def test_every_way_of_routing_gives_each_expert_its_share(memory, model):
    """FLOPs of the experts tell how many tokens came; none is lost or counted twice."""
    ways = {"data_parallel_size": 4, "expert_model_parallel_size": 4}
    assert memory(ways, **model).peak_bytes == pytest.approx(memory(ways).peak_bytes, rel=0.2)


def test_dropped_tokens_free_memory(memory):
    """A capacity of half the even share keeps half of the rows."""
    def grown(**model):
        return memory(num_layers=6, **model).by_category["activations"] - memory(**model).by_category["activations"]

    kept_per_row = (HIDDEN + 3 * EXPERT_FFN) * BF16
    assert grown() - grown(moe_expert_capacity_factor=0.5) == pytest.approx(2 * ROWS // 2 * kept_per_row, rel=0.02)


def test_multi_token_prediction_is_one_more_layer_and_one_more_loss(memory):
    ahead = memory(mtp_num_layers=1, mtp_loss_scaling_factor=0.1)
    layer = memory(num_layers=5).by_category["parameters"] - memory().by_category["parameters"]
    projection = 2 * HIDDEN * HIDDEN * BF16 + 3 * HIDDEN * BF16  # of two hidden states to one; three norms
    assert ahead.by_category["parameters"] - memory().by_category["parameters"] == layer + projection


def test_what_needs_a_missing_package_fails_with_its_name(memory):
    ways = {"data_parallel_size": 8, "expert_model_parallel_size": 8}
    assert "DeepEP" in memory(ways, expect="failed", moe_token_dispatcher_type="flex").reason


@pytest.mark.parametrize("name", ["mixtral-8x7b", "moonlight-16b", "deepseek-v3"])
def test_the_shipped_recipes_run(simulate, name):
    result = simulate(recipe(str(ROOT / "recipes" / f"{name}.yaml"), parallel={"ranks": [0]}))
    assert 20 * 2**30 < result.memory.peak_bytes < 80 * 2**30
    assert result.seconds < 60
