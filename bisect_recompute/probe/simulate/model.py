"""Builds the recipe's model, data parallel wrapper and optimizer from the commit's own Megatron Core.

Interfaces of Megatron Core grew over the years: a keyword that a revision's constructor does not have is left out when
the recipe did not ask for it; a recipe field that the revision does not know fails the probe.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re

import torch
import torch.nn.functional as F

from bisect_recompute.probe.recipe import Recipe

# Recipe fields that are arguments of the model, of the vocabulary or of nothing at all in Megatron Core's config.
NOT_CONFIG = {
    "vocab_size", "make_vocab_size_divisible_by", "position_embedding_type", "rotary_base", "rotary_percent",
    "share_embeddings_and_output_weights", "transformer_impl",
}
ROTARY = {"rotary_base", "rotary_percent"}
"""With multi-latent attention these are the config's."""


class RecipeMismatch(Exception):
    """The revision has no such field, or not such a value."""


def accepted(function, **kwargs) -> dict:
    """The keywords that this revision's function has."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return kwargs
    return {name: value for name, value in kwargs.items() if name in parameters}


def initialize_parallel(recipe: Recipe):
    """The parallel groups of the recipe, on the process group that is there."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    p = recipe.parallel
    initialize = parallel_state.initialize_model_parallel
    initialize(**accepted(
        initialize,
        tensor_model_parallel_size=p.tensor_model_parallel_size,
        pipeline_model_parallel_size=p.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=virtual_stages(recipe),
        context_parallel_size=p.context_parallel_size,
        expert_model_parallel_size=p.expert_model_parallel_size,
        expert_tensor_parallel_size=p.expert_tensor_parallel_size,
        hierarchical_context_parallel_sizes=p.hierarchical_context_parallel_sizes,
        create_gloo_process_groups=False,
    ))
    model_parallel_cuda_manual_seed(1234)


def virtual_stages(recipe: Recipe) -> int | None:
    """Model chunks of each pipeline rank, None without an interleaved schedule; a layout tells it by its stages."""
    p = recipe.parallel
    layout = p.pipeline_model_parallel_layout
    if layout is None or p.virtual_pipeline_model_parallel_size:
        return p.virtual_pipeline_model_parallel_size
    if isinstance(layout, str):
        from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

        stages = PipelineParallelLayerLayout.get_num_stages_from_str(layout)
    else:
        stages = len(layout)
    chunks = stages // p.pipeline_model_parallel_size
    return chunks if chunks > 1 else None


def transformer_config(recipe: Recipe):
    """The commit's TransformerConfig with what the recipe states; the rest are the commit's defaults."""
    from megatron.core.transformer import transformer_config as configs

    mla = bool(recipe.model.multi_latent_attention)
    if mla and not hasattr(configs, "MLATransformerConfig"):
        raise RecipeMismatch("this revision has no MLATransformerConfig")
    kind = configs.MLATransformerConfig if mla else configs.TransformerConfig
    known = {field.name for field in dataclasses.fields(kind)}
    stated = _stated(recipe, NOT_CONFIG - (ROTARY & known if mla else set()))
    p = recipe.parallel
    stated.update(
        {name: value for name, value in p.stated().items() if name not in ("data_parallel_size", "ranks")},
        virtual_pipeline_model_parallel_size=virtual_stages(recipe),
        sequence_parallel=p.sequence_parallel,
        bf16=recipe.training.precision == "bf16",
        fp16=recipe.training.precision == "fp16",
        params_dtype=params_dtype(recipe),
        pipeline_dtype=params_dtype(recipe),
    )
    if "transformer_impl" in known:
        stated["transformer_impl"] = recipe.model.transformer_impl
    unknown = sorted(name for name, value in stated.items() if name not in known and value is not None)
    if unknown:
        raise RecipeMismatch(f"this revision's {kind.__name__} has no field {', '.join(unknown)}")
    return kind(**{name: value for name, value in stated.items() if name in known})


def _stated(recipe: Recipe, left_out: set[str]) -> dict:
    """The recipe's settings of the model as the config takes them."""
    stated = {name: value for name, value in recipe.model.stated().items() if name not in left_out}
    for name, convert in (
        ("activation_func", activation), ("attention_backend", _attention_backend), ("moe_layer_freq", layer_pattern),
        ("window_size", tuple),
    ):
        if stated.get(name) is not None:
            stated[name] = convert(stated[name])
    return stated


