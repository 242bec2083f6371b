"""Builds the recipe's model, data parallel wrapper and optimizer from the commit's own Megatron Core.

Interfaces of Megatron Core grew over the years: a keyword that a revision's constructor does not have is left out when
the recipe did not ask for it; a recipe field that the revision does not know fails the probe.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect

import torch
import torch.nn.functional as F

from bisect_recompute.probe.recipe import Recipe
from bisect_recompute.probe.simulate import distributed

# Recipe fields that are arguments of the model, of the vocabulary or of nothing at all in Megatron Core's config.
NOT_CONFIG = {
    "vocab_size", "make_vocab_size_divisible_by", "position_embedding_type", "rotary_base", "rotary_percent",
    "share_embeddings_and_output_weights", "transformer_impl",
}


class RecipeMismatch(Exception):
    """The revision has no such field, or not such a value."""


def accepted(function, **kwargs) -> dict:
    """The keywords that this revision's function has."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return kwargs
    return {name: value for name, value in kwargs.items() if name in parameters}


def initialize_parallel(recipe: Recipe, rank: int):
    """One process stands for ``rank`` of the whole world through torch's fake process group."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    p = recipe.parallel
    distributed.connect(rank, p.world_size)
    initialize = parallel_state.initialize_model_parallel
    initialize(**accepted(
        initialize,
        tensor_model_parallel_size=p.tensor_model_parallel_size,
        pipeline_model_parallel_size=p.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=p.virtual_pipeline_model_parallel_size,
        context_parallel_size=p.context_parallel_size,
        create_gloo_process_groups=False,
    ))
    model_parallel_cuda_manual_seed(1234)


def transformer_config(recipe: Recipe):
    """The commit's TransformerConfig with what the recipe states; the rest are the commit's defaults."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    stated = {k: v for k, v in recipe.model.stated().items() if k not in NOT_CONFIG}
    if "activation_func" in stated:
        stated["activation_func"] = activation(stated["activation_func"])
    if "attention_backend" in stated:
        stated["attention_backend"] = _attention_backend(stated["attention_backend"])
    p = recipe.parallel
    stated.update(
        tensor_model_parallel_size=p.tensor_model_parallel_size,
        pipeline_model_parallel_size=p.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=p.virtual_pipeline_model_parallel_size,
        context_parallel_size=p.context_parallel_size,
        sequence_parallel=p.sequence_parallel,
        bf16=recipe.training.precision == "bf16",
        fp16=recipe.training.precision == "fp16",
        params_dtype=params_dtype(recipe),
        pipeline_dtype=params_dtype(recipe),
    )
    known = {field.name for field in dataclasses.fields(TransformerConfig)}
    if "transformer_impl" in known:
        stated["transformer_impl"] = recipe.model.transformer_impl
    unknown = sorted(name for name, value in stated.items() if name not in known and value is not None)
    if unknown:
        raise RecipeMismatch(f"this revision's TransformerConfig has no field {', '.join(unknown)}")
    return TransformerConfig(**{name: value for name, value in stated.items() if name in known})


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


def params_dtype(recipe: Recipe) -> torch.dtype:
    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[recipe.training.precision]


def activation(name: str):
    if name in ("squared_relu", "quick_gelu"):
        from megatron.core import activations

        return getattr(activations, name)
    return getattr(F, name)


def _attention_backend(name: str):
    from megatron.core.transformer.enums import AttnBackend

    return AttnBackend[name]


def layer_spec(recipe: Recipe, config):
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
    return function(**accepted(submodules, qk_layernorm=bool(recipe.model.qk_layernorm), normalization=config.normalization))


def build_chunks(recipe: Recipe, config) -> list:
    """The model chunks of this rank (one, or one per virtual pipeline stage), in their training precision."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.tensor_parallel import set_defaults_if_not_set_tensor_model_parallel_attributes
    from megatron.core.transformer.module import Float16Module

    stages = recipe.parallel.virtual_pipeline_model_parallel_size
    chunks = []
    for stage in range(stages or 1):
        where = {}
        if stages:
            set_stage = getattr(parallel_state, "set_virtual_pipeline_model_parallel_rank", None)
            if set_stage:
                set_stage(stage)
            where = {"ignore_virtual": False, "vp_stage": stage}
        first, last = parallel_state.is_pipeline_first_stage, parallel_state.is_pipeline_last_stage
        model = GPTModel(**accepted(
            GPTModel.__init__,
            config=config,
            transformer_layer_spec=layer_spec(recipe, config),
            vocab_size=padded_vocab_size(recipe),
            max_sequence_length=recipe.training.seq_length,
            pre_process=first(**accepted(first, **where)),
            post_process=last(**accepted(last, **where)),
            parallel_output=True,
            share_embeddings_and_output_weights=recipe.model.share_embeddings_and_output_weights,
            position_embedding_type=recipe.model.position_embedding_type,
            rotary_percent=recipe.model.rotary_percent,
            rotary_base=recipe.model.rotary_base,
            vp_stage=stage if stages else None,
        ))
        if stages:
            model.vp_stage = stage
        for parameter in model.parameters():
            set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
        model.cuda(torch.cuda.current_device())
        chunks.append(model if recipe.training.precision == "fp32" else Float16Module(config, model))
    return chunks


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
    config = OptimizerConfig(**accepted(OptimizerConfig, **options))
    return get_megatron_optimizer(config, chunks, **accepted(get_megatron_optimizer, use_gloo_process_groups=False))
