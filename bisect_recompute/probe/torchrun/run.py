"""Trains a recipe for real at one commit, with torchrun on this machine's GPUs, and reads what every rank said.

Without a GPU it trains on the processor, with gloo: launch, code and step time are real, memory is the process's."""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

import bisect_recompute
from bisect_recompute.errors import UsageError
from bisect_recompute.probe.command.log import LogReader
from bisect_recompute.probe.command.run import NOT_DONE, Commands, run_words
from bisect_recompute.probe.recipe import LaunchRecipe, Recipe, RecipeFunction
from bisect_recompute.probe.result import MemoryUse, ProbeResult, Provenance, Throughput

WORKER = Path(__file__).with_name("worker.py")
STACK_DUMP = 3.0
"""Seconds that the ranks of a run that hangs have to write their stacks."""
COMMUNICATION = ("NCCL error", "gloo error")
"""What a rank says when another one has gone: that one is to blame."""


@dataclass(frozen=True)
class TorchrunSettings:
    nproc: int | None = None
    """Processes on this machine, one per GPU; None: as many as the recipe's world size."""
    iterations: int = 20
    """The first half is warm-up."""
    hang_after: float = 60.0
    """Seconds without a sign of life after which a run is ended."""

    def options(self) -> list[str]:
        given = ["--nproc", str(self.nproc)] if self.nproc else []
        return ["--probe", "torchrun", *given, "--iterations", str(self.iterations), "--hang-after", f"{self.hang_after:g}"]


def fitted(recipe: Recipe, nproc: int | None) -> Recipe:
    """The recipe on so many processes: data parallelism fills what tensor, context and pipeline parallelism leave, the
    number of microbatches stays. Raises UsageError."""
    p = recipe.parallel
    if nproc is None or nproc == p.world_size:
        return recipe
    least = p.world_size // p.data_parallel_size
    if nproc % least:
        raise UsageError(f"--nproc {nproc}: the recipe's tensor x context x pipeline parallel size is {least}; give a multiple of it")
    data = recipe.model_dump(exclude_unset=True)
    data.setdefault("parallel", {})["data_parallel_size"] = nproc // least
    data["training"]["global_batch_size"] = recipe.num_microbatches * recipe.training.micro_batch_size * (nproc // least)
    return Recipe.model_validate(data)


def run_torchrun(
    commands: Commands, settings: TorchrunSettings, recipe, tree: Path, blobs: Mapping[str, str], bytecode: Path, sha: str,
    log: Path, command: str,
) -> ProbeResult:
    """All that it started has ended when this returns or raises. Raises UsageError."""
    if isinstance(recipe, LaunchRecipe):
        raise UsageError("--probe torchrun trains model recipes; run a launch command of yours with --probe command")
    began = time.monotonic()
    if isinstance(recipe, RecipeFunction):
        data, nproc = {"function": recipe.function, "module": recipe.module}, settings.nproc or 1
    else:
        fitting = fitted(recipe, settings.nproc)
        data, nproc = fitting.model_dump(exclude_unset=True), fitting.parallel.world_size
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bisect-recompute-") as folder:
        out, reader = Path(folder), LogReader()
        job = {"recipe": data, "tree": str(tree.resolve()), "bytecode": str(bytecode), "blobs": dict(blobs), "iterations": settings.iterations}
        (out / "job.json").write_text(json.dumps(job))
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(nproc), "--max-restarts", "0",
                 str(WORKER), str(out / "job.json")]
        watch = _Watch(out, nproc, settings.hang_after)
        end = run_words(commands, words, out, out, log, reader, watch, _environment(recipe))
        ranks = [_Rank(out / f"rank{number}.jsonl", number) for number in range(nproc)]
        result = _judged(end, ranks, watch, reader, log, settings)
        if watch.hung:
            with open(log, "ab") as file:
                file.write(watch.stacks.encode("utf-8", "backslashreplace"))
    return replace(result, revision=sha, seconds=time.monotonic() - began, command=command)