def plain_settings(config) -> dict[str, object]:
    """The fields of a config dataclass that JSON can hold; functions and dtypes are left out."""
    settings = {field.name: _plain(getattr(config, field.name, None)) for field in dataclasses.fields(config)}
    return {name: value for name, value in settings.items() if value is not _plain}


def _plain(value):
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (list, tuple, set)):
        items = [_plain(item) for item in value]
        return _plain if _plain in items else items
    return value if value is None or isinstance(value, (bool, int, float, str)) else _plain


DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8": torch.uint8}
PRECISION_AWARE = (
    "use_precision_aware_optimizer", "main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype",
)


def params_dtype(recipe: Recipe) -> torch.dtype:
    return DTYPES[recipe.training.precision]


def activation(name: str):
    if name in ("squared_relu", "quick_gelu"):
        from megatron.core import activations

        return getattr(activations, name)
    return getattr(F, name)


def layer_pattern(frequency: int | str | list[int]) -> int | list[int]:
    """``[0]*3+[1]*58`` as the list that it describes, like Megatron-LM's ``--moe-layer-freq``. Raises RecipeMismatch."""
    if not isinstance(frequency, str):
        return frequency
    pattern: list[int] = []
    for term in re.sub(r"[\s()]", "", frequency).split("+"):
        match = re.fullmatch(r"\[([01](?:,[01])*)\](?:\*(\d{1,4}))?", term)
        if match is None:
            raise RecipeMismatch(f"moe_layer_freq {frequency!r} is no pattern like [0]*3+[1]*58")
        pattern += [int(digit) for digit in match[1].split(",")] * int(match[2] or 1)
    return pattern


def _attention_backend(name: str):
    from megatron.core.transformer.enums import AttnBackend

    return AttnBackend[name]


def layer_spec(recipe: Recipe, config):
    """The spec of one layer, dense or with experts as the config says."""
    from megatron.core.models.gpt import gpt_layer_specs

    local = recipe.model.transformer_impl == "local"
    function = (
        gpt_layer_specs.get_gpt_layer_local_spec if local
        else gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec
    )
    submodules = getattr(
        gpt_layer_specs,
        "get_gpt_layer_local_submodules" if local else "get_gpt_layer_with_transformer_engine_submodules",
        function,
    )
    settings = {name: getattr(config, name) for name in SPEC_SETTINGS if getattr(config, name, None) is not None}
    return function(**accepted(submodules, num_experts=config.num_moe_experts, **settings))


SPEC_SETTINGS = (
    "moe_grouped_gemm", "qk_layernorm", "multi_latent_attention", "experimental_attention_variant", "qk_l2_norm",
    "moe_use_legacy_grouped_gemm", "normalization", "use_kitchen", "use_te_activation_func", "use_kitchen_attention",
    "kitchen_attention_backend", "mla_down_proj_fusion", "use_grouped_gemm_for_dense_mlp",
)
"""Fields of the config that the training script hands to the layer spec."""


def decoder_spec(recipe: Recipe, config, stage: int | None):
    """The spec that Megatron-LM's pretrain_gpt.py would choose: of a block where layers can differ, else of a layer."""
    from megatron.core.models.gpt import gpt_layer_specs

    if getattr(config, "experimental_attention_variant", None):
        from megatron.core.models.gpt import experimental_attention_variant_module_specs as variants

        return variants.get_transformer_block_with_experimental_attention_variant_spec(config=config, vp_stage=stage)
    # Until the end of 2024 all layers were alike.
    of_block = getattr(gpt_layer_specs, "get_gpt_decoder_block_spec", None)
    if config.num_moe_experts and of_block:
        return of_block(config, **accepted(of_block, **_block_arguments(recipe, config, stage)))
    return layer_spec(recipe, config)


def _block_arguments(recipe: Recipe, config, stage: int | None) -> dict:
    return {
        "use_transformer_engine": recipe.model.transformer_impl != "local", "normalization": config.normalization,
        "qk_l2_norm": getattr(config, "qk_l2_norm", False), "vp_stage": stage,
    }


def prediction_spec(recipe: Recipe, config, decoder, stage: int | None):
    """The block of multi-token prediction, like the decoder's last layer; None without."""
    if not getattr(config, "mtp_num_layers", None):
        return None
    from megatron.core.models.gpt import gpt_layer_specs

    arguments = _block_arguments(recipe, config, stage)
    of_layers = getattr(gpt_layer_specs, "get_gpt_decoder_layer_specs", None)
    if getattr(decoder, "layer_specs", None) == []:  # a stage without decoder layers
        decoder = layer_spec(recipe, config)
    elif of_layers:
        decoder = of_layers(config, **accepted(of_layers, **arguments))[-1]
    function = gpt_layer_specs.get_gpt_mtp_block_spec
    return function(config, decoder, **accepted(function, **arguments))


