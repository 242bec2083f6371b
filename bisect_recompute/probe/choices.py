"""Which recompute settings are worth a measurement for a recipe."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from bisect_recompute.probe.recipe import Recipe

FIELDS = ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules", "distribute_saved_activations")
_NEEDS = {
    "mla_up_proj": lambda m: bool(m.multi_latent_attention),
    "mlp": lambda m: not m.num_moe_experts or m.moe_layer_freq not in (None, 1),
    "moe": lambda m: bool(m.num_moe_experts),
    "moe_act": lambda m: bool(m.num_moe_experts),
    "shared_experts": lambda m: bool(m.num_moe_experts and m.moe_shared_expert_intermediate_size),
    "mhc": lambda m: bool(m.enable_mhc_connections),
    **{name: lambda m: bool(m.experimental_attention_variant) for name in ("gdn_norm_out", "gdp_in_proj", "gdp_qkv")},
}
"""Label -> whether the architecture has what it recomputes; of a label that is not here every model does."""
_WITHIN = {"moe": ("moe_act", "shared_experts")}
"""A label and those that it includes."""


@dataclass(frozen=True)
class Choice:
    """One recompute setting; what is left out is off."""

    granularity: str | None = None
    method: str | None = None
    num_layers: int | None = None
    modules: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.granularity == "full":
            return f"full, {self.method}, {self.num_layers} layer{'s' * (self.num_layers != 1)}"
        return f"selective: {', '.join(self.modules)}" if self.modules else "none"

    def settings(self) -> dict[str, object]:
        """Fields of the model that are set."""
        values = dict(zip(FIELDS, (self.granularity, self.method, self.num_layers, list(self.modules) or None)))
        return {name: value for name, value in values.items() if value is not None}

    def python(self) -> list[str]:
        """Lines for a recipe function."""
        return [f"cfg.model.{name} = {value!r}".replace("'", '"') for name, value in self.settings().items()] or [
            "cfg.model.recompute_granularity = None"]

    def options(self) -> list[str]:
        """Options of a Megatron-LM command line."""
        words = []
        for name, value in self.settings().items():
            words += [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, list) else [value])]
        return words


CONTROL = Choice()


def apply(recipe: Recipe, choice: Choice) -> Recipe:
    """The recipe with this choice and no other recomputation."""
    data = recipe.model_dump(exclude_unset=True)
    data["model"] = {k: v for k, v in data["model"].items() if k not in FIELDS} | choice.settings()
    return Recipe.model_validate(data)


def single_choices(recipe: Recipe, labels: Iterable[str]) -> list[Choice]:
    """Each label that applies to the architecture alone, then the two full methods: every layer, and half of a stage's.

    ``labels``: those that the revision's own validation accepts.
    """
    fitting = [label for label in sorted(labels) if _NEEDS.get(label, lambda model: True)(recipe.model)]
    layers = recipe.model.num_layers // recipe.parallel.pipeline_model_parallel_size
    layers //= recipe.parallel.virtual_pipeline_model_parallel_size or 1
    half = [Choice("full", "block", layers // 2)] if layers > 1 else []
    return [*(Choice("selective", modules=(label,)) for label in fitting), *half, Choice("full", "uniform", 1)]


def combinations(ranked: Collection[str]) -> list[Choice]:
    """The best two labels together, the best three, and so on; a label inside another one adds nothing to it."""
    found, taken = [], []
    for label in ranked:
        inside = any(label in _WITHIN.get(other, ()) for other in taken)
        if not inside:
            taken = [other for other in taken if other not in _WITHIN.get(label, ())] + [label]
            if len(taken) > 1:
                found.append(Choice("selective", modules=tuple(sorted(taken))))
    return found
