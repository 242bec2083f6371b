"""Public shapes of models (``recipes/models/*.yaml``), by their name on Hugging Face or that of Megatron Bridge's class."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import TypeAdapter

from bisect_recompute.probe.model_settings import Group, ModelSettings
from bisect_recompute.probe.recipe import shipped_folder

PROVIDER_DEFAULTS = {
    "use_transformer_engine_op_fuser": False, "moe_flex_dispatcher_backend": None, "moe_token_dispatcher_type": "allgather",
    "cuda_graph_impl": "none", "fp8": None, "fp4": None,
}
"""Fields that every provider has and recipes ask for before they set them; Megatron Core's defaults."""


class _Family(Group):
    description: str
    common: dict[str, Any]
    models: dict[str, dict[str, Any]]


@functools.cache
def published_models() -> Mapping[str, ModelSettings]:
    """Name -> shape, of all models that the tool knows; a model's provider class is a second name of it."""
    found = {}
    for path in sorted((shipped_folder() / "models").glob("*.yaml")):
        family = TypeAdapter(_Family).validate_python(yaml.safe_load(path.read_text(encoding="utf-8")))
        for name, own in family.models.items():
            stated = {**family.common, **own}
            provider = stated.pop("provider", None)
            found[name] = ModelSettings.model_validate(stated)
            if provider:
                found.setdefault(provider, found[name])
    return found


def published(name: str) -> Mapping[str, Any]:
    """Fields of a model as immutable values, with those that any provider has; {} for an unknown model."""
    shape = published_models().get(name)
    if shape is None:
        return {}
    stated = {field: tuple(value) if isinstance(value, list) else value for field, value in shape.stated().items()}
    return {**PROVIDER_DEFAULTS, **stated}
