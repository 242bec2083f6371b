"""One rank of a real training run, started by torchrun: builds the recipe's model with the commit's own Megatron Core, as
the simulated probe does, and trains it. Says what happens, one JSON document a line, in ``rank<N>.jsonl``.

    torchrun ... worker.py JOB.json
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import math
import os
import re
import resource
import signal
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist

from bisect_recompute.probe.simulate import child, model, model_flops, step
from bisect_recompute.probe.simulate.imports import CommitFinder
from bisect_recompute.probe.torchrun import cpu


class NotANumber(Exception):
    """The loss is NaN or infinite."""


class Meter:
    """Times iterations and reads the allocator's counters after each; ``say`` reports."""

    def __init__(self, say, gpu: bool):
        self._say, self._gpu = say, gpu
        self.stage, self._iteration = "build", 0

    def begin(self):
        self._began = time.perf_counter()
        if self._gpu:
            torch.cuda.reset_peak_memory_stats()

    def enter(self, phase: str):
        self.stage = "optimizer" if phase == "step" else phase
        if not self._iteration:
            self._say(stage=self.stage)

    def take(self, losses: list):
        for loss in losses:  # of the last pipeline stage's microbatches
            total, tokens = loss["lm loss"].tolist()
            if not math.isfinite(total / max(tokens, 1)):
                raise NotANumber(f"the loss is {total / max(tokens, 1)} in iteration {self._iteration + 1}")

    def end_iteration(self, last_follows: bool):
        if self._gpu:
            torch.cuda.synchronize()
        seconds, self._iteration = time.perf_counter() - self._began, self._iteration + 1
        gc.collect()
        peak = {"peak": torch.cuda.max_memory_allocated()} if self._gpu else {}
        self._say(iteration=self._iteration, seconds=seconds, **peak)
        self.begin()


def train(job: dict, rank: int, meter: Meter, gpu: bool) -> dict:
    finder = CommitFinder(Path(job["tree"]), Path(job["bytecode"]))
    finder.install()
    os.chdir(job["tree"])
    meter.enter("import")
    for name in child.IMPORTS:
        importlib.import_module(name)
    recipe = child.recipe_of(job["recipe"])
    if recipe.parallel.world_size != int(os.environ["WORLD_SIZE"]):
        raise model.RecipeMismatch(f"the recipe is for {recipe.parallel.world_size} ranks")
    meter.enter("build")
    dist.init_process_group("nccl")
    model.initialize_parallel(recipe)
    config = model.transformer_config(recipe)
    chunks = model.wrap_data_parallel(recipe, config, model.build_chunks(recipe, config))
    optimizer = model.build_optimizer(recipe, chunks)
    step.connect(config, recipe, chunks, optimizer)
    meter.begin()
    step.train(recipe, config, chunks, optimizer, meter, [recipe.num_microbatches] * job["iterations"], _tokens(recipe))
    if not any(inner.optimizer.state for inner in getattr(optimizer, "chained_optimizers", [optimizer])):
        raise RuntimeError(f"no optimizer step was taken in {job['iterations']} iterations: there is no optimizer state")
    flops = model_flops.of(recipe, config)
    found = {"resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "settings": model.plain_settings(config)}
    if gpu:
        free, total = torch.cuda.mem_get_info()
        found |= {"reserved": torch.cuda.max_memory_reserved(), "allocated": torch.cuda.memory_allocated(),
                  "in_use": total - free, "capacity": total, "gpu": torch.cuda.get_device_name(),
                  "flops": flops / recipe.parallel.world_size if flops else None}
    if rank == 0:
        found["provenance"] = asdict(finder.provenance(job["blobs"], child.versions(), recipe.model.attention_backend or "auto"))
    return found


def _tokens(recipe):
    """Random ones, the same on all ranks of a tensor or pipeline parallel group; small enough to be positions as well."""
    from megatron.core import parallel_state

    generator = torch.Generator().manual_seed(parallel_state.get_data_parallel_rank())
    below = min(recipe.model.vocab_size, recipe.training.seq_length)
    return lambda recipe, shape: torch.randint(0, below, shape, generator=generator).cuda()


def failure(error: BaseException, stage: str, gpu: bool) -> dict:
    """What kind of end it is, with the numbers of an allocation that failed (bytes)."""
    lines = f"{type(error).__name__}: {error}".strip().splitlines() or [type(error).__name__]
    text = lines[-1] if len(lines) == 1 else lines[0]
    stages = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    stage = "backward" if stage == "forward" and {"backward_step", "_engine_run_backward"} & set(stages) else stage
    told = {"kind": _kind(error, stage), "text": text[:1000], "stage": stage}
    if told["kind"] == "oom":
        asked = re.search(r"you tried to allocate (\d+) bytes", str(error))
        told["asked"] = int(asked[1]) if asked else _size(str(error))
        if gpu:
            told |= {"allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved()}
    return told


def _kind(error: BaseException, stage: str) -> str:
    text = str(error)
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in text:
        return "oom"
    if isinstance(error, NotANumber) or re.search(r"found (?:nan|NaN) in|result (?:nan|inf)\b", text):  # Megatron Core's own checks
        return "NaN"
    if isinstance(error, ImportError):
        return "import error"
    if "NCCL" in text:
        return "NCCL error"
    if isinstance(error, dist.DistError) or re.search(r"gloo|Connection (closed|reset) by peer", text):
        return "gloo error"
    if stage == "build" and isinstance(error, (ValueError, AssertionError, model.RecipeMismatch)):
        return "validation error"
    return "error"


def _size(text: str) -> int | None:
    found = re.search(r"Tried to allocate ([\d.]+) (KiB|MiB|GiB)", text)
    return round(float(found[1]) * {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[found[2]]) if found else None


def main(path: str):
    job, rank = json.loads(Path(path).read_text()), int(os.environ["RANK"])
    out = Path(path).parent
    with open(out / f"rank{rank}.jsonl", "w", buffering=1) as file, open(out / f"rank{rank}.stack", "w") as stacks:
        faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)

        def say(**what):
            file.write(json.dumps({"time": time.time(), **what}) + "\n")

        say(pid=os.getpid())
        gpu = torch.cuda.is_available()
        if gpu:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        else:
            cpu.install()
        meter = Meter(say, gpu)
        status = 0
        try:
            say(result=train(job, rank, meter, gpu))
        except BaseException as error:  # the commit's code may raise anything, SystemExit included
            traceback.print_exc()
            say(failure=failure(error, meter.stage, gpu))
            status = 1
        sys.stdout.flush(), sys.stderr.flush()
    os._exit(status)  # a rank whose peers are gone would wait for them


if __name__ == "__main__":
    main(sys.argv[1])
