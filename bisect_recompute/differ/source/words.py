"""Which names speak of recompute and activation offload, and which files can change training at all."""

from __future__ import annotations

import re
from functools import lru_cache

SETTINGS = frozenset(
    {
        "recompute_granularity",
        "recompute_method",
        "recompute_num_layers",
        "recompute_modules",
        "distribute_saved_activations",
        "moe_layer_recompute",
        "recompute_activations",
        "cpu_offloading",
        "cpu_offloading_num_layers",
        "cpu_offloading_activations",
        "cpu_offloading_weights",
        "cpu_offloading_double_buffering",
        "cpu_offloading_retain_pinned_cpu_buffers",
        "fine_grained_activation_offloading",
        "offload_modules",
        "min_offloaded_tensor_size",
    }
)
"""Fields that a recipe sets; assigning one inside a validator changes it for everybody."""

NEIGHBOURS = frozenset(
    {
        "sequence_parallel",
        "cuda_graph_impl",
        "cuda_graph_scope",
        "cuda_graph_modules",
        "enable_cuda_graph",
        "external_cuda_graph",
        "moe_shared_expert_overlap",
        "overlap_moe_expert_parallel_comm",
        "attention_backend",
        "transformer_impl",
    }
)
"""Fields whose default decides whether a recompute setting has an effect."""

# "precompute" is something else; so is moving optimizer state, weights or a key-value cache to the host.
_RECOMPUTE = (
    r"(?<!p)recomput|checkpointed(?!_iteration)|(?<!un)checkpoint_?(?:activation|core_attention|handler|without_?output)"
    r"|CheckpointWithout|CheckpointFunction|(?:activations?|partial_activation|gradient)_checkpoint|te_checkpoint"
    r"|save_original_input|saved_activations|paged_stash"
)
_OFFLOAD = r"(?:^|_)off(?:load|_interface)|Offload(?!.*(?:Optim|Param|State))|OFFLOAD_MGR"
_NOT_OFFLOAD = re.compile(
    r"optim|inference|to_cpu|kv_cache|grad|rl_|state|params?_|weights?_when|HybridDevice|uncheckpointed|_recompute_wrapper"
    r"|recompute_w_u|latest_checkpointed",
    re.I,
)
_WORD = re.compile(f"{_RECOMPUTE}|{_OFFLOAD}", re.I)
_STEMS = (
    "recomput",
    "offload",
    "off_interface",
    "save_original_input",
    "saved_activations",
    "paged_stash",
    "checkpointed",
    ".checkpoint(",
    " checkpoint(",
    "(checkpoint(",
    "=checkpoint(",
    "te_checkpoint",
    "checkpointwithout",
    "checkpointfunction",
    "checkpoint_without",
    "checkpoint_handler",
    "checkpoint_activation",
    "checkpoint_core_attention",
    "activation_checkpoint",
    "activations_checkpoint",
    "gradient_checkpoint",
    "activation checkpoint",
    "gradient checkpoint",
)
_NEIGHBOUR_STEMS = (*sorted(NEIGHBOURS), *sorted(name.replace("_", "-") for name in NEIGHBOURS))


def may_speak(text: str) -> bool:
    """A quick look at a file's or block's text before anything is parsed: False is certain, True is not."""
    lower = text.lower()
    return any(stem in lower for stem in _STEMS) or any(name in text for name in _NEIGHBOUR_STEMS)


REMARK = re.compile(
    r"activations? recomput|recomput\w* (?:forward|activation|pass)|checkpoint recomput"
    r"|(?:gradient|activations?) (?:re)?checkpoint",
    re.I,
)
"""In a comment: ties the code under it to activation recompute although no name in it does."""

_SKIPPED = re.compile(
    r"(^|/)(tests?|testing|docs?|examples?|tools|scripts|inference|text_generation\w*|dist_checkpointing|recipes"
    r"|perf_recipes|rl|optimizer|\.\w[^/]*)/|(^|/)(test_|train_rl|rl_|checkpointing\.py|setup\.py|conftest)|memory_usage|flops?_|num_flo"
)


@lru_cache(maxsize=100000)
def is_word(name: str) -> bool:
    """True when an identifier speaks of recompute or activation offload."""
    return bool(_WORD.search(name)) and not _NOT_OFFLOAD.search(name)


def is_tested_or_documented(path: str) -> bool:
    """True for tests and documentation."""
    return bool(re.search(r"(^|/)(tests?|docs?)/", path))


def can_matter(path: str) -> bool:
    """True for Python files whose code can change a training step (no tests, docs, examples, recipes, inference)."""
    return path.endswith(".py") and not _SKIPPED.search(path)
