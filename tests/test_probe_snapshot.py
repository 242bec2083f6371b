"""The memory snapshot of a probe, read by PyTorch's own tools."""

import pickle

from simulation import recipe
from torch.cuda import _memory_viz


def test_the_trace_reaches_the_peak_and_ends_at_what_stays(simulator, tmp_path):
    (tmp_path / "tree").mkdir()
    file = tmp_path / "step.pickle"
    result = simulator.probe(recipe("tiny"), tmp_path / "tree", "0" * 40, {}, tmp_path / "log", snapshot=file)
    snapshot = pickle.loads(file.read_bytes())
    allocated, peak, living = 0, 0, {}
    for event in snapshot["device_traces"][0]:
        if event["action"] == "alloc":
            assert event["addr"] not in living  # nothing is given out twice
            living[event["addr"]] = event["size"]
            allocated += event["size"]
        elif event["action"] == "free_completed":
            allocated -= living.pop(event["addr"])
        peak = max(peak, allocated)
    assert peak == result.memory.peak_bytes
    assert sum(segment["total_size"] for segment in snapshot["segments"]) == allocated
    frames = [event["frames"][0]["filename"] for event in snapshot["device_traces"][0]]
    assert "megatron/core/tensor_parallel/layers.py" in frames

    assert "MEM[" in _memory_viz.trace(snapshot) and "allocated" in _memory_viz.segsum(snapshot)
    assert "<html>" in _memory_viz.trace_plot(snapshot).lower()
    assert [path.name for path in tmp_path.glob("step.pickle*")] == ["step.pickle"]
