"""The GPUs that a recipe may name, from vendors' data sheets (``gpus.yaml``)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Gpu:
    """Rates of one GPU: dense peaks in TFLOP/s, bandwidths in GB/s (10^9), links in one direction."""

    name: str
    source: str
    memory_bytes: int
    """What ``torch.cuda.get_device_properties`` reports as total memory, about the label's size."""
    compute_capability: tuple[int, int]
    multiprocessors: int
    tflops: dict[str, float]
    """Precision (bf16, fp16, fp8, fp4, fp32) -> peak."""
    matmul_efficiency: float
    """Share of the tensor cores' peak that large matrix products reach."""
    attention_efficiency: float
    """The same of fused attention."""
    hbm: float
    nvlink: float
    nvlink_domain: int
    """GPUs that reach each other over NVLink."""
    network: float
    host: float


def _read(path: Path) -> dict[str, Gpu]:
    entries = yaml.safe_load(path.read_text())
    return {
        name: Gpu(name=name, **{**entry, "compute_capability": tuple(entry["compute_capability"])})
        for name, entry in entries.items()
    }


GPUS = _read(Path(__file__).with_name("gpus.yaml"))
