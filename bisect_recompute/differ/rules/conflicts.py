"""Combinations that newer validators refuse, for revisions that accept them or whose validator is not at hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Iterator

from bisect_recompute.differ.rules.inert import Finding
from bisect_recompute.differ.rules.literals import UNKNOWN
from bisect_recompute.differ.rules.settings import Settings


@dataclass(frozen=True)
class Conflict:
    rule: str
    fields: tuple[str, ...]
    applies: Callable[[Settings], bool]
    message: str
    source: str
    fix: str


def _has(field: str, *labels: str) -> Callable[[Settings], bool]:
    def applies(s: Settings) -> bool:
        value = s.filled(field)
        on = s.filled("recompute_granularity") == "selective"
        return on and isinstance(value, (list, tuple)) and any(label in value for label in labels)

    return applies


def _full(s: Settings) -> bool:
    return s.filled("recompute_granularity") == "full"


def _recomputes(s: Settings) -> bool:
    return s.filled("recompute_granularity") in ("full", "selective") and s.filled("recompute_modules") != []


def _partial_graphs(s: Settings) -> bool:
    implementation = s.get("cuda_graph_impl")
    if implementation in (UNKNOWN, None, "none", "full_iteration"):
        return False
    scopes = [s.get(name) for name in ("cuda_graph_scope", "cuda_graph_modules")]
    if any(v is UNKNOWN for v in scopes if v is not None):
        scopes = [v for v in scopes if v is not UNKNOWN]
        if not scopes:
            return False
    return not any("full_iteration" in (v if isinstance(v, (list, tuple, str)) else ()) for v in scopes)


CONFLICTS = (
    Conflict(
        "full-without-method",
        ("recompute_granularity", "recompute_method"),
        lambda s: _full(s) and s.get("recompute_method") is None,
        "full recompute needs recompute_method",
        "Megatron Core, TransformerConfig validation",
        "set recompute_method: uniform",
    ),
    Conflict(
        "full-without-count",
        ("recompute_granularity", "recompute_num_layers"),
        lambda s: _full(s) and s.get("recompute_num_layers") is None,
        "full recompute needs recompute_num_layers",
        "Megatron Core, TransformerConfig validation",
        "set recompute_num_layers: 1",
    ),
    Conflict(
        "full-with-partial-cuda-graphs",
        ("recompute_granularity", "cuda_graph_impl"),
        lambda s: _full(s) and _partial_graphs(s),
        "full recompute works with CUDA graphs only where one graph holds the whole iteration",
        "Megatron Core, TransformerConfig validation of CUDA graphs",
        "use cuda_graph_impl: full_iteration (or its scope), or no graphs, or selective recompute",
    ),
    Conflict(
        "distributed-activations-with-sequence-parallel",
        ("distribute_saved_activations", "sequence_parallel"),
        lambda s: s.get("distribute_saved_activations") is True and s.get("sequence_parallel") is True,
        "distribute_saved_activations splits what sequence_parallel has split already",
        "Megatron Core, TransformerConfig validation",
        "drop distribute_saved_activations",
    ),
    Conflict(
        "cpu-offloading-with-pipeline",
        ("cpu_offloading", "pipeline_model_parallel_size"),
        lambda s: (
            s.get("cpu_offloading") is True
            and isinstance(s.get("pipeline_model_parallel_size"), int)
            and s.get("pipeline_model_parallel_size") > 1
        ),
        "cpu_offloading has no support for pipeline parallelism",
        "Megatron Core, TransformerConfig validation",
        "drop cpu_offloading, or set pipeline_model_parallel_size: 1",
    ),
    Conflict(
        "cpu-offloading-with-recompute",
        ("cpu_offloading", "recompute_granularity"),
        lambda s: s.get("cpu_offloading") is True and _recomputes(s),
        "cpu_offloading and recompute exclude each other",
        "Megatron Core, TransformerConfig validation",
        "drop one of cpu_offloading and recompute_granularity",
    ),
    Conflict(
        "moe-with-expert-parallel-overlap",
        ("recompute_modules", "overlap_moe_expert_parallel_comm"),
        lambda s: _has("recompute_modules", "moe")(s) and s.get("overlap_moe_expert_parallel_comm") is True,
        "the expert-parallel overlap runs the MoE layer in pieces: 'moe' recompute does not take effect there",
        "Megatron Core, TransformerConfig validation",
        "take moe out of recompute_modules, or drop the overlap",
    ),
    Conflict(
        "full-with-expert-parallel-overlap",
        ("recompute_granularity", "overlap_moe_expert_parallel_comm"),
        lambda s: _full(s) and s.get("overlap_moe_expert_parallel_comm") is True,
        "the expert-parallel overlap has no full recompute",
        "Megatron Core, TransformerConfig validation",
        "use selective recompute, or drop overlap_moe_expert_parallel_comm",
    ),
    Conflict(
        "shared-experts-with-overlap",
        ("recompute_modules", "moe_shared_expert_overlap"),
        lambda s: _has("recompute_modules", "shared_experts")(s) and s.get("moe_shared_expert_overlap") is True,
        "shared experts that overlap with communication cannot be recomputed",
        "Megatron Core, TransformerConfig validation",
        "take shared_experts out of recompute_modules, or drop moe_shared_expert_overlap",
    ),
    Conflict(
        "discarding-with-delayed-fp8",
        ("recompute_modules", "fp8_recipe"),
        lambda s: (
            _has("recompute_modules", "moe_act", "layernorm")(s)
            and s.get("fp8") not in (None, UNKNOWN)
            and s.get("fp8_recipe") == "delayed"
        ),
        "moe_act and layernorm recompute do not work with FP8 delayed scaling",
        "Megatron Core, TransformerConfig validation",
        "use another FP8 recipe, or take moe_act and layernorm out of recompute_modules",
    ),
)


def conflicts(s: Settings) -> Iterator[Finding]:
    for c in CONFLICTS:
        if c.applies(s):
            yield Finding("conflict", c.rule, c.fields, c.message, c.source, c.fix, *s.place(*c.fields))
