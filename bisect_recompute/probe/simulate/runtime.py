"""Prepares a process so that PyTorch and Transformer Engine believe in the recipe's GPU. Independent of the commit."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
import typing
from pathlib import Path

ENVIRONMENT = {
    "NVTE_PROJECT_BUILDING": "1",  # Transformer Engine: do not load the CUDA libraries
    "NVTE_FRAMEWORK": "pytorch",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",  # Megatron Core demands it for sequence parallelism on Hopper
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "1",
}
# Installed packages that Megatron Core or Transformer Engine would pick up, and whose kernels nobody has described.
HIDDEN = ("flash_attn_3", "amp_C", "fused_layer_norm_cuda", "grouped_gemm",
          "deep_ep", "fla", "flashinfer")


def prepare(gpu):
    """Imports torch and Transformer Engine with stand-ins for the CUDA side; about 3 s, once per warm process."""
    os.environ.update(ENVIRONMENT)
    for name in HIDDEN:
        sys.modules[name] = None
    if not hasattr(typing, "override"):  # Megatron Core since 2026 uses it; Python has it since 3.12
        typing.override = lambda method: method
    import torch

    torch.set_num_threads(1)
    importlib.import_module("torch._dynamo")  # indexes torch's functions when it is imported, so before they change
    from bisect_recompute.probe.simulate import (
        apex_kernels,
        cuda,
        device,
        flash_attention,
        mamba_kernels,
        moved_names,
        placeholders,
        transformer_engine_torch,
    )

    device.install_tensor_properties()
    cuda.install(gpu)
    transformer_engine_torch.install(_names_used())
    apex_kernels.install()
    flash_attention.install()
    mamba_kernels.install()
    placeholders.install()
    _import_transformer_engine()
    moved_names.install()


def _import_transformer_engine():
    """Its package loads the compiled extension on import; ``common`` is made ready first, so that it does not."""
    spec = importlib.util.find_spec("transformer_engine")
    package = importlib.util.module_from_spec(spec)
    sys.modules["transformer_engine"] = package
    common = importlib.import_module("transformer_engine.common")
    common.load_framework_extension = lambda framework: None
    spec.loader.exec_module(package)
    importlib.import_module("transformer_engine.pytorch")


def _names_used() -> frozenset[str]:
    """Names of the extension that Transformer Engine's Python code mentions; star imports need each of them to exist."""
    folder = Path(importlib.metadata.distribution("transformer_engine").locate_file("transformer_engine/pytorch"))
    names = set()
    for path in folder.rglob("*.py"):
        text = path.read_text(encoding="utf-8", errors="replace")
        if "transformer_engine_torch" in text or "cpp_extensions" in text:
            names.update(re.findall(r"\btex\.([A-Za-z]\w*)", text))
            for block in re.findall(r"from transformer_engine_torch import\s*(\([^)]*\)|[^\n]*)", text):
                names.update(re.findall(r"[A-Za-z]\w*", block))
    return frozenset(names)


def package_versions() -> dict[str, str]:
    versions = {}
    for name in ("torch", "transformer-engine", "megatron-core"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
