"""A recipe function of Megatron Bridge as a probe recipe: what its source says at a commit, and the model's public shape.

Nothing of Bridge is imported or executed. What cannot be known is asked for, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import ValidationError

from bisect_recompute.differ.recipes.fields import FieldState
from bisect_recompute.differ.recipes.whole import WholeConfig
from bisect_recompute.errors import UsageError
from bisect_recompute.probe.gpu import GPUS
from bisect_recompute.probe.model_settings import ModelSettings
from bisect_recompute.probe.published import PROVIDER_DEFAULTS
from bisect_recompute.probe.recipe import ParallelSettings, Recipe, RecipeFunction, TrainingSettings, first_problem

LOW_PRECISION = tuple(name for name in ModelSettings.model_fields if name.startswith(("fp8", "fp4"))) + (
    "first_last_layers_bf16", "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16",
)
REDUCTION = ("grad_reduce_in_fp32", "overlap_grad_reduce", "overlap_param_gather", "use_distributed_optimizer")
OPTIMIZER = ("optimizer", "use_precision_aware_optimizer", "main_grads_dtype", "main_params_dtype", "exp_avg_dtype",
             "exp_avg_sq_dtype")
UNSIMULATED = {
    ("model", "cuda_graph_impl"): ("CUDA graphs", (None, "none")),
    ("model", "enable_cuda_graph"): ("CUDA graphs", (None, False)),
    ("ddp", "use_megatron_fsdp"): ("Megatron FSDP", (None, False)),
    ("model", "hybrid_override_pattern"): ("hybrid models", (None,)),
    ("model", "hybrid_layer_pattern"): ("hybrid models", (None,)),
}
"""(section, field) -> what a probe by name cannot do, unless the field has one of these values."""
WANTED = {
    "": ("peft",),
    "model": (*ModelSettings.model_fields, *ParallelSettings.model_fields, "seq_length", "should_pad_vocab",
              *(name for section, name in UNSIMULATED if section == "model")),
    "train": ("micro_batch_size", "global_batch_size"),
    "dataset": ("seq_length", "sequence_length"),
    "tokenizer": ("vocab_size",),
    "ddp": (*REDUCTION, "use_megatron_fsdp"),
    "optimizer": (*OPTIMIZER, "use_distributed_optimizer"),
    "comm_overlap": ("overlap_grad_reduce", "overlap_param_gather", "overlap_moe_expert_parallel_comm", "delay_wgrad_compute"),
    "mixed_precision": ("bf16", "fp16", "grad_reduce_in_fp32", *LOW_PRECISION),
}
WITHOUT_MEMORY = re.compile(r"moe_.*_num_sms|use_te_rng_tracker")
"""Fields that move no memory: asked for nobody."""
NAMES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8", "yarn": "rope"}
"""torch's names of precisions as recipes write them. YaRN's table has the size of the unscaled one."""
NOTE = (
    "settings of the recipe function as its source says at the commit, shape of the model from public data where the source has "
    "none; the user buffers of tensor parallel overlap are left out"
)


@dataclass(frozen=True)
class BridgeRecipe(RecipeFunction):
    """A recipe function whose settings are read from source, probed with the Megatron Core that a submodule pins."""

    core: str = ""
    """Path of a clone of Megatron-LM."""
    given: tuple[tuple[str, str], ...] = ()
    """What the user states with ``--set``: (``model.ffn_hidden_size``, YAML)."""


def probe_recipe(named: BridgeRecipe, config: WholeConfig) -> Recipe:
    """Raises UsageError, one line: what cannot be known or simulated, and how to state it."""
    given = _given(named.given)
    read = _Reader(config, given)
    settings = {
        "model": _model(read), "parallel": _parallel(read), "training": _training(read),
        "hardware": {"gpu": target_gpu(named)},
    }
    for (section, name), value in given.items():
        settings.setdefault(section, {})[name] = value
    _unsimulated(read, given)
    if "data_parallel_size" not in settings["parallel"]:
        settings["parallel"]["data_parallel_size"] = _data_parallel(named.function, settings["parallel"])
    for (section, name) in UNSIMULATED:
        settings.get(section, {}).pop(name, None)
    _ask(config, read.unknown, settings)
    try:
        return Recipe.model_validate({"name": named.name, **settings, "thresholds": named.thresholds})
    except ValidationError as error:
        raise UsageError(f"{named.function}: {first_problem(error, Recipe)}; --set GROUP.FIELD=VALUE states another value") from None


def _given(pairs: tuple[tuple[str, str], ...]) -> dict[tuple[str, str], Any]:
    return {tuple(key.split(".", 1)): yaml.safe_load(value) for key, value in pairs}


class _Reader:
    """Values of a configuration; what is unknown and not given is noted."""

    def __init__(self, config: WholeConfig, given: Mapping[tuple[str, str], Any]):
        self._sections, self._given = config.sections, given
        self.unknown: dict[str, str] = {}

    def __call__(self, section: str, name: str, stated_as: str = "", only_set: bool = False) -> Any:
        """None where nothing is said. ``stated_as``: the recipe's group, where it is not the section."""
        group = stated_as or section
        if (group, name) in self._given:
            return self._given[group, name]
        state = self._sections[section].get(name, FieldState("unset"))
        if state.state == "unknown":
            self.unknown[f"{group}.{name}"] = state.reason
            return None
        if state.state == "set":
            return _value(state.value)
        return None if only_set else _value(state.default)


