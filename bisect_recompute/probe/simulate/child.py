"""The process of one probe: a fork of the warm parent, in which the commit's code is imported and run."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import pickle
import sys
import time
import traceback
from pathlib import Path

from bisect_recompute.probe.gpu import GPUS
from bisect_recompute.probe.recipe import LaunchRecipe, Recipe, RecipeFunction
from bisect_recompute.probe.result import MemoryUse, ProbeResult, Throughput
from bisect_recompute.probe.simulate import rank as one_rank, script
from bisect_recompute.probe.simulate.imports import CommitFinder
from bisect_recompute.probe.simulate.recipe_function import read_recipe_function
from bisect_recompute.probe.simulate.runtime import package_versions
from bisect_recompute.probe.simulate.step_time import StepTime, stages, whole_step

IMPORTS = (
    "megatron.core.parallel_state", "megatron.core.tensor_parallel.random", "megatron.core.models.gpt",
    "megatron.core.models.gpt.gpt_layer_specs", "megatron.core.distributed", "megatron.core.optimizer",
    "megatron.core.pipeline_parallel", "megatron.core.transformer.module",
)


def run(job: dict, send) -> ProbeResult:
    """Runs the job; ``send`` reports each stage as it begins. Whatever the commit's code raises becomes a result."""
    began = time.monotonic()
    stage = "import"

    def on_stage(name):
        nonlocal stage
        stage = name
        send({"stage": name})

    result = ProbeResult(
        revision=job["revision"], status="failed", stage=stage, reason="", seconds=0.0, command=job["command"],
        log=job["log"],
    )
    try:
        measured = _measure(job, on_stage)
        return dataclasses.replace(
            result, status="ok", stage="done", seconds=round(time.monotonic() - began, 3), **measured
        )
    except BaseException as error:  # the commit's code may raise anything, SystemExit included
        traceback.print_exc()
        return dataclasses.replace(
            result, stage=getattr(error, "stage", stage), reason=_last_line(error), seconds=round(time.monotonic() - began, 3)
        )


LONGEST_REASON = 1000


def _last_line(error: BaseException) -> str:
    """``Type: message``, one printable line. The message is the commit's own and may be anything."""
    try:
        lines = f"{type(error).__name__}: {error}".strip().splitlines()
    except Exception:
        lines = []
    line = lines[-1] if lines else type(error).__name__
    return line[:LONGEST_REASON].encode("utf-8", "backslashreplace").decode()


class RankFailed(Exception):
    """The simulation of another rank than the first failed, at ``stage``."""

    def __init__(self, message: str, stage: str):
        super().__init__(message)
        self.stage = stage


def _measure(job: dict, on_stage) -> dict:
    tree = Path(job["tree"])
    finder = CommitFinder(tree, Path(job["bytecode"]))
    finder.install()
    os.chdir(tree)
    on_stage("import")
    recipe = recipe_of(job["recipe"])
    launched = isinstance(recipe, LaunchRecipe)
    if not launched and recipe.model.deterministic_mode:  # as Megatron-LM's launch scripts must: both packages insist on it
        os.environ["NVTE_ALLOW_NONDETERMINISTIC_ALGO"] = "0"
    for name in IMPORTS:
        importlib.import_module(name)
    if launched:
        script.prepare()
    source_files = _SourceFiles(tree)
    ranks = script.ranks(recipe) if launched else recipe.parallel.ranks or _distinct_ranks(recipe)
    measure = script.measure if launched else one_rank.measure
    measurements = []
    one_rank.Meter.snapshot = Path(job["snapshot"]) if job.get("snapshot") else None
    for rank in ranks[1:]:
        measurements.append(_in_fork(measure, recipe, rank, source_files))
    measurements.append(measure(recipe, ranks[0], source_files, on_stage))
    hottest = max(measurements, key=lambda m: m.peak_bytes)
    if job.get("snapshot"):
        _keep_snapshot(Path(job["snapshot"]), hottest.rank, ranks)
    return {
        "memory": _memory(recipe, measurements, hottest),
        "throughput": _throughput(measurements, recipe.gpus if launched else recipe.parallel.world_size),
        "provenance": finder.provenance(job["blobs"], versions(), hottest.attention_backend),
        "settings": hottest.settings,
        "notes": _notes(recipe, hottest.peak_bytes, [m.time for m in measurements]),
    }


def _keep_snapshot(path: Path, hottest: int, ranks: list[int]):
    for rank in ranks:
        if rank != hottest:
            one_rank.of_rank(path, rank).unlink()
    one_rank.of_rank(path, hottest).replace(path)


def versions() -> dict[str, str]:
    """Of what ran: the commit's own Megatron Core says its version itself."""
    core = getattr(sys.modules["megatron.core"], "__version__", None)
    return package_versions() | ({"megatron-core": str(core)} if core else {})


def recipe_of(data: dict) -> Recipe | LaunchRecipe:
    if "function" in data:
        return read_recipe_function(RecipeFunction(data["module"], data["function"]))
    if "megatron_args" in data:
        return LaunchRecipe.model_validate(data)
    return Recipe.model_validate(data)


