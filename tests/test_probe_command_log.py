"""Lines of training runs, shaped after public logs of Megatron-LM, Megatron Bridge and NeMo."""

import tracemalloc

import pytest

from bisect_recompute.probe.command.log import MIB, LogReader, number

STEP = (
    " [2025-08-11 10:00:0{0}] iteration        {0}/      50 | consumed samples:          160 | "
    "elapsed time per iteration (ms): {1} | throughput per GPU (TFLOP/s/GPU): {2} | learning rate: 1.0E-04 | "
    "global batch size:    32 | lm loss: 1.04E+01 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
RANK = "[Rank {0}] (after 2 iterations) memory (MB) | allocated: 100.00 | max allocated: {1} | reserved: 900.00 | max reserved: {2}"


def read(*lines):
    reader = LogReader()
    for line in lines:
        reader.line(line)
    return reader


def test_megatron_lm():
    steps = [
        STEP.format(n, ms, tflops)
        for n, (ms, tflops) in enumerate([(9000.0, 10.0), (2000.0, 400.0), (1000.0, 500.0), (1200.0, 490.0)])
    ]
    reader = read(
        RANK.format(0, "300.00", "950.00"),
        *steps,
        RANK.format(8, "500.50", "990.00"),
        RANK.format(0, "320.00", "960.00"),
    )
    memory, throughput = reader.memory(), reader.throughput()
    assert memory.by_rank == {0: 320 * MIB, 8: round(500.5 * MIB)}
    assert (memory.peak_bytes, memory.reserved_bytes) == (round(500.5 * MIB), 990 * MIB), "of the hottest rank"
    assert (throughput.step_seconds, throughput.tflops_per_gpu) == (1.1, 495.0), "the first half is warm-up"
    assert reader.failure() is None


def test_megatron_bridge_and_nemo():
    assert read("Step Time : 2.34s GPU utilization: 812.3MODEL_TFLOP/s/GPU").throughput().step_seconds == 2.34
    line = "Training epoch 0, iteration 3/9 | lr: 1e-06 | reduced_train_loss: 11 | train_step_timing in s: 9.125 | consumed_samples: 8"
    throughput = read(line).throughput()
    assert (throughput.step_seconds, throughput.tflops_per_gpu) == (9.125, None)


def test_colours_ranks_in_one_line_and_lines_cut_short():
    reader = read(
        "\x1b[32m" + STEP.format(1, "\x1b[1m500.0\x1b[0m", "9.0") + "\x1b[0m\r",
        RANK.format(0, "300.00", "950.00") + RANK.format(1, "400.00", "950.00"),
        RANK.format(2, "500.00", "950.00")[:75],
    )
    assert reader.throughput().step_seconds == 0.5
    assert reader.memory().by_rank == {0: 300 * MIB, 1: 400 * MIB}, "rank 2 never reported in full"
    reader.line(" iteration 2/ 50 | elapsed time per iteration (ms): 12", cut=True)
    assert list(reader.seconds) == [0.5]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1234.5", 1234.5),
        ("1,234.5", 1234.5),
        ("1.234,5", 1234.5),
        ("1234,5", 1234.5),
        ("1.5E+02", 150.0),
        ("1,234", None),
        ("1.2.3", None),
    ],
)
def test_numbers(text, value):
    assert number(text) == value


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which "
    "1.05 GiB is free. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 5.00 GiB is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("lines", "kind", "stage"),
    [
        (
            [
                '  File "/w/megatron/core/transformer/mlp.py", line 9, in forward',
                "[rank3]: " + OOM,
                "NCCL error: aborted",
            ],
            "oom",
            "forward",
        ),
        (
            ['  File "/w/schedules.py", line 9, in backward_step', '  File "/w/mlp.py", line 9, in forward', OOM],
            "oom",
            "backward",
        ),
        (['  File "/w/optimizer.py", line 9, in step_with_ready_grads', OOM], "oom", "optimizer"),
        (["    import apex", "ModuleNotFoundError: No module named 'apex'"], "import error", "import"),
        (["AssertionError: Rank 0: found NaN in local grad norm for bucket #0"], "NaN", "run"),
        (["[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)"], "NCCL error", "run"),
        (["AssertionError: sequence length must be divisible"], "error", "run"),
    ],
)
def test_failures_are_told_apart(lines, kind, stage):
    found = read(*lines).failure()
    assert found[:2] == (kind, stage) and (found[2] in lines)


def test_memory_is_bounded():
    reader, line = LogReader(), STEP.format(1, "500.0", "9.0")
    tracemalloc.start()
    for _ in range(25_000):
        reader.line(line)
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert used < 4 * MIB, "20,000 steps of two numbers and 200 lines are kept"
