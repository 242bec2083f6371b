"""Settings without effect, or against each other, that no validator need refuse: facts, each with its source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Iterator

from bisect_recompute.differ.rules.literals import UNKNOWN
from bisect_recompute.differ.rules.settings import Settings


@dataclass(frozen=True)
class Finding:
    kind: str
    """fails, conflict, inert or note"""
    rule: str
    fields: tuple[str, ...]
    message: str
    source: str
    """Where the rule comes from."""
    fix: str
    file: str = ""
    line: int = 0


Rule = Callable[[Settings], Iterator[Finding]]

_BLOCK = "Megatron Core's transformer block"


def _known(*values: object) -> bool:
    return all(value is not UNKNOWN for value in values)


def _modules(s: Settings) -> list:
    value = s.get("recompute_modules")
    return list(value) if isinstance(value, (list, tuple)) else []


def modules_without_granularity(s: Settings) -> Iterator[Finding]:
    granularity = s.filled("recompute_granularity")
    if _modules(s) and _known(granularity) and granularity != "selective":
        state = f"is {granularity!r}" if granularity else "is not set"
        yield Finding(
            "inert",
            "modules-without-selective",
            ("recompute_modules", "recompute_granularity"),
            f"recompute_modules {_modules(s)} is not read: recompute_granularity {state}",
            "Megatron Core tests recompute_modules only together with recompute_granularity == 'selective'",
            "set recompute_granularity: selective, or drop recompute_modules",
            *s.place("recompute_modules"),
        )


def method_without_full(s: Settings) -> Iterator[Finding]:
    granularity = s.filled("recompute_granularity")
    for name in ("recompute_method", "recompute_num_layers"):
        value = s.get(name)
        if s.stated(name) and _known(granularity, value) and value is not None and granularity != "full":
            kind = "conflict" if granularity == "selective" and name == "recompute_num_layers" else "inert"
            yield Finding(
                kind,
                "method-or-count-without-full",
                (name, "recompute_granularity"),
                f"{name} {value!r} belongs to full recompute: recompute_granularity is {granularity!r}",
                f"{_BLOCK} reads it only for recompute_granularity == 'full'",
                f"drop {name}, or set recompute_granularity: full",
                *s.place(name),
            )


def layers_without_offloading(s: Settings) -> Iterator[Finding]:
    count = s.get("cpu_offloading_num_layers")
    if s.stated("cpu_offloading_num_layers") and count and s.get("cpu_offloading") is False:
        yield Finding(
            "inert",
            "layer-count-without-cpu-offloading",
            ("cpu_offloading_num_layers", "cpu_offloading"),
            f"cpu_offloading_num_layers {count} is not read: cpu_offloading is not on",
            f"{_BLOCK} opens its offload context only with cpu_offloading",
            "set cpu_offloading: true, or drop cpu_offloading_num_layers",
            *s.place("cpu_offloading_num_layers"),
        )


def offload_modules_without_offloading(s: Settings) -> Iterator[Finding]:
    modules = s.get("offload_modules")
    if s.stated("offload_modules") and isinstance(modules, (list, tuple)) and modules:
        if s.get("fine_grained_activation_offloading") is False:
            yield Finding(
                "inert",
                "offload-modules-without-offloading",
                ("offload_modules", "fine_grained_activation_offloading"),
                f"offload_modules {list(modules)} is not read: fine_grained_activation_offloading is not on",
                "Megatron Core tests offload_modules only together with fine_grained_activation_offloading",
                "set fine_grained_activation_offloading: true, or drop offload_modules",
                *s.place("offload_modules"),
            )


def selective_of_nothing(s: Settings) -> Iterator[Finding]:
    if s.get("recompute_granularity") == "selective" and s.get("recompute_modules") in ([], ()):
        yield Finding(
            "inert",
            "selective-of-nothing",
            ("recompute_granularity", "recompute_modules"),
            "recompute_granularity 'selective' with an empty recompute_modules recomputes nothing",
            "Megatron Core fills recompute_modules only where it is None, not where it is empty",
            "drop recompute_granularity, or name the modules",
            *s.place("recompute_modules", "recompute_granularity"),
        )


def selective_without_modules(s: Settings) -> Iterator[Finding]:
    if s.get("recompute_granularity") != "selective" or s.get("recompute_modules") is not None:
        return
    place = s.place("recompute_granularity")
    filled = s.filled("recompute_modules")
    if filled is None and s.validator and s.validator.labels.get("recompute_modules"):
        yield Finding(
            "fails",
            "selective-without-modules",
            ("recompute_modules",),
            "recompute_granularity 'selective' without recompute_modules: this revision does not fill it",
            s.validator.name,
            "name the modules",
            *place,
        )
    elif filled is not None or s.validator is None:
        what = filled if isinstance(filled, list) else ["core_attn"]
        yield Finding(
            "note",
            "selective-without-modules",
            ("recompute_modules",),
            f"selective without recompute_modules is not off: it means {what}",
            "Megatron Core fills recompute_modules where it is None",
            f"write recompute_modules: {what}, or [] for none",
            *place,
        )


def nested_modules(s: Settings) -> Iterator[Finding]:
    modules = _modules(s)
    inner = [m for m in modules if m in ("moe_act", "shared_experts")]
    if s.get("recompute_granularity") == "selective" and "moe" in modules and inner:
        yield Finding(
            "conflict",
            "module-inside-module",
            ("recompute_modules",),
            f"{' and '.join(inner)} lie inside moe, which is recomputed as a whole: their own recompute saves nothing "
            "and runs once more in backward",
            "Megatron Core's MoE layer checkpoints its whole forward, experts included, for 'moe'",
            f"take {', '.join(inner)} out of recompute_modules, or moe",
            *s.place("recompute_modules"),
        )


def mlp_of_moe_layers(s: Settings) -> Iterator[Finding]:
    experts, frequency = s.get("num_moe_experts"), s.get("moe_layer_freq")
    pattern = s.get("hybrid_layer_pattern")
    pattern = pattern if _known(pattern) else s.get("hybrid_override_pattern")
    if s.get("recompute_granularity") != "selective" or "mlp" not in _modules(s) or not experts or experts is UNKNOWN:
        return
    hybrid = isinstance(pattern, str) and "E" in pattern and "-" not in pattern
    every = frequency == 1 or isinstance(frequency, (list, tuple)) and all(frequency)
    if hybrid or every:
        yield Finding(
            "inert",
            "mlp-on-moe-layers",
            ("recompute_modules", "moe_layer_freq"),
            "'mlp' recomputes dense MLPs only, and every MLP here is a mixture of experts",
            "Megatron Core's transformer layer sets recompute_mlp only where the layer is no MoE layer",
            "take mlp out of recompute_modules (moe or moe_act are the ones for experts)",
            *s.place("recompute_modules"),
        )


def core_attention_of_fused(s: Settings) -> Iterator[Finding]:
    granularity, modules = s.get("recompute_granularity"), s.filled("recompute_modules")
    fused = s.get("attention_backend") in ("flash", "fused") and s.get("transformer_impl") != "local"
    if granularity == "selective" and isinstance(modules, (list, tuple)) and "core_attn" in modules and fused:
        yield Finding(
            "note",
            "core-attention-already-fused",
            ("recompute_modules", "attention_backend"),
            "core_attn recompute saves next to nothing with a fused attention kernel, which keeps no score matrix",
            "Megatron Core's own warning beside the field; 25.52 -> 24.94 GB in a public report",
            "take core_attn out of recompute_modules and measure",
            *s.place("recompute_modules", "recompute_granularity"),
        )


def one_unit(s: Settings) -> Iterator[Finding]:
    count, layers, stages = s.get("recompute_num_layers"), s.get("num_layers"), s.get("pipeline_model_parallel_size")
    if s.get("recompute_granularity") == "full" and s.get("recompute_method") == "uniform":
        if all(isinstance(n, int) and n > 0 for n in (count, layers, stages)) and count >= layers // stages > 1:
            yield Finding(
                "conflict",
                "one-unit",
                ("recompute_num_layers",),
                f"recompute_num_layers {count} puts all {layers // stages} layers of a stage into one unit: backward "
                "recomputes them together, and they are all alive at once",
                "recompute_num_layers under 'uniform' is the size of a unit, not the number of units",
                "use a smaller recompute_num_layers; 1 saves most",
                *s.place("recompute_num_layers"),
            )


RULES: tuple[Rule, ...] = (
    modules_without_granularity,
    method_without_full,
    layers_without_offloading,
    offload_modules_without_offloading,
    selective_of_nothing,
    selective_without_modules,
    nested_modules,
    mlp_of_moe_layers,
    core_attention_of_fused,
    one_unit,
)
