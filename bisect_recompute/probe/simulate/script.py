"""Runs Megatron-LM's own training script at a commit: its arguments, model, optimizer and training loop are the commit's.

What is answered for it: the process group, data (a batch of zeros), the tokenizer (its vocabulary size alone) and the
end, which comes after a few iterations. Nothing is read from or written to the outside.
"""

from __future__ import annotations

import argparse
import importlib
import os
import runpy
import sys

from bisect_recompute.probe.launch import Launch
from bisect_recompute.probe.recipe import LaunchRecipe
from bisect_recompute.probe.simulate import batches, distributed, vocabulary
from bisect_recompute.probe.simulate.rank import Meter, RankMeasurement, bare, follow_modules

FAMILIES = (
    ("--flextron", "pretrain_hybrid_flex.py"),
    ("--hybrid-layer-pattern", "pretrain_hybrid.py"),
    ("--hybrid-override-pattern", "pretrain_hybrid.py"),
    ("--is-hybrid-model", "pretrain_hybrid.py"),
    ("--bert-no-binary-head", "pretrain_bert.py"),
    ("--encoder-num-layers", "pretrain_t5.py"),
    ("--decoder-num-layers", "pretrain_t5.py"),
    ("", "pretrain_gpt.py"),
)
"""Option that only one family of models has -> its script."""

ELSEWHERE = {
    "pretrain_hybrid_flex.py": ("megatron/elastification/pretrain_hybrid_flex.py",),
    "pretrain_hybrid.py": ("pretrain_mamba.py",),
    "pretrain_mamba.py": ("pretrain_hybrid.py",),
    "pretrain_bert.py": ("examples/bert/pretrain_bert.py",),
    "pretrain_t5.py": ("examples/t5/pretrain_t5.py",),
}
"""Script -> where else, or under what other name, revisions have it."""

ITERATIONS = 2
OVERFLOWS = 2
"""With fp16, Megatron-LM starts from a loss scale of 2**32, at which the gradients of the first iterations overflow (fp16
ends at 65504): they are skipped, and optimizer state comes into being only later."""


class ArgumentsRefused(Exception):
    """The commit's own argument parser does not take the command."""


class Finished(BaseException):
    """The measured iterations are over; nothing of the script's own may catch it."""


def prepare():
    """Imports what every rank needs, before the process forks per rank."""
    importlib.import_module("megatron.training.training")


def measure(recipe: LaunchRecipe, rank: int, source_files, on_stage) -> RankMeasurement:
    """Trains in this process, which must not have simulated before; peaks count from the start of the process, as
    ``torch.cuda.max_memory_allocated`` does."""
    launch = recipe.launch
    for name, value in _environment(launch).items():
        os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
    os.environ.update(RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(recipe.gpus), LOCAL_WORLD_SIZE="1")
    sys.argv = [script_of(launch), *launch.arguments, *_defaults(launch)]
    meter = Meter(recipe, source_files, on_stage, whole_process=True)
    run = _Run(meter, launch)
    with meter.gpu:
        meter.enter("build")
        distributed.connect(rank, recipe.gpus)
        run.take_over()
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except Finished:
            pass
        else:
            raise RuntimeError(f"{sys.argv[0]} ended without training")
    return meter.measurement(rank, run.microbatches, run.simulated, run.settings, run.model_flops)


def ranks(recipe: LaunchRecipe) -> list[int]:
    """The stated ones, or the first rank of each pipeline stage that can differ: first, second and last."""
    launch, stages = recipe.launch, _size(recipe.launch, "--pipeline-model-parallel-size")
    per_stage = recipe.gpus // stages
    if launch.has("--use-tp-pp-dp-mapping"):
        per_stage = _size(launch, "--tensor-model-parallel-size") * _size(launch, "--context-parallel-size")
    return recipe.ranks or [stage * per_stage for stage in sorted({0, 1, stages - 1}) if stage < stages]


def _size(launch: Launch, option: str) -> int:
    return int(launch.value(option, "1"))


def script_of(launch: Launch) -> str:
    """Path of the training script, from the command or from the options that only one family has."""
    named = launch.script or next(script for option, script in FAMILIES if not option or launch.has(option))
    for path in (named, *ELSEWHERE.get(os.path.basename(named), ())):
        if os.path.isfile(path):
            return path
    raise FileNotFoundError(f"this revision has no {named}")


def _environment(launch: Launch) -> dict[str, str | None]:
    """What Megatron-LM insists on for some options, and its launch scripts therefore set; the command's own comes last."""
    variables: dict[str, str | None] = {}
    if launch.has("--deterministic-mode"):
        variables |= {"NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0", "NCCL_ALGO": "Ring"}
    if launch.has("--fine-grained-activation-offloading"):
        variables["NVTE_CPU_OFFLOAD_V1"] = "1"
    if launch.has("--use-megatron-fsdp") or launch.has("--use-torch-fsdp2"):
        variables["CUDA_DEVICE_MAX_CONNECTIONS"] = None
    return variables | launch.environment


