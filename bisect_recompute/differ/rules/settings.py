"""A recipe's settings as rules read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional

from bisect_recompute.differ.rules.literals import UNKNOWN, evaluate, holds
from bisect_recompute.differ.rules.validator import Validator

# Where a recipe leaves these out nothing else sets them, so the configuration class's default stands. The shape of a
# model does not belong here: a bridge takes it from the checkpoint's own configuration.
_OWN_DEFAULT = frozenset(
    {
        "recompute_granularity",
        "recompute_method",
        "recompute_num_layers",
        "recompute_modules",
        "distribute_saved_activations",
        "moe_layer_recompute",
        "cpu_offloading",
        "cpu_offloading_num_layers",
        "cpu_offloading_activations",
        "cpu_offloading_weights",
        "fine_grained_activation_offloading",
        "offload_modules",
        "moe_paged_stash",
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "context_parallel_size",
        "sequence_parallel",
        "overlap_moe_expert_parallel_comm",
        "cuda_graph_impl",
    }
)
_WITHOUT_VALIDATOR = {
    "cpu_offloading": False,
    "fine_grained_activation_offloading": False,
    "recompute_granularity": None,
    "pipeline_model_parallel_size": 1,
}


@dataclass(frozen=True)
class Setting:
    """One field of one recipe."""

    state: str
    """set, unset, unknown"""
    value: Any = None
    file: str = ""
    line: int = 0


UNSET = Setting("unset")


class Settings:
    """The fields of one recipe, with what the revision makes of those left out."""

    def __init__(self, fields: Mapping[str, Setting], validator: Optional[Validator], complete: bool = False):
        """``complete``: nothing but ``fields`` and the configuration's defaults decides (a probe recipe)."""
        self.fields = fields
        self.validator = validator
        self.complete = complete

    def get(self, name: str) -> object:
        """The value as stated or left to its default, before validation fills anything; else UNKNOWN."""
        setting = self.fields.get(name, UNSET)
        if setting.state == "set":
            return setting.value
        if setting.state == "unknown" or not (self.complete or name in _OWN_DEFAULT):
            return UNKNOWN
        if self.validator and self.validator.has(name):
            return self.validator.defaults[name]
        return _WITHOUT_VALIDATOR.get(name, UNKNOWN)

    def filled(self, name: str, before: Optional[tuple[str, int]] = None) -> object:
        """The value once the revision's own validation has filled it, as far as it has come: up to a file and line."""
        value = self.get(name)
        for fill in self.validator.fills if self.validator else ():
            if fill.field == name and (before is None or fill.file == before[0] and fill.line < before[1]):
                if value is not UNKNOWN and holds(fill.condition, self.get):
                    value = evaluate(fill.value, self.get)
        return value

    def look_up(self, name: str, before: tuple[str, int]) -> object:
        """For a condition at a file and line of the validators: fields as filled by then, and local names."""
        expression = self.validator.names.get(name) if self.validator else None
        if expression is not None and name not in self.fields:
            return evaluate(expression, lambda inner: self.filled(inner, before))
        return self.filled(name, before)

    def stated(self, name: str) -> bool:
        return self.fields.get(name, UNSET).state == "set"

    def place(self, *names: str) -> tuple[str, int]:
        """File and line of the first of these fields that the recipe states."""
        for name in names:
            setting = self.fields.get(name, UNSET)
            if setting.state == "set" and setting.file:
                return setting.file, setting.line
        return "", 0


PRECISIONS = {
    # (fp8, fp8_recipe, fp4) of the named mixed precision recipes
    "delayed_scaling": ("hybrid", "delayed", None),
    "current_scaling": ("hybrid", "tensorwise", None),
    "subchannel_scaling": ("hybrid", "blockwise", None),
    "mxfp8": ("e4m3", "mxfp8", None),
    "nvfp4": (None, UNKNOWN, "e2m1"),
}


def precision_fields(name: object) -> dict[str, Setting]:
    """fp8, fp8_recipe and fp4 behind a mixed precision recipe's name; empty where it says nothing certain."""
    if not isinstance(name, str):
        return {}
    for part, values in PRECISIONS.items():
        if part in name:
            pairs = zip(("fp8", "fp8_recipe", "fp4"), values)
            return {field: Setting("set", value) for field, value in pairs if value is not UNKNOWN}
    if name in ("bf16_mixed", "fp16_mixed", "bf16-mixed", "fp16-mixed"):
        return {"fp8": Setting("set", None), "fp4": Setting("set", None)}
    return {}