def _distinct_ranks(recipe: Recipe) -> list[int]:
    """The first rank of each pipeline stage that can differ: first, second and last."""
    stages = recipe.parallel.pipeline_model_parallel_size
    per_stage = recipe.parallel.world_size // stages
    return [stage * per_stage for stage in sorted({0, 1, stages - 1}) if stage < stages]


def _in_fork(measure, recipe: Recipe | LaunchRecipe, rank: int, source_files) -> one_rank.RankMeasurement:
    """A process simulates one rank only: caches of workspaces and process groups would leak into the next."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        stages = ["build"]
        with os.fdopen(write, "wb") as stream:
            try:
                answer = measure(recipe, rank, source_files, stages.append)
            except BaseException as error:
                traceback.print_exc()
                answer = RankFailed, f"rank {rank}: {_last_line(error)}", stages[-1]
            pickle.dump(answer, stream)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        data = stream.read()
    os.waitpid(pid, 0)
    if not data:
        raise RuntimeError(f"the simulation of rank {rank} ended without an answer")
    answer = pickle.loads(data)
    if isinstance(answer, tuple):
        raise answer[0](*answer[1:])
    return answer


class _SourceFiles(dict):
    """Code object -> its path in the repository (or in the installed Megatron Core), None for other code."""

    def __init__(self, tree: Path):
        core = importlib.import_module("megatron.core").__file__
        self._prefixes = (str(tree) + os.sep, core[: core.rindex("megatron" + os.sep + "core")])

    def __missing__(self, code):
        name = code.co_filename
        prefix = next((p for p in self._prefixes if name.startswith(p)), None)
        inside = prefix is not None and (prefix == self._prefixes[0] or name.startswith(prefix + "megatron"))
        self[code] = path = name[len(prefix):] if inside else None
        return path


def _memory(recipe: Recipe, measurements, hottest) -> MemoryUse:
    return MemoryUse(
        peak_bytes=hottest.peak_bytes,
        by_rank={m.rank: m.peak_bytes for m in sorted(measurements, key=lambda m: m.rank)},
        by_category=hottest.by_category, allocated_bytes=hottest.allocated_bytes,
        first_peak_bytes=hottest.iteration_peaks[0], iteration_peaks=hottest.iteration_peaks, capacity_bytes=GPUS[recipe.hardware.gpu].memory_bytes,
        reserved_bytes=hottest.reserved_bytes, reserved_at_peak_bytes=hottest.reserved_at_peak_bytes, tensors=hottest.tensors,
    )


def _throughput(measurements: list[one_rank.RankMeasurement], gpus: int) -> Throughput:
    busiest = max(measurements, key=lambda m: m.flops)
    kinds, recomputed = whole_step([m.time for m in measurements])
    seconds = sum(kinds.values())
    flops_of = {m.time.stage: m for m in measurements}
    of_stages = [flops_of[time.stage] for time in stages([m.time for m in measurements])]
    executed, useful = (
        sum(count(m) for m in of_stages) / len(of_stages)
        for count in (lambda m: m.flops, lambda m: m.flops - m.recomputed_flops)
    )
    if busiest.model_flops is not None:
        useful = busiest.model_flops / gpus
    return Throughput(
        step_seconds=seconds, tflops_per_gpu=useful / seconds / 1e12, flops=busiest.flops,
        recomputed_flops=busiest.recomputed_flops, hardware_tflops_per_gpu=executed / seconds / 1e12,
        seconds_by_kind=dict(kinds), recomputed_seconds=recomputed,
    )


def _notes(recipe: Recipe, peak_bytes: int, times: list[StepTime]) -> tuple[str, ...]:
    gpu = GPUS[recipe.hardware.gpu]
    notes = [
        "Memory: simulated tensors of the training step, replayed through a model of PyTorch's caching allocator; NCCL "
        "buffers and the CUDA context are not counted.",
        f"Throughput is a model of {gpu.name}: kernels at {gpu.matmul_efficiency:.0%} of the dense peak or at the bandwidth of its "
        "memory, collectives at that of its links, the pipeline's bubble; the CPU is never late.",
    ]
    simulated, last = {time.stage for time in times}, times[0].stages - 1
    if not simulated >= {0, min(1, last), last}:
        notes.append("The step time takes the pipeline stages that were not simulated to be like those that were; leave ranks "
                     "out for one of each kind.")
    if peak_bytes > gpu.memory_bytes:
        notes.append(f"The peak exceeds the {gpu.memory_bytes / 2**30:.0f} GiB of {gpu.name}: there this step would run out "
                     "of memory.")
    return tuple(notes)


def main(job: dict, descriptor: int):
    """Runs in the fork: output goes to the log, stages and the result to the descriptor, one JSON document a line."""
    from pydantic import TypeAdapter

    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout, sys.stderr = (os.fdopen(fd, "w", buffering=1, errors="backslashreplace") for fd in (1, 2))
    with os.fdopen(descriptor, "w", buffering=1) as stream:
        def send(message):
            stream.write(json.dumps(message) + "\n")
            stream.flush()

        result = run(job, send)
        send({"result": TypeAdapter(ProbeResult).dump_python(result, mode="json")})
