"""Metrics and failures in the output of a training run, read line by line in bounded memory."""

from __future__ import annotations

import re
import statistics
from collections import deque

from bisect_recompute.probe.result import MemoryUse, Throughput

MIB = 2**20
KEPT_STEPS = 20_000
TRACEBACK = 200
"""Lines before an error that can tell the stage."""
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_NUMBER = r"([\d.,]*\d(?:[eE][-+]?\d+)?)"
# Megatron-LM and Megatron Bridge log milliseconds; Bridge's "Step Time" and NeMo's train_step_timing are seconds.
_STEP_MS = re.compile(rf"elapsed time per iteration \(ms\): {_NUMBER}")
_STEP_S = re.compile(rf"(?:Step Time : |train_step_timing in s: ){_NUMBER}")
_TFLOPS = re.compile(rf"(?:throughput per GPU \(TFLOP/s/GPU\): |GPU utilization: ){_NUMBER}")
_MEMORY = re.compile(
    rf"\[Rank (\d+)\] [^\[]*?memory \(MB\) \| allocated: {_NUMBER} \| max allocated: {_NUMBER} \| reserved: {_NUMBER} "
    rf"\| max reserved: {_NUMBER}(?=[\s\[]|$)"
)
_FAILURES = {
    "oom": re.compile(r"(?:OutOfMemoryError\b|CUDA out of memory)"),
    "import error": re.compile(r"^(?:.*: )?(?:ModuleNotFoundError|ImportError): "),
    "NaN": re.compile(r"(?:found (?:nan|NaN|NAN) in|result (?:nan|NaN)\b|number of nan iterations: +[1-9]|loss is (?:nan|NaN))"),
    "NCCL error": re.compile(r"(?:NCCL error|ncclSystemError|ncclUnhandledCudaError|collective operation timeout)"),
    "error": re.compile(r"^(?:\[?rank\d+\]?: ?)?[\w.]*(?:Error|Exception): "),
}
# Every line that one of the above matches has one of these; most lines of a long log have none.
_WORDS = (
    "per iteration (ms)", "Step Time", "train_step_timing", "throughput per GPU", "GPU utilization", "memory (MB)",
    "Error", "Exception", "out of memory", "nan", "NaN", "NAN", "NCCL error", "nccl", "operation timeout",
)
# The innermost of a recomputed forward is a forward: what encloses it is asked first.
_STAGES = {
    "optimizer": re.compile(r"in (?:step|step_with_ready_grads|prepare_grads)$|optimizer\.step"),
    "gradient sync": re.compile(r"finalize_model_grads|finish_grad_sync|start_grad_sync"),
    "backward": re.compile(r"backward"),
    "forward": re.compile(r"in (?:forward|forward_step)$"),
    "build": re.compile(r"get_model|model_provider|setup_model_and_optimizer"),
    "import": re.compile(r"^\s+(?:import|from) "),
}


class LogReader:
    """``line`` takes each line of the output, of all ranks in any order."""

    def __init__(self):
        self.seconds: deque[float] = deque(maxlen=KEPT_STEPS)
        self.tflops: deque[float] = deque(maxlen=KEPT_STEPS)
        self.peaks: dict[int, int] = {}
        """Rank -> ``max allocated`` in bytes; so is the next for ``max reserved``."""
        self.reserved: dict[int, int] = {}
        self.failures: dict[str, tuple[str, str]] = {}
        """Kind -> (stage, the first such line)."""
        self._before: deque[str] = deque(maxlen=TRACEBACK)

    def line(self, raw: str, cut: bool = False) -> None:
        """``cut``: the line has no end; its last number may lack digits, none is taken."""
        text = (_ANSI.sub("", raw) if "\x1b" in raw else raw).rstrip()
        if any(word in text for word in _WORDS):
            self._take(text, cut)
        self._before.append(text[:300])

    def _take(self, text: str, cut: bool) -> None:
        if not cut:
            self._measure(text)
        for kind, pattern in _FAILURES.items():
            if kind not in self.failures and pattern.search(text):
                self.failures[kind] = self._stage(), text[:1000]

    def _measure(self, text: str) -> None:
        for pattern, scale in ((_STEP_MS, 1e-3), (_STEP_S, 1.0)):
            self.seconds.extend(n * scale for n in map(number, pattern.findall(text)) if n)
        self.tflops.extend(n for n in map(number, _TFLOPS.findall(text)) if n)
        for rank, _, peak, _, reserved in _MEMORY.findall(text):
            _raise(self.peaks, int(rank), number(peak))
            _raise(self.reserved, int(rank), number(reserved))

    def memory(self) -> MemoryUse | None:
        if not self.peaks:
            return None
        hottest = max(self.peaks, key=self.peaks.get)
        return MemoryUse(self.peaks[hottest], dict(sorted(self.peaks.items())), reserved_bytes=self.reserved.get(hottest))

    def throughput(self) -> Throughput | None:
        """Medians over the later half of the steps: the first are warm-up."""
        if not self.seconds:
            return None
        return Throughput(_late(self.seconds), _late(self.tflops) if self.tflops else None)

    def failure(self) -> tuple[str, str, str] | None:
        """(kind, stage, what was said), the kind that explains most; None where nothing is known."""
        return next(((kind, *self.failures[kind]) for kind in _FAILURES if kind in self.failures), None)

    def _stage(self) -> str:
        return next((stage for stage, seen in _STAGES.items() if any(map(seen.search, self._before))), "run")


def number(text: str) -> float | None:
    """``1,234.5`` and ``1.234,5`` are the same, ``1234,5`` has a decimal comma. None for ``1,234``: it can mean either."""
    point, comma = text.rfind("."), text.rfind(",")
    if comma >= 0 and point < 0 and re.fullmatch(r"\d{1,3}(,\d{3})+", text):
        return None
    text = text.replace(",", "") if point > comma else text.replace(".", "").replace(",", ".")
    try:
        return float(text)
    except ValueError:
        return None


def _raise(known: dict[int, int], rank: int, mib: float | None) -> None:
    if mib:
        known[rank] = max(known.get(rank, 0), round(mib * MIB))


def _late(values: deque[float]) -> float:
    return statistics.median(list(values)[len(values) // 2 :])
