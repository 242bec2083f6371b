"""Reads a recipe function of the probed repository: calls it and takes over what it leaves on the config."""

from __future__ import annotations

import importlib
import math

from bisect_recompute.probe.recipe import ModelSettings, ParallelSettings, Recipe, RecipeFunction, TrainingSettings


def read_recipe_function(spec: RecipeFunction) -> Recipe:
    """Maps a config in Megatron Bridge's style (``cfg.model``, ``cfg.train``, ``cfg.ddp``, ``cfg.dataset``) to a recipe.

    Only called in a probe's own process. Raises what the function raises, AttributeError for a config without a model.
    """
    config = getattr(importlib.import_module(spec.module), spec.function)()
    model = config.model
    settings = {
        name: _plain(getattr(model, name)) for name in ModelSettings.model_fields if hasattr(model, name)
    }
    parallel = {
        name: _plain(getattr(model, name))
        for name in ParallelSettings.model_fields if getattr(model, name, None) is not None
    }
    training = {}
    for source in (getattr(config, part, None) for part in ("model", "dataset", "train", "ddp", "optimizer")):
        for name in TrainingSettings.model_fields:
            value = getattr(source, name, None)
            if value is not None:
                training[name] = _plain(value)
    training.setdefault("seq_length", getattr(getattr(config, "dataset", None), "sequence_length", None))
    precision = str(getattr(config, "mixed_precision", None) or "bf16")
    training["precision"] = next((p for p in ("bf16", "fp16") if p in precision), "fp32")
    parallel.setdefault("data_parallel_size", _fewest_replicas(parallel))
    return Recipe(name=spec.name, model=settings, parallel=parallel, training=training, thresholds=spec.thresholds)


def _fewest_replicas(parallel: dict) -> int:
    """The config does not say how many GPUs it runs on: as few as expert parallelism needs."""
    tensor, context = parallel.get("tensor_model_parallel_size", 1), parallel.get("context_parallel_size", 1)
    expert = parallel.get("expert_model_parallel_size", 1) * parallel.get("expert_tensor_parallel_size", tensor)
    return math.lcm(tensor * context, expert) // (tensor * context)


def _plain(value):
    """Functions and enum members by their name, as a recipe file would write them."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    return getattr(value, "name", value)
