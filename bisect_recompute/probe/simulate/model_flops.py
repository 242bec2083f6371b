"""FLOPs of the model itself as Megatron-LM counts them for its log: three times the products of one forward pass,
whatever runs again; attention under a causal mask is half of the whole."""

from __future__ import annotations

from bisect_recompute.probe.recipe import Recipe
from bisect_recompute.probe.simulate.model import layer_pattern, padded_vocab_size


def of(recipe: Recipe, config) -> float | None:
    """Of one step on all GPUs, from the commit's own config (which has filled in what the recipe leaves out); None for
    attention of another kind than softmax attention."""
    if getattr(config, "experimental_attention_variant", None) or getattr(config, "moe_latent_size", None):
        return None
    predictions = getattr(config, "mtp_num_layers", None) or 0
    mixture = _is_mixture(config)
    mixture += mixture[-1:] * predictions
    per_token = sum(_mixture(config) if sparse else _mlp(config, config.ffn_hidden_size) for sparse in mixture)
    per_token += len(mixture) * _attention(config, recipe.training.seq_length)
    per_token += predictions * 2 * config.hidden_size**2
    per_token += (1 + predictions) * config.hidden_size * padded_vocab_size(recipe)
    return 3 * 2.0 * per_token * recipe.training.global_batch_size * recipe.training.seq_length


def _is_mixture(config) -> list[bool]:
    """For each layer, whether it has experts."""
    if not config.num_moe_experts:
        return [False] * config.num_layers
    frequency = layer_pattern(getattr(config, "moe_layer_freq", 1))
    if isinstance(frequency, int):
        return [layer % frequency == 0 for layer in range(config.num_layers)]
    return [bool(each) for each in frequency]


def _mlp(config, width: int) -> float:
    """Multiplications a token: gate, up and down, or up and down."""
    return (3 if config.gated_linear_unit else 2) * config.hidden_size * width


def _mixture(config) -> float:
    width = getattr(config, "moe_ffn_hidden_size", None) or config.ffn_hidden_size
    shared = getattr(config, "moe_shared_expert_intermediate_size", None) or 0
    return _mlp(config, config.moe_router_topk * width + shared)


def _attention(config, sequence: int) -> float:
    """Multiplications a token: the projections, and scores and values over half the sequence."""
    heads, hidden = config.num_attention_heads, config.hidden_size
    if not getattr(config, "multi_latent_attention", False):
        size = config.kv_channels
        queries, keys = heads * size, (config.num_query_groups or heads) * size
        gate = queries if getattr(config, "attention_output_gate", False) else 0
        return hidden * (2 * queries + 2 * keys + gate) + sequence * queries
    q = config.qk_head_dim + config.qk_pos_emb_head_dim
    q_rank, kv_rank = config.q_lora_rank, config.kv_lora_rank
    projections = q_rank * (hidden + heads * q) if q_rank else hidden * heads * q
    projections += hidden * (kv_rank + config.qk_pos_emb_head_dim)
    projections += kv_rank * heads * (config.qk_head_dim + config.v_head_dim)
    return projections + heads * config.v_head_dim * hidden + sequence / 2 * heads * (q + config.v_head_dim)
