"""The probe recipe: what to train, in Megatron Core's own field names, read from YAML."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Optional, Union

import yaml
from pydantic import Field, ValidationError, model_validator

from bisect_recompute.errors import UsageError
from bisect_recompute.probe.gpu import GPUS
from bisect_recompute.probe.launch import Launch, read_launch
from bisect_recompute.probe.model_settings import Group, ModelSettings


class ParallelSettings(Group):
    tensor_model_parallel_size: int = Field(1, gt=0)
    pipeline_model_parallel_size: int = Field(1, gt=0)
    virtual_pipeline_model_parallel_size: Optional[int] = Field(None, gt=0)
    context_parallel_size: int = Field(1, gt=0)
    data_parallel_size: int = Field(1, gt=0)
    expert_model_parallel_size: int = Field(1, gt=0)
    expert_tensor_parallel_size: Optional[int] = Field(
        None, gt=0, description="Left out: as tensor_model_parallel_size"
    )
    sequence_parallel: bool = False
    num_layers_in_first_pipeline_stage: Optional[int] = Field(None, gt=0)
    num_layers_in_last_pipeline_stage: Optional[int] = Field(None, gt=0)
    account_for_embedding_in_pipeline_split: Optional[bool] = None
    account_for_loss_in_pipeline_split: Optional[bool] = None
    pipeline_model_parallel_layout: Optional[Union[str, list[list[str]]]] = Field(
        None, description="Layers of each (virtual) pipeline stage, like 'Et*3|(tt|)*29,m|L'"
    )
    microbatch_group_size_per_vp_stage: Optional[int] = Field(None, gt=0)
    cp_comm_type: Optional[Union[str, list[str]]] = None
    hierarchical_context_parallel_sizes: Optional[list[int]] = None
    tp_comm_overlap: Optional[bool] = None
    overlap_p2p_comm: Optional[bool] = None
    batch_p2p_comm: Optional[bool] = None
    overlap_moe_expert_parallel_comm: Optional[bool] = None
    delay_wgrad_compute: Optional[bool] = None
    defer_embedding_wgrad_compute: Optional[bool] = None
    wgrad_deferral_limit: Optional[int] = None
    ranks: Optional[list[int]] = Field(
        None, description="Global ranks to simulate; left out: the first rank of each distinct pipeline stage"
    )

    @property
    def world_size(self) -> int:
        return (
            self.tensor_model_parallel_size
            * self.pipeline_model_parallel_size
            * self.context_parallel_size
            * self.data_parallel_size
        )


class TrainingSettings(Group):
    seq_length: int = Field(gt=0)
    micro_batch_size: int = Field(1, gt=0)
    global_batch_size: int = Field(gt=0)
    precision: Literal["bf16", "fp16", "fp32"] = "bf16"
    optimizer: Literal["adam", "sgd"] = "adam"
    use_distributed_optimizer: bool = True
    use_precision_aware_optimizer: Optional[bool] = None
    main_grads_dtype: Optional[Literal["fp32", "bf16"]] = None
    main_params_dtype: Optional[Literal["fp32", "fp16"]] = None
    exp_avg_dtype: Optional[Literal["fp32", "fp16", "bf16", "fp8"]] = None
    exp_avg_sq_dtype: Optional[Literal["fp32", "fp16", "bf16", "fp8"]] = None
    overlap_grad_reduce: Optional[bool] = None
    overlap_param_gather: Optional[bool] = None
    grad_reduce_in_fp32: bool = Field(
        True, description="Gradients kept and reduced in fp32 (Megatron-LM: --accumulate-allreduce-grads-in-fp32)"
    )
    create_attention_mask_in_dataloader: bool = Field(
        True, description="A bool [batch, 1, sequence, sequence] mask with each microbatch, as pretrain_gpt.py makes"
    )


class HardwareSettings(Group):
    gpu: str = "h100"
    expandable_segments: bool = Field(False, description="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")

    @model_validator(mode="after")
    def _known_gpu(self):
        if self.gpu not in GPUS:
            raise ValueError(f"gpu {_shown(self.gpu)} is not known; known are {', '.join(sorted(GPUS))}")
        return self


class Thresholds(Group):
    """Smallest change that counts as a shift, in percent of the good value."""

    memory: float = Field(1.0, ge=0)
    throughput: float = Field(5.0, ge=0)


class Recipe(Group):
    """A probe recipe (``recipes/*.yaml``)."""

    name: str = Field("", description="Left out: the file's name")
    description: str = ""
    model: ModelSettings
    parallel: ParallelSettings = ParallelSettings()
    training: TrainingSettings
    hardware: HardwareSettings = HardwareSettings()
    thresholds: Thresholds = Thresholds()

    @model_validator(mode="after")
    def _fits_together(self):
        p, t = self.parallel, self.training
        step = t.micro_batch_size * p.data_parallel_size
        if t.global_batch_size % step:
            raise ValueError(
                f"training.global_batch_size {t.global_batch_size} is not a multiple of micro_batch_size x "
                f"data_parallel_size = {step}"
            )
        if p.ranks is not None and (not p.ranks or min(p.ranks) < 0 or max(p.ranks) >= p.world_size):
            raise ValueError(f"parallel.ranks must lie in 0..{p.world_size - 1}")
        expert = p.expert_model_parallel_size * (p.expert_tensor_parallel_size or p.tensor_model_parallel_size)
        if (p.world_size // p.pipeline_model_parallel_size) % expert:
            raise ValueError(
                f"expert_model_parallel_size x expert_tensor_parallel_size = {expert} does not divide "
                f"tensor x context x data parallel size = {p.world_size // p.pipeline_model_parallel_size}"
            )
        if p.sequence_parallel and t.seq_length % p.tensor_model_parallel_size:
            raise ValueError("training.seq_length is not a multiple of parallel.tensor_model_parallel_size")
        return self

    def stated_fields(self) -> set[str]:
        """Names that the recipe gives a value; a commit's default of the others reaches the probe."""
        return set(self.model.stated())

    @property
    def expandable_segments(self) -> bool:
        return self.hardware.expandable_segments

    @property
    def num_microbatches(self) -> int:
        return self.training.global_batch_size // (self.training.micro_batch_size * self.parallel.data_parallel_size)


class LaunchRecipe(Group):
    """A recipe that is a Megatron-LM launch command: the commit's own training script reads its arguments."""

    name: str = Field("", description="Left out: the file's name")
    description: str = ""
    megatron_args: str = Field(description="The launch command pasted in, or the script's arguments alone")
    world_size: Optional[int] = Field(None, gt=0, description="Number of GPUs; left out: as the command's torchrun says")
    ranks: Optional[list[int]] = Field(
        None, description="Global ranks to simulate; left out: the first rank of each distinct pipeline stage"
    )
    hardware: HardwareSettings = HardwareSettings()
    thresholds: Thresholds = Thresholds()

    @model_validator(mode="after")
    def _complete(self):
        try:
            launch = self.launch
        except UsageError as error:
            raise ValueError(str(error)) from None
        if not (self.world_size or launch.world_size):
            raise ValueError("world_size is missing: megatron_args names no number of GPUs (torchrun --nproc-per-node)")
        if self.ranks is not None and (not self.ranks or min(self.ranks) < 0 or max(self.ranks) >= self.gpus):
            raise ValueError(f"ranks must lie in 0..{self.gpus - 1}")
        return self

    def stated_fields(self) -> set[str]:
        """Names that the command gives a value, as its options spell them."""
        options = (token.partition("=")[0] for token in self.launch.arguments if token.startswith("--"))
        return {option.removeprefix("--").replace("-", "_") for option in options}

    @property
    def expandable_segments(self) -> bool:
        variables = self.launch.environment
        settings = variables.get("PYTORCH_CUDA_ALLOC_CONF", variables.get("PYTORCH_ALLOC_CONF", ""))
        return self.hardware.expandable_segments or "expandable_segments:True" in settings.split(",")

    @property
    def shards_parameters(self) -> bool:
        """Fully sharded data parallelism: parameters are gathered, gradients reduced in every microbatch."""
        return any(self.launch.has(option) for option in ("--use-megatron-fsdp", "--use-custom-fsdp", "--use-torch-fsdp2"))

    @property
    def launch(self) -> Launch:
        return read_launch(self.megatron_args)

    @property
    def gpus(self) -> int:
        return self.world_size or self.launch.world_size


@dataclass(frozen=True)
class RecipeFunction:
    """A recipe function of the probed repository (``module:function``); only a probe's own process calls it."""

    module: str
    function: str
    thresholds: Thresholds = Thresholds()

    @property
    def name(self) -> str:
        return f"{self.module}:{self.function}"


LARGEST = 2**20
MOST_LISTED = 40


def shipped_folder() -> Path:
    """A checkout's ``recipes/`` or the wheel's copy."""
    package = Path(__file__).resolve().parents[1]
    copy = package / "shipped" / "recipes"
    return copy if copy.is_dir() else package.parent / "recipes"


def shipped_recipes() -> dict[str, Path]:
    """Name -> file of the recipes that come with the tool."""
    return {path.stem: path for path in sorted(shipped_folder().glob("*.yaml"))}


def load_recipe(spec: str) -> Recipe | LaunchRecipe:
    """Reads a recipe by path, or by the name of a shipped one (``llama3-70b`` or ``recipes/llama3-70b.yaml``).

    Raises UsageError with one line: the file, the field and how to mend it.
    """
    path = Path(spec)
    if not os.path.isfile(path):
        shipped = shipped_recipes()
        if path.stem in shipped and path.suffix in ("", ".yaml") and str(path.parent) in (".", "recipes"):
            path = shipped[path.stem]
        else:
            near = difflib.get_close_matches(path.stem, shipped, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"shipped recipes are {', '.join(shipped) or 'missing'}"
            raise UsageError(f"no such recipe: {spec}; {hint}")
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST + 1)
        text = content.decode("utf-8") if len(content) <= LARGEST else ""
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read recipe {path}: {error}") from None
    if len(content) > LARGEST:
        raise UsageError(f"{path} is no recipe: it is larger than {LARGEST // 2**20} MiB")
    return parse_recipe(text, str(path), path.stem)


def parse_recipe(text: str, source: str, name: str) -> Recipe | LaunchRecipe:
    """A number written as text or as true/false is a slip, not a number. Raises UsageError with one line."""
    try:
        data = yaml.load(text, _Loader)
    except RecursionError:
        raise UsageError(f"{source}: malformed YAML: nested too deeply for a recipe") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise UsageError(f"{source}{where}: malformed YAML: {problem[:200]}") from None
    if not isinstance(data, dict):
        raise UsageError(f"{source}: a recipe is a mapping with the groups {', '.join(Recipe.model_fields)}")
    kind = LaunchRecipe if "megatron_args" in data else Recipe
    try:
        recipe = kind.model_validate(data, strict=True)
    except ValidationError as error:
        raise UsageError(f"{source}: {first_problem(error, kind)}") from None
    return recipe if recipe.name else recipe.model_copy(update={"name": name})


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice: the first value would be lost without a word."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if (key.tag, key.value) in seen:
                raise yaml.MarkedYAMLError(problem=f"{_shown(key.value)} is given twice", problem_mark=key.start_mark)
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)

    def construct_object(self, node, deep=False):
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):
            # PyYAML lets these out for scalars that only look like a number or a date: 0x_, 2026-13-45.
            problem = f"{_shown(node.value)} is no value of the kind {node.tag.rpartition(':')[2]}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None


# To YAML 1.1, which PyYAML reads, 1e-5 without a point is text.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def first_problem(error: ValidationError, kind: type[Group]) -> str:
    # A misspelt field also leaves the right one missing: the misspelling is the fault to name.
    problem = min(error.errors(), key=lambda p: p["type"] != "extra_forbidden")
    location = [str(part) for part in problem["loc"]]
    if problem["type"] == "extra_forbidden":
        return _unknown_field(location, kind)
    message = problem["msg"].removeprefix("Value error, ")
    if isinstance(problem["input"], (str, int, float)):
        message += f", not {_shown(problem['input'])}"
    return f"{'.'.join(location)}: {message}" if location else message


def _unknown_field(location: list[str], kind: type[Group]) -> str:
    group = kind
    for part in location[:-1]:
        group = group.model_fields[part].annotation
    near = difflib.get_close_matches(location[-1], group.model_fields, n=1)
    groups = {name: f.annotation for name, f in kind.model_fields.items()}
    owners = [n for n, g in groups.items() if isinstance(g, type) and issubclass(g, Group) and location[-1] in g.model_fields]
    if owners:
        hint = f"it belongs under '{owners[0]}:'"
    elif near:
        hint = f"did you mean '{near[0]}'?"
    elif len(group.model_fields) > MOST_LISTED:
        hint = "'bisect-recompute schema recipe' prints the known ones"
    else:
        hint = f"known are {', '.join(group.model_fields)}"
    return f"unknown field {_shown('.'.join(location))}; {hint}"


def _shown(value: object) -> str:
    """One line without control characters, however long or strange the value is."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text)} characters)"


def recipe_schema() -> dict:
    """JSON Schema of a recipe."""
    return Recipe.model_json_schema()