def _environment(recipe) -> dict[str, str]:
    expandable = isinstance(recipe, Recipe) and recipe.expandable_segments
    paths = [str(Path(bisect_recompute.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "CUDA_DEVICE_MAX_CONNECTIONS": os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "1"),
        **({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if expandable else {}),
    }


class _Watch:
    """Asked while a run goes on, with the seconds since its last output: true when it hangs; the stacks are taken then."""

    def __init__(self, out: Path, nproc: int, limit: float):
        self._files = [out / f"rank{number}.jsonl" for number in range(nproc)]
        self._limit, self._seen, self._moved = limit, -1, time.monotonic()
        self.hung, self.stacks = False, ""

    def __call__(self, silent: float) -> bool:
        size = sum(file.stat().st_size for file in self._files if file.exists())
        if size != self._seen:
            self._seen, self._moved = size, time.monotonic()
        if min(silent, time.monotonic() - self._moved) < self._limit:
            return False
        self.hung, self.stacks = True, self._dumped()
        return True

    def _dumped(self) -> str:
        files = [(_Rank(file, number).pid, file.with_suffix(".stack")) for number, file in enumerate(self._files)]
        for pid, _ in files:
            if pid:
                try:
                    os.kill(pid, signal.SIGUSR1)
                except ProcessLookupError:
                    pass
        end = time.monotonic() + STACK_DUMP
        while time.monotonic() < end and not all(path.exists() and path.stat().st_size for pid, path in files if pid):
            time.sleep(0.05)
        time.sleep(0.2)
        return "".join(f"\nrank {number} hangs here:\n{path.read_text(errors='replace')}"
                       for number, (pid, path) in enumerate(files) if pid and path.exists())


class _Rank:
    """What one rank said."""

    def __init__(self, path: Path, number: int):
        self.number, self.pid, self.stage = number, None, "import"
        self.seconds: list[float] = []
        self.peaks: list[int] = []
        self.failure: dict | None = None
        self.result: dict | None = None
        for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
            try:
                said = json.loads(line)
            except ValueError:  # cut short by a kill
                continue
            self.pid, self.stage = said.get("pid", self.pid), said.get("stage", self.stage)
            if "failure" in said:
                self.failure = said["failure"] | {"time": said["time"]}
            self.result = said.get("result", self.result)
            if "iteration" in said:
                self.seconds.append(said["seconds"])
                self.peaks += [said["peak"]] if "peak" in said else []


def _judged(end: str | None, ranks: list[_Rank], watch: _Watch, reader: LogReader, log: Path, settings: TorchrunSettings) -> ProbeResult:
    """``end``: None where torchrun ended with 0."""
    stage = max((rank.stage for rank in ranks), key=_STAGES.index)
    blank = ProbeResult("", "failed", stage, "", 0.0, "", probe="torchrun", notes=_notes(ranks))
    if watch.hung:
        done = max(len(rank.seconds) for rank in ranks)
        return replace(blank, status="timeout", reason=f"hang: no sign of life for {settings.hang_after:g} s, {done} iterations done; the stacks of "
                       "all ranks are at the end of the log")
    if end is None and all(rank.result for rank in ranks):
        return replace(blank, status="ok", stage="done", **_measured(ranks))
    if end is not None and end.startswith(NOT_DONE):
        return replace(blank, status="timeout", reason=end)
    failed = sorted((rank for rank in ranks if rank.failure), key=lambda rank: (rank.failure["kind"] in COMMUNICATION, rank.failure["time"]))
    killed = _killed(log)
    if killed and (not failed or failed[0].failure["kind"] in COMMUNICATION):
        number, name = killed
        return replace(blank, reason=f"rank {number} was killed by {name}", by_machine=name == "SIGKILL")
    if not failed:
        found = reader.failure()
        return replace(blank, reason=found[2] if found else end or "a rank ended without a result")
    first = failed[0]
    if first.failure["kind"] == "oom":
        return replace(blank, status="oom", stage=first.failure["stage"], reason=_out_of_memory(first), memory=_bound(first))
    kind = "" if first.failure["kind"] == "error" else f"{first.failure['kind']}: "
    return replace(blank, stage=first.failure["stage"], reason=f"rank {first.number}: {kind}{first.failure['text']}")


_STAGES = ("import", "build", "forward", "backward", "optimizer")


def _bound(rank: _Rank) -> MemoryUse | None:
    """On a GPU: what it had and what it asked for; it needs at least that."""
    if rank.failure.get("allocated") is None:
        return None
    need = rank.failure["allocated"] + (rank.failure["asked"] or 0)
    return MemoryUse(need, {rank.number: need}, reserved_bytes=rank.failure["reserved"])


def _out_of_memory(rank: _Rank) -> str:
    told, parts = rank.failure, [f"rank {rank.number}: out of memory"]
    if told["asked"]:
        parts.append(f"asked for {told['asked'] / 2**20:,.0f} MiB")
    if told.get("allocated") is None:
        return ", ".join([*parts, "of the host's memory, as there is no GPU"])
    parts.append(f"{told['allocated'] / 2**20:,.0f} MiB were allocated, {told['reserved'] / 2**20:,.0f} MiB reserved")
    return f"{', '.join(parts)}: it needs at least {(told['allocated'] + (told['asked'] or 0)) / 2**20:,.0f} MiB"


def _killed(log: Path) -> tuple[int, str] | None:
    """(rank, signal) of the first in torchrun's list that ended so; with SIGTERM it ends the others itself."""
    text = log.read_bytes()[-20_000:].decode("utf-8", "replace")
    ends = re.findall(r"^\s*rank\s*: (\d+) .*\n\s*exitcode\s*: -(\d+) \(pid", text, re.M)
    found = next(((int(rank), int(number)) for rank, number in ends if int(number) != signal.SIGTERM), None)
    if found is None:
        return None
    try:
        return found[0], signal.Signals(found[1]).name
    except ValueError:
        return found[0], f"signal {found[1]}"


def _measured(ranks: list[_Rank]) -> dict:
    steps = [max(times) for times in zip(*(rank.seconds for rank in ranks))]  # all wait for the slowest
    seconds = statistics.median(steps[len(steps) // 2 :])
    flops, first = ranks[0].result.get("flops"), ranks[0].result
    return {
        "memory": _memory(ranks),
        "throughput": Throughput(seconds, flops / seconds / 1e12 if flops else None),
        "resident_bytes": {rank.number: rank.result["resident"] for rank in ranks},
        "provenance": TypeAdapter(Provenance).validate_python(first["provenance"]),
        "settings": first["settings"],
    }


def _memory(ranks: list[_Rank]) -> MemoryUse | None:
    """Peaks of the iterations that have optimizer state; None without a GPU."""
    if not all(rank.peaks for rank in ranks):
        return None
    by_rank = {rank.number: max(rank.peaks[1:]) for rank in ranks}
    hottest = max(ranks, key=lambda rank: by_rank[rank.number])
    return MemoryUse(
        by_rank[hottest.number], by_rank, allocated_bytes=hottest.result["allocated"], first_peak_bytes=hottest.peaks[0],
        capacity_bytes=hottest.result["capacity"], reserved_bytes=hottest.result["reserved"], iteration_peaks=tuple(hottest.peaks),
        device_bytes=hottest.result["in_use"],
    )


def _notes(ranks: list[_Rank]) -> tuple[str, ...]:
    gpu = next((rank.result["gpu"] for rank in ranks if rank.result and "gpu" in rank.result), None)
    if gpu:
        return (f"Trained on {gpu} with torchrun, {len(ranks)} ranks.",)
    return (f"Trained by torchrun with gloo on the processor, {len(ranks)} ranks: its step time is not a GPU's, and its memory is none of a GPU.",)
