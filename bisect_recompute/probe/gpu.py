"""The GPUs that a recipe may name, from NVIDIA's public data sheets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    name: str
    memory_bytes: int
    """What ``torch.cuda.get_device_properties`` reports as total memory, about the label's size."""
    bf16_tflops: float
    """Dense tensor-core peak in TFLOP/s."""
    compute_capability: tuple[int, int]
    multiprocessors: int


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("a100", 80 * 2**30, 312.0, (8, 0), 108),
        Gpu("h100", 80 * 2**30, 989.4, (9, 0), 132),
        Gpu("h200", 141 * 10**9, 989.4, (9, 0), 132),
        Gpu("b200", 180 * 10**9, 2250.0, (10, 0), 148),
        Gpu("gb200", 186 * 10**9, 2500.0, (10, 0), 152),
    )
}
