"""DTensors on the simulated GPU: only the part of this rank is memory."""

import json
import subprocess
import sys

PROGRAM = """
import json
from bisect_recompute.probe.gpu import GPUS
from bisect_recompute.probe.simulate import distributed, runtime
runtime.prepare(GPUS["h100"])
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from bisect_recompute.probe.simulate.device import SimulatedGpu
from bisect_recompute.probe.simulate.memory import MemoryTracker

class Files(dict):
    __missing__ = lambda self, code: None

SimulatedGpu.current = gpu = SimulatedGpu(MemoryTracker(Files()), GPUS["h100"])
tracker = gpu.tracker
with gpu:
    distributed.connect(7, 8)
    mesh = init_device_mesh("cuda", (8,))
    local = torch.empty(128, 64, dtype=torch.float32, device="cuda")
    start = tracker.peak = tracker.allocated
    sharded = DTensor.from_local(local, mesh, [Shard(0)])
    doubled = sharded * 2
    found = {"doubled": tracker.allocated - start, "shape": list(doubled.shape), "peak": tracker.peak - start}
    parameter = torch.nn.Parameter(sharded)
    parameter.grad = doubled
    optimizer = torch.optim.AdamW([parameter], capturable=False, foreach=False)
    before = tracker.allocated
    optimizer.step()
    found["state"] = tracker.allocated - before
print(json.dumps(found))
"""
PART = 128 * 64 * 4


def test_operators_and_optimizers_allocate_the_part_of_this_rank():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["shape"] == [8 * 128, 64]
    assert found["doubled"] == found["peak"] == PART
    assert found["state"] == 2 * PART  # both moments; the step counter is on the CPU
