"""Reads what a repository's own tests recorded: Megatron-LM's golden values."""

from __future__ import annotations

import difflib
import json
import math
import re
import statistics
import time
from dataclasses import dataclass

from bisect_recompute.errors import UsageError
from bisect_recompute.history.repository import Repository
from bisect_recompute.probe.recipe import Thresholds
from bisect_recompute.probe.result import MemoryUse, ProbeResult, Provenance, Throughput

FILE = re.compile(r"(?:.*/)?golden_values[^/]*\.json")
NOTE = "recorded by the repository's own tests: what changed a value can be older than the commit that recorded it"


@dataclass(frozen=True)
class GoldenRecipe:
    """A file of recorded values."""

    path: str
    """In the repository."""
    thresholds: Thresholds = Thresholds()

    @property
    def name(self) -> str:
        return "/".join(self.path.split("/")[-2:])

    def stated_fields(self) -> set[str]:
        return set()


def find_golden(spec: str, repository: Repository, revision: str) -> GoldenRecipe:
    """By path of the file or of the test case's folder, or by the last parts of either.

    Raises UsageError: nothing there, or several (they are listed).
    """
    paths = sorted(path for path in repository.tree(revision) if FILE.fullmatch(path))
    wanted = "/" + spec.strip("/")
    found = [path for path in paths if f"/{path}".endswith(wanted)]
    found = found or [path for path in paths if f"/{path.rpartition('/')[0]}".endswith(wanted)]
    if len(found) == 1:
        return GoldenRecipe(found[0])
    if found:
        raise UsageError(
            f"--recipe {spec} has {len(found)} files of golden values at {revision[:10]}, say which: {', '.join(found)}"
        )
    names = {path.split("/")[-2]: path for path in paths if "/" in path}
    near = difflib.get_close_matches(spec.rpartition("/")[2], names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    if not paths:
        hint = f": {repository.name} has no file golden_values*.json there"
    raise UsageError(f"no golden values of {spec} at {revision[:10]}{hint}")


def read_golden(repository: Repository, recipe: GoldenRecipe, sha: str, command: str) -> ProbeResult:
    """The peak of ``mem-max-allocated-bytes`` and the median ``iteration-time`` of the later half of the steps.

    Nothing is executed. Failed where the commit has no such file, or the file neither of the two.
    """
    began = time.monotonic()
    blob = repository.tree(sha).get(recipe.path)
    memory, throughput, reason = None, None, f"{recipe.path} is not there at this commit"
    if blob is not None:
        memory, throughput, reason = _values(repository.read_blob(blob))
    measured = memory is not None or throughput is not None
    return ProbeResult(
        revision=sha,
        status="ok" if measured else "failed",
        stage="done" if measured else "checkout",
        reason="" if measured else reason,
        seconds=time.monotonic() - began,
        command=command,
        probe="golden",
        memory=memory,
        throughput=throughput,
        provenance=Provenance({recipe.path: blob}, (), {}, "", "") if measured else None,
        notes=(NOTE,) if measured else (),
    )


def _values(content: bytes | None) -> tuple[MemoryUse | None, Throughput | None, str]:
    """And why there is neither."""
    if content is None:
        return None, None, "the clone lacks the file: it is a partial clone"
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return None, None, "the file is no JSON"
    if not isinstance(data, dict):
        return None, None, "the file records no values by name"
    peaks, times = _series(data.get("mem-max-allocated-bytes")), _series(data.get("iteration-time"))
    allocated = _series(data.get("mem-allocated-bytes"))
    memory = throughput = None
    if peaks:
        memory = MemoryUse(
            peak_bytes=int(max(peaks)),
            first_peak_bytes=int(peaks[0]) if len(peaks) > 1 else None,
            allocated_bytes=int(allocated[-1]) if allocated else None,
        )
    # Until 2024 the mean was recorded.
    mean = _number(data.get("iteration_timing_avg"))
    if times or mean:
        throughput = Throughput(step_seconds=statistics.median(times[len(times) // 2 :]) if times else mean)
    return memory, throughput, "the file has neither mem-max-allocated-bytes nor iteration-time"


def _series(entry: object) -> list[float]:
    """By step, oldest first; "nan" stands for steps that were not logged.

    The forms over time: ``{"values": [...]}``, ``{"values": {"1": ..., "5": ...}}``, one number.
    """
    values = entry.get("values") if isinstance(entry, dict) else [entry]
    if isinstance(values, dict):
        steps = [step for step in values if step.isdecimal()]
        values = [values[step] for step in sorted(steps, key=int)]
    numbers = map(_number, values) if isinstance(values, list) else ()
    return [number for number in numbers if number is not None]


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if math.isfinite(value) and value > 0 else None
