"""Probe results as plain data for tests of what is decided from them."""

from __future__ import annotations

from bisect_recompute.probe.result import LiveTensors, MemoryUse, ProbeResult, Provenance, Throughput

GIB = 2**30


def result(sha="a" * 40, peak=None, tflops=None, status="ok", **more) -> ProbeResult:
    """``peak`` in bytes, ``tflops`` in TFLOP/s/GPU; and more: ``tensors``, ``modules``, ``absent``, result fields."""
    memory = throughput = provenance = None
    if peak is not None:
        memory = MemoryUse(
            peak_bytes=peak,
            by_rank={0: peak},
            by_category=more.pop("categories", {"activations": peak}),
            allocated_bytes=peak // 2,
            first_peak_bytes=peak,
            capacity_bytes=80 * GIB,
            tensors=tuple(more.pop("tensors", ())),
        )
    if tflops is not None:
        throughput = Throughput(
            step_seconds=1.0, tflops_per_gpu=tflops, flops=tflops * 1e12, recomputed_flops=more.pop("recomputed", 0.0)
        )
    if "modules" in more:
        provenance = Provenance(
            more.pop("modules"), tuple(more.pop("absent", ())), {"torch": "2.13.0"}, "worktree", "fused"
        )
    fields = {
        "stage": "done" if status in ("ok", "oom") else "import",
        "reason": "",
        "seconds": 2.0,
        "command": "probe",
    }
    return ProbeResult(
        revision=sha, status=status, memory=memory, throughput=throughput, provenance=provenance, **(fields | more)
    )


def tensors(module, shape, count, file="megatron/core/mlp.py", line=1, dtype="bfloat16") -> LiveTensors:
    size = 2 if dtype == "bfloat16" else 4
    for dim in shape:
        size *= dim
    return LiveTensors(module, tuple(shape), dtype, size * count, count, file, line, "activations")