def _defaults(launch: Launch) -> list[str]:
    """Options without which a script does not start, or that fit what ``Launch`` has left out."""
    added = []
    if not (launch.has("--train-iters") or launch.has("--train-samples")):
        added += ["--train-iters", "1000"]
    for option, value in (("--lr", "1e-4"), ("--eval-iters", "0"), ("--eval-interval", "1000")):
        if not launch.has(option):
            added += [option, value]
    if launch.has("--overlap-param-gather-with-optimizer-step"):
        added += ["--ckpt-format", "torch"]
    if launch.has("--use-megatron-fsdp"):
        added += ["--ckpt-format", "fsdp_dtensor"]
    return added


def _refuse(parser: argparse.ArgumentParser, message: str):
    """Instead of usage on standard error and ``SystemExit: 2``."""
    raise ArgumentsRefused(message)


def _model_flops(microbatches: int) -> float | None:
    """By the commit's own formula, the one that it logs; None where it has none."""
    args = importlib.import_module("megatron.training.global_vars").get_args()
    formula = getattr(importlib.import_module("megatron.training.training"), "num_floating_point_operations", None)
    return float(formula(args, microbatches * args.micro_batch_size * args.data_parallel_size)) if formula else None


class _Run:
    """The hooks in Megatron-LM's training module."""

    def __init__(self, meter: Meter, launch: Launch):
        self.meter, self.launch = meter, launch
        self.settings: dict[str, object] = {}
        self.microbatches = self.simulated = 1
        self.model_flops: float | None = None
        self.iteration = 0
        self.overflows = OVERFLOWS if launch.has("--fp16") and not launch.has("--loss-scale") else 0
        self.iterations = max(ITERATIONS, self.overflows + 1)

    def take_over(self):
        training = importlib.import_module("megatron.training.training")
        state = importlib.import_module("megatron.training.global_vars")
        # The indexer of data sets and, until 2025, kernels that need nvcc.
        importlib.import_module("megatron.training.initialize")._compile_dependencies = lambda: None
        # Asks the driver which cores are near the GPU.
        distributed.skip("megatron.core.pipeline_parallel.utils", "set_ideal_affinity_for_current_gpu")
        importlib.import_module("megatron.core.timers").Timers.log = lambda *args, **kwargs: None
        vocabulary.replace_tokenizer(state)
        batches.replace_loaders(training, state)
        for place in ("megatron.training.utils", "megatron.core.utils"):
            batches.share_loss_mask(importlib.import_module(place))
        argparse.ArgumentParser.error = _refuse
        self._wrap(training, "setup_model_and_optimizer", self._setup)
        self._wrap(training, "get_megatron_optimizer", self._optimizer)
        self._wrap(training, "train_step", self._train_step)
        self._wrap(training, "training_log", self._log)
        self._wrap(training, "get_forward_backward_func", self._schedule)

    @staticmethod
    def _wrap(module, name, around):
        real = getattr(module, name)
        setattr(module, name, lambda *args, **kwargs: around(real, *args, **kwargs))

    def _setup(self, real, *args, **kwargs):
        from bisect_recompute.probe.simulate.model import plain_settings

        chunks, optimizer, *rest = real(*args, **kwargs)
        follow_modules(self.meter.tracker, chunks)
        self.meter.built(chunks)
        config = next((c for c in (getattr(bare(chunk), "config", None) for chunk in chunks) if c is not None), None)
        self.settings = plain_settings(config) if config is not None else {}
        return (chunks, optimizer, *rest)

    def _optimizer(self, real, *args, **kwargs):
        self.meter.enter("optimizer")
        try:
            return real(*args, **kwargs)
        finally:
            self.meter.enter("build")

    def _schedule(self, real, *args, **kwargs):
        schedule = real(*args, **kwargs)

        def shortened(*args, **kwargs):
            whole = kwargs["num_microbatches"]
            kwargs["num_microbatches"] = few = min(whole, self._enough())
            self.microbatches, self.simulated = whole, few
            self.meter.enter("forward")
            try:
                return schedule(*args, **kwargs)
            finally:
                self.meter.enter("step")

        return shortened

    def _enough(self) -> int:
        """The peak is reached once every pipeline stage holds its in-flight microbatches; later ones repeat it."""
        stages = _size(self.launch, "--pipeline-model-parallel-size")
        group = int(self.launch.value("--microbatch-group-size-per-virtual-pipeline-stage", "0") or 0)
        return 2 * max(stages, group, 1) if stages > 1 else 2

    def _train_step(self, real, *args, **kwargs):
        self.meter.enter("step")
        self.meter.gpu.reads.overflowing = self.iteration < self.overflows
        return real(*args, **kwargs)

    def _log(self, real, *args, **kwargs):
        """Where Megatron-LM reads the allocator's counters, after the norm of the parameters."""
        self.iteration += 1
        self.meter.end_iteration(last_follows=self.iteration == self.iterations - 1)
        if self.iteration == self.iterations:
            self.model_flops = _model_flops(self.microbatches)
            raise Finished
        return real(*args, **kwargs)