def _value(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_value(item) for item in value]
    if isinstance(value, str):
        last = value.rpartition(".")[2] if re.fullmatch(r"[A-Za-z_][\w.]*", value) else value
        return NAMES.get(last, last)
    return value


def _model(read: _Reader) -> dict:
    settings = {name: read("model", name) for name in ModelSettings.model_fields}
    for name in LOW_PRECISION:
        value = read("mixed_precision", name, "model")
        if value is not None:
            settings[name] = value
    experts, low_precision = settings["num_moe_experts"], settings["fp8"] or settings["fp4"]
    for name in ModelSettings.model_fields:
        idle = name.startswith("moe_") and not experts or name in LOW_PRECISION and not low_precision
        if idle or WITHOUT_MEMORY.fullmatch(name):
            settings.pop(name, None)
            read.unknown.pop(f"model.{name}", None)
    if settings.get("vocab_size") is None:
        settings["vocab_size"] = read("tokenizer", "vocab_size", "model")
    if not read("model", "should_pad_vocab"):
        settings["make_vocab_size_divisible_by"] = 1
    if isinstance(settings["rotary_base"], float):
        settings["rotary_base"] = int(settings["rotary_base"])
    # A default that says no is left to the revision, which may not have the field yet.
    for name, value in PROVIDER_DEFAULTS.items():
        if not value and not settings.get(name):
            settings.pop(name, None)
    return {name: value for name, value in settings.items() if value is not None}


def _parallel(read: _Reader) -> dict:
    settings = {}
    for name in ParallelSettings.model_fields:
        if name in ("data_parallel_size", "ranks", "tp_comm_overlap"):
            continue
        value = read("model", name, "parallel")
        if value is None and name in WANTED["comm_overlap"]:
            value = read("comm_overlap", name, "parallel")
        if value is not None:
            settings[name] = value
    return settings


def _training(read: _Reader) -> dict:
    lengths = [read("dataset", "seq_length", "training", True), read("dataset", "sequence_length", "training", True)]
    if any(lengths) or read("model", "seq_length", "training"):
        for name in WANTED["dataset"]:
            read.unknown.pop(f"training.{name}", None)
    settings = {
        "seq_length": next((n for n in lengths if n), None) or read("model", "seq_length", "training"),
        "create_attention_mask_in_dataloader": False,
        "precision": next((p for p in ("bf16", "fp16") if read("mixed_precision", p, "training")), "fp32"),
    }
    for section, names in (("train", WANTED["train"]), ("optimizer", OPTIMIZER), ("ddp", REDUCTION)):
        settings |= {name: read(section, name, "training") for name in names}
    for name in ("overlap_grad_reduce", "overlap_param_gather"):
        over = read("comm_overlap", name, "training")
        settings[name] = settings[name] if over is None else over
    if settings["use_distributed_optimizer"] is None:
        settings["use_distributed_optimizer"] = bool(read("optimizer", "use_distributed_optimizer", "training"))
    # The mixed precision's word is the last one: the framework copies it over.
    reduced = read("mixed_precision", "grad_reduce_in_fp32", "training")
    settings["grad_reduce_in_fp32"] = settings["grad_reduce_in_fp32"] if reduced is None else reduced
    return {name: value for name, value in settings.items() if value is not None}


def _unsimulated(read: _Reader, given: Mapping) -> None:
    if read("", "peft") or ".peft" in read.unknown:
        raise UsageError("parameter-efficient fine-tuning (peft) cannot be simulated")
    for (section, name), (what, harmless) in UNSIMULATED.items():
        value = read(section, name)
        if value not in harmless and f"{section}.{name}" not in read.unknown:
            raise UsageError(
                f"{what} cannot be simulated, and {section}.{name} is {value!r}: "
                f"--set {section}.{name}={'none' if isinstance(value, str) else 'false'} measures it without"
            )


def target_gpu(named: BridgeRecipe) -> str:
    """What the user says, else the one in the recipe's name, else an H100."""
    given = _given(named.given).get(("hardware", "gpu"))
    words = re.split(r"[\W_]+", named.function.lower())
    return given if given in GPUS else next((name for name in words if name in GPUS), "h100")


def _data_parallel(function: str, parallel: Mapping[str, Any]) -> int:
    """From the number of GPUs in the recipe's name, as Bridge's performance recipes have it."""
    found = re.search(r"_(\d+)gpu", function)
    rest = 1
    for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"):
        rest *= parallel.get(name, 1)
    if found is None:
        raise UsageError(
            f"{function} does not say on how many GPUs it runs: --set parallel.data_parallel_size=N "
            f"(tensor x pipeline x context parallel size is {rest})"
        )
    if int(found[1]) % rest:
        raise UsageError(f"{function}: {found[1]} GPUs are no multiple of tensor x pipeline x context parallel size {rest}")
    return int(found[1]) // rest


def _ask(config: WholeConfig, unknown: Mapping[str, str], settings: Mapping[str, Mapping[str, Any]]) -> None:
    missing = [
        f"{group}.{name}" for group, kind in (("model", ModelSettings), ("training", TrainingSettings))
        for name, field in kind.model_fields.items()
        if field.is_required() and name not in settings[group] and f"{group}.{name}" not in unknown
    ]
    if not missing and not unknown:
        return
    why = f"nothing is known of the model {config.model}" if missing else next(iter(unknown.values()))
    names = [*missing, *unknown]
    raise UsageError(f"{', '.join(names[:6])} cannot be known ({why}): state {'them' if names[1:] else 'it'} with "
                     f"--set {names[0]}=VALUE{' ...' if names[1:] else ''}")
