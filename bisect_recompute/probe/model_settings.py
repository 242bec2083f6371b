"""Settings of the model in a probe recipe: fields that Megatron Core's TransformerConfig has, or has had since 2024."""

from __future__ import annotations

from typing import Literal, Optional, Union

from pydantic import BaseModel, ConfigDict, Field


class Group(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)

    def stated(self) -> dict:
        """The fields that the recipe states; the commit's own defaults stand for the others."""
        return self.model_dump(exclude_unset=True)


class ModelSettings(Group):
    """Shape, fusions and recompute settings; what is left out comes from the commit's own defaults."""

    num_layers: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    vocab_size: int = Field(gt=0, description="Vocabulary size before padding")
    make_vocab_size_divisible_by: int = Field(128, gt=0)
    num_query_groups: Optional[int] = Field(None, gt=0)
    ffn_hidden_size: Optional[int] = Field(None, gt=0)
    kv_channels: Optional[int] = Field(None, gt=0)
    position_embedding_type: Literal["learned_absolute", "rope", "none"] = "learned_absolute"
    rotary_base: int = 10000
    rotary_percent: float = 1.0
    share_embeddings_and_output_weights: bool = False
    transformer_impl: Literal["transformer_engine", "local"] = "transformer_engine"
    attention_backend: Optional[Literal["auto", "flash", "fused", "unfused", "local"]] = None
    normalization: Optional[Literal["LayerNorm", "RMSNorm"]] = None
    layernorm_epsilon: Optional[float] = None
    layernorm_zero_centered_gamma: Optional[bool] = None
    qk_layernorm: Optional[bool] = None
    gated_linear_unit: Optional[bool] = None
    activation_func: Optional[Literal["gelu", "silu", "relu", "squared_relu", "quick_gelu"]] = None
    add_bias_linear: Optional[bool] = None
    add_qkv_bias: Optional[bool] = None
    hidden_dropout: Optional[float] = None
    attention_dropout: Optional[float] = None
    fp32_residual_connection: Optional[bool] = None
    attention_softmax_in_fp32: Optional[bool] = None
    apply_query_key_layer_scaling: Optional[bool] = None
    bias_activation_fusion: Optional[bool] = None
    bias_dropout_fusion: Optional[bool] = None
    masked_softmax_fusion: Optional[bool] = None
    apply_rope_fusion: Optional[bool] = None
    persist_layer_norm: Optional[bool] = None
    memory_efficient_layer_norm: Optional[bool] = None
    gradient_accumulation_fusion: Optional[bool] = None
    cross_entropy_loss_fusion: Optional[bool] = None
    cross_entropy_fusion_impl: Optional[Literal["native", "te"]] = None
    deterministic_mode: Optional[bool] = None
    calculate_per_token_loss: Optional[bool] = None

    recompute_granularity: Optional[Literal["selective", "full"]] = None
    recompute_method: Optional[Literal["uniform", "block"]] = None
    recompute_num_layers: Optional[int] = None
    recompute_modules: Optional[list[str]] = None
    distribute_saved_activations: Optional[bool] = None
    cpu_offloading: Optional[bool] = None
    cpu_offloading_num_layers: Optional[int] = None
    cpu_offloading_activations: Optional[bool] = None
    cpu_offloading_weights: Optional[bool] = None
    cpu_offloading_double_buffering: Optional[bool] = None
    fine_grained_activation_offloading: Optional[bool] = None
    offload_modules: Optional[list[str]] = None

    # Others
    flash_attention_version: Optional[str] = None
    softmax_scale: Optional[float] = None
    softmax_type: Optional[str] = None
    apply_residual_connection_post_layernorm: Optional[bool] = None
    activation_func_fp8_input_store: Optional[bool] = None
    glu_linear_offset: Optional[float] = None
    activation_func_clamp_value: Optional[float] = None
    rotary_interleaved: Optional[bool] = None
    window_size: Optional[list[int]] = None
    window_attn_skip_freq: Optional[Union[int, list[int]]] = None
    qk_l2_norm: Optional[bool] = None
    qk_clip: Optional[bool] = None
    qk_clip_alpha: Optional[float] = None
    qk_clip_threshold: Optional[float] = None
    log_max_attention_logit: Optional[bool] = None
    attention_output_gate: Optional[bool] = None
    no_rope_freq: Optional[Union[int, list[int]]] = None
    init_method_std: Optional[float] = None
    embedding_init_method_std: Optional[float] = None
    use_mup: Optional[bool] = None
    mup_width_mult: Optional[float] = None
    mup_base_hidden_size: Optional[int] = None
    mup_embedding_mult: Optional[float] = None
    mup_output_mult: Optional[float] = None
    mup_base_head_dim: Optional[float] = None
    mup_attn_scale_power: Optional[float] = None
    disable_bf16_reduced_precision_matmul: Optional[bool] = None
    use_fused_weighted_squared_relu: Optional[bool] = None
    fused_single_qkv_rope: Optional[bool] = None
    fused_residual_rmsnorm: Optional[bool] = None
    use_transformer_engine_op_fuser: Optional[bool] = None
    high_priority_a2a_comm_stream: Optional[bool] = None
    clone_scatter_output_in_embedding: Optional[bool] = None
    batch_invariant_mode: Optional[bool] = None
    batch_invariant_backend: Optional[str] = None
    use_te_activation_func: Optional[bool] = None
    use_te_rng_tracker: Optional[bool] = None
    mrope_section: Optional[list[int]] = None
    mlp_chunks_for_training: Optional[int] = None
    min_offloaded_tensor_size: Optional[int] = None
    delay_offload_until_cuda_graph: Optional[bool] = None
    delta_offload_bytes_across_pp_ranks: Optional[int] = None
    activation_offload_fraction: Optional[float] = None
    fine_grained_offloading_max_inflight_offloads: Optional[int] = None

    # Mixture of experts
    num_moe_experts: Optional[int] = None
    moe_shared_expert_intermediate_size: Optional[int] = None
    moe_shared_expert_gate: Optional[bool] = None
    moe_shared_expert_overlap: Optional[bool] = None
    use_grouped_gemm_for_shared_expert: Optional[bool] = None
    moe_shared_expert_glu_interleave_size: Optional[int] = None
    moe_layer_freq: Optional[Union[int, str, list[int]]] = Field(
        None, description="Every n-th layer, one 0 or 1 a layer, or a pattern like [0]*3+[1]*58"
    )
    moe_ffn_hidden_size: Optional[int] = None
    moe_router_load_balancing_type: Optional[Union[str, list[str]]] = None
    moe_router_topk: Optional[int] = None
    moe_enable_routing_replay: Optional[bool] = None
    moe_router_topk_limited_devices: Optional[int] = None
    moe_router_padding_for_quantization: Optional[bool] = None
    moe_router_padding_for_fp8: Optional[bool] = None
    moe_router_num_groups: Optional[int] = None
    moe_router_group_topk: Optional[int] = None
    moe_router_pre_softmax: Optional[bool] = None
    moe_router_topk_scaling_factor: Optional[float] = None
    moe_router_score_function: Optional[str] = None
    moe_router_dtype: Optional[str] = None
    moe_router_enable_expert_bias: Optional[bool] = None
    moe_router_bias_update_rate: Optional[float] = None
    moe_router_quantile_balancing_ema: Optional[float] = None
    moe_router_force_load_balancing: Optional[bool] = None
    moe_router_force_biased: Optional[float] = None
    use_grouped_gemm_for_dense_mlp: Optional[bool] = None
    moe_grouped_gemm: Optional[bool] = None
    moe_use_grouped_tensor: Optional[bool] = None
    moe_single_grouped_weight: Optional[bool] = None
    moe_single_grouped_bias: Optional[bool] = None
    moe_aux_loss_coeff: Optional[Union[float, list[float]]] = None
    moe_z_loss_coeff: Optional[float] = None
    moe_input_jitter_eps: Optional[float] = None
    moe_token_dropping: Optional[bool] = None
    moe_token_dispatcher_type: Optional[str] = None
    moe_enable_deepep: Optional[bool] = None
    moe_flex_dispatcher_backend: Optional[str] = None
    moe_permute_fusion_into_hybridep: Optional[bool] = None
    moe_hybridep_pad_uneven_dispatch_inputs: Optional[bool] = None
    moe_per_layer_logging: Optional[bool] = None
    moe_expert_capacity_factor: Optional[float] = None
    moe_pad_expert_input_to_capacity: Optional[bool] = None
    moe_token_drop_policy: Optional[str] = None
    moe_layer_recompute: Optional[bool] = None
    moe_permute_fusion: Optional[bool] = None
    moe_router_fusion: Optional[bool] = None
    moe_apply_probs_on_input: Optional[bool] = None
    moe_latent_size: Optional[int] = None
    moe_flex_dispatcher_num_sms: Optional[int] = None
    moe_deepep_num_sms: Optional[int] = None
    moe_hybridep_num_sms: Optional[int] = None
    moe_hybridep_num_blocks_permute: Optional[int] = None
    moe_hybridep_num_blocks_unpermute: Optional[int] = None
    moe_hybridep_num_sms_preprocessing: Optional[int] = None
    moe_ncclep_zero_copy: Optional[bool] = None
    moe_dispatch_fwd_dtype: Optional[str] = None
    moe_combine_bwd_dtype: Optional[str] = None
    moe_mlp_glu_interleave_size: Optional[int] = None
    moe_expert_rank_capacity_factor: Optional[float] = None
    moe_paged_stash: Optional[bool] = None
    moe_paged_stash_page_size: Optional[int] = None
    moe_paged_stash_buffer_size_factor_cuda: Optional[float] = None
    moe_paged_stash_buffer_size_factor_cpu: Optional[float] = None
    moe_use_legacy_grouped_gemm: Optional[bool] = None

    # Multi-latent attention (MLATransformerConfig)
    multi_latent_attention: Optional[bool] = None
    q_lora_rank: Optional[int] = None
    kv_lora_rank: Optional[int] = None
    qk_head_dim: Optional[int] = None
    qk_pos_emb_head_dim: Optional[int] = None
    v_head_dim: Optional[int] = None
    rope_type: Optional[str] = None
    rotary_scaling_factor: Optional[float] = None
    original_max_position_embeddings: Optional[int] = None
    beta_fast: Optional[float] = None
    beta_slow: Optional[float] = None
    mscale: Optional[float] = None
    mscale_all_dim: Optional[float] = None
    cache_mla_latents: Optional[bool] = None
    mla_down_proj_fusion: Optional[bool] = None
    max_position_embeddings: Optional[int] = None

    # Multi-token prediction
    mtp_num_layers: Optional[int] = None
    mtp_loss_scaling_factor: Optional[float] = None
    mtp_use_repeated_layer: Optional[bool] = None
    mtp_detach_heads: Optional[bool] = None
    mtp_hsm: Optional[bool] = None
    mtp_hybrid_override_pattern: Optional[str] = None

    # Attention variants and hyper-connections
    experimental_attention_variant: Optional[str] = None
    dsa_indexer_n_heads: Optional[int] = None
    dsa_indexer_head_dim: Optional[int] = None
    dsa_indexer_topk: Optional[int] = None
    dsa_indexer_topk_freq: Optional[int] = None
    dsa_indexer_skip_topk_offset: Optional[int] = None
    dsa_indexer_loss_coeff: Optional[float] = None
    dsa_indexer_use_sparse_loss: Optional[bool] = None
    dsa_kernel_backend: Optional[str] = None
    dsa_indexer_rope_interleaved: Optional[bool] = None
    dsa_indexer_rotate_activation: Optional[bool] = None
    dsa_indexer_scoring_relu: Optional[bool] = None
    dsa_indexer_k_norm_epsilon: Optional[float] = None
    dsa_indexer_k_norm_fp32: Optional[bool] = None
    linear_attention_freq: Optional[Union[int, list[int]]] = None
    linear_conv_kernel_dim: Optional[int] = None
    linear_key_head_dim: Optional[int] = None
    linear_value_head_dim: Optional[int] = None
    linear_num_key_heads: Optional[int] = None
    linear_num_value_heads: Optional[int] = None
    enable_mhc_connections: Optional[bool] = None
    mhc_num_residual_streams: Optional[int] = None
    mhc_sinkhorn_iterations: Optional[int] = None
    mhc_init_gating_factor: Optional[float] = None
    mhc_recompute_layer_num: Optional[int] = None

    # Low precision
    fp8: Optional[str] = None
    fp8_recipe: Optional[str] = None
    fp8_param: Optional[bool] = None
    fp8_quantizer_factory: Optional[str] = None
    fp8_margin: Optional[int] = None
    fp8_interval: Optional[int] = None
    fp8_amax_history_len: Optional[int] = None
    fp8_amax_compute_algo: Optional[str] = None
    fp8_wgrad: Optional[bool] = None
    fp8_output_proj: Optional[bool] = None
    fp8_dot_product_attention: Optional[bool] = None
    fp8_multi_head_attention: Optional[bool] = None
    tp_only_amax_red: Optional[bool] = None
    first_last_layers_bf16: Optional[bool] = None
    num_layers_at_start_in_bf16: Optional[int] = None
    num_layers_at_end_in_bf16: Optional[int] = None
    use_kitchen: Optional[bool] = None
    use_kitchen_attention: Optional[bool] = None
    kitchen_attention_backend: Optional[str] = None
    fp4: Optional[str] = None
    fp4_recipe: Optional[str] = None
    fp4_param: Optional[bool] = None
    fp4_quantizer_factory: Optional[str] = None
    disable_parameter_transpose_cache: Optional[bool] = None
