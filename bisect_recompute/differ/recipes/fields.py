"""The settings that are followed, and the recompute and offload state they amount to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional

RECOMPUTE = (
    "recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules",
    "distribute_saved_activations",
)
OFFLOAD = (
    "cpu_offloading", "cpu_offloading_num_layers", "cpu_offloading_activations", "cpu_offloading_weights",
    "fine_grained_activation_offloading", "offload_modules",
)
MODEL_NEIGHBOURS = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
    "context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel",
    "seq_length", "cuda_graph_impl", "cuda_graph_scope", "cuda_graph_modules", "enable_cuda_graph",
    "moe_shared_expert_overlap",
)
TRAIN = ("micro_batch_size", "global_batch_size")
OVERLAP = ("overlap_moe_expert_parallel_comm", "delay_wgrad_compute")
PRECISION = "mixed_precision"
EFFECTIVE = (*RECOMPUTE, *OFFLOAD)
"""Fields whose change is a change of recompute or offload."""
MODEL = (*EFFECTIVE, *MODEL_NEIGHBOURS)
ALL = (*MODEL, *OVERLAP, *TRAIN, PRECISION)


@dataclass(frozen=True)
class FieldState:
    """One field of one recipe at one revision."""

    state: str
    """set, unset, unknown"""
    value: Any = None
    """When set: plain data."""
    reason: str = ""
    """When unknown."""
    origin: Optional[tuple] = None
    """(path, chunk, line in the chunk) of where the value was written down."""
    default: Any = None
    """When unset: what the repository's own provider class says, where it does."""

    def same_value(self, other: FieldState) -> bool:
        if self.state == other.state == "set":
            return self.value == other.value and type(self.value) is type(other.value)
        return self.state == other.state and self.default == other.default

    def shown(self) -> Any:
        """The value for a report: "unset" and "unknown" are words, so a set string is quoted by its place only."""
        return self.value if self.state == "set" else f"<{self.state}>"


UNSET = FieldState("unset")


def effective(fields: Mapping[str, FieldState]) -> dict[str, Any]:
    """What the recompute and offload fields amount to, group by group; "unknown" for a group that cannot be known.

    Megatron Core's rules: granularity None is off; ``selective`` with modules None is [core_attn]; with [] it is off;
    modules without ``selective``, method and number without ``full``, layers without ``cpu_offloading`` are dead data.
    """
    return {"recompute": _recompute(fields), "cpu_offload": _cpu(fields), "activation_offload": _fine_grained(fields)}


def _get(fields: Mapping[str, FieldState], name: str) -> Any:
    state = fields.get(name, UNSET)
    if state.state == "unknown":
        raise KeyError(name)
    return state.value if state.state == "set" else state.default


def _recompute(fields: Mapping[str, FieldState]) -> Any:
    try:
        granularity = _get(fields, "recompute_granularity")
        if not granularity:
            return "off"
        if granularity == "selective":
            modules = _get(fields, "recompute_modules")
            if modules is None:
                modules = ["core_attn"]
            return ("selective", *sorted(map(str, modules))) if modules else "off"
        return (
            granularity, _get(fields, "recompute_method"), _get(fields, "recompute_num_layers"),
            bool(_get(fields, "distribute_saved_activations")),
        )
    except (KeyError, TypeError):
        return "unknown"


def _cpu(fields: Mapping[str, FieldState]) -> Any:
    try:
        if not _get(fields, "cpu_offloading"):
            return "off"
        parts = [_get(fields, n) for n in OFFLOAD[1:4]]
        # The framework's own defaults: activations are offloaded, weights are not.
        return (parts[0], parts[1] is None or bool(parts[1]), bool(parts[2]))
    except KeyError:
        return "unknown"


def _fine_grained(fields: Mapping[str, FieldState]) -> Any:
    try:
        if not _get(fields, "fine_grained_activation_offloading"):
            return "off"
        return tuple(sorted(map(str, _get(fields, "offload_modules") or ()))) or "off"
    except (KeyError, TypeError):
        return "unknown"


GROUPS = {
    "recompute": RECOMPUTE, "cpu_offload": OFFLOAD[:4], "activation_offload": OFFLOAD[4:],
}


def describe_state(fields: Mapping[str, FieldState]) -> str:
    """One phrase: ``off``, ``full/uniform/1``, ``selective[moe_act]``, with ``+cpu_offload:N`` and ``+fgao:[...]``."""
    found = effective(fields)
    recompute = found["recompute"]
    if isinstance(recompute, tuple):
        if recompute[0] == "selective":
            default = _get(fields, "recompute_modules") is None
            text = f"selective[{', '.join(recompute[1:])}]" + (" (default)" if default else "")
        else:
            text = "/".join(str(p) for p in recompute[:3])
    else:
        text = recompute
        if text == "off" and fields.get("recompute_granularity", UNSET).value == "selective":
            text = "selective[] (nothing)"
    if found["cpu_offload"] != "off":
        text += f" +cpu_offload:{found['cpu_offload'][0] if isinstance(found['cpu_offload'], tuple) else '?'}"
    if found["activation_offload"] != "off":
        modules = found["activation_offload"]
        text += f" +fgao:[{', '.join(modules) if isinstance(modules, tuple) else '?'}]"
    return text


def effective_changes(old: Mapping[str, FieldState], new: Mapping[str, FieldState]) -> list[str]:
    """Fields that differ and belong to a group whose effective state differs; what is unknown on a side is no change."""
    before, after = effective(old), effective(new)
    changed = []
    for group, names in GROUPS.items():
        if before[group] != after[group] and "unknown" not in (before[group], after[group]):
            changed += [n for n in names if not old.get(n, UNSET).same_value(new.get(n, UNSET))]
    return changed