def build_chunks(recipe: Recipe, config) -> list:
    """The model chunks of this rank (one, or one per virtual pipeline stage), in their training precision."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.tensor_parallel import set_defaults_if_not_set_tensor_model_parallel_attributes
    from megatron.core.transformer.module import Float16Module

    stages = virtual_stages(recipe)
    chunks = []
    for stage in range(stages or 1):
        where = {}
        if stages:
            set_stage = getattr(parallel_state, "set_virtual_pipeline_model_parallel_rank", None)
            if set_stage:
                set_stage(stage)
            where = {"ignore_virtual": False, "vp_stage": stage}
        first, last = parallel_state.is_pipeline_first_stage, parallel_state.is_pipeline_last_stage
        virtual_stage = stage if stages else None
        decoder = decoder_spec(recipe, config, virtual_stage)
        model = GPTModel(**accepted(
            GPTModel.__init__,
            config=config,
            transformer_layer_spec=decoder,
            **_predicting(recipe, config, decoder, virtual_stage),
            vocab_size=padded_vocab_size(recipe),
            max_sequence_length=recipe.training.seq_length,
            pre_process=first(**accepted(first, **where)),
            post_process=last(**accepted(last, **where)),
            parallel_output=True,
            share_embeddings_and_output_weights=recipe.model.share_embeddings_and_output_weights,
            position_embedding_type=recipe.model.position_embedding_type,
            rotary_percent=recipe.model.rotary_percent,
            rotary_base=recipe.model.rotary_base,
            vp_stage=virtual_stage,
        ))
        if stages:
            model.vp_stage = stage
        for parameter in model.parameters():
            set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
        model.cuda(torch.cuda.current_device())
        chunks.append(model if recipe.training.precision == "fp32" else Float16Module(config, model))
    return chunks


def _predicting(recipe: Recipe, config, decoder, stage: int | None) -> dict:
    block = prediction_spec(recipe, config, decoder, stage)
    return {"mtp_block_spec": block} if block is not None else {}


def padded_vocab_size(recipe: Recipe) -> int:
    unit = recipe.model.make_vocab_size_divisible_by * recipe.parallel.tensor_model_parallel_size
    return -(-recipe.model.vocab_size // unit) * unit


def wrap_data_parallel(recipe: Recipe, config, chunks: list) -> list:
    """Bucket sizes as Megatron-LM's training loop chooses them: 40 M parameters, or 1 M per data parallel rank."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

    t = recipe.training
    overlap = bool(t.overlap_grad_reduce)
    ranks = recipe.parallel.data_parallel_size * recipe.parallel.context_parallel_size
    options = {
        "grad_reduce_in_fp32": t.grad_reduce_in_fp32,
        "overlap_grad_reduce": overlap,
        "overlap_param_gather": bool(t.overlap_param_gather),
        "use_distributed_optimizer": t.use_distributed_optimizer,
        "check_for_nan_in_grad": True,
        "bucket_size": max(40_000_000, 1_000_000 * ranks) if overlap else None,
    }
    ddp_config = DistributedDataParallelConfig(**accepted(DistributedDataParallelConfig, **options))
    return [
        DistributedDataParallel(config=config, ddp_config=ddp_config, module=chunk, disable_bucketing=index > 0)
        for index, chunk in enumerate(chunks)
    ]


def build_optimizer(recipe: Recipe, chunks: list):
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    t = recipe.training
    options = {
        "optimizer": t.optimizer, "lr": 1e-4, "min_lr": 0.0, "weight_decay": 0.1, "clip_grad": 1.0,
        "bf16": t.precision == "bf16", "fp16": t.precision == "fp16", "params_dtype": params_dtype(recipe),
        "use_distributed_optimizer": t.use_distributed_optimizer,
        "overlap_param_gather": bool(t.overlap_param_gather),
    }
    stated = {
        name: DTYPES.get(getattr(t, name), getattr(t, name)) for name in PRECISION_AWARE if getattr(t, name) is not None
    }
    missing = sorted(stated.keys() - accepted(OptimizerConfig, **stated).keys())
    if missing:
        raise RecipeMismatch(f"this revision's OptimizerConfig has no field {', '.join(missing)}")
    config = OptimizerConfig(**accepted(OptimizerConfig, **options), **stated)
    return get_megatron_optimizer(config, chunks, **accepted(get_megatron_optimizer, use_gloo_process_groups=False))
