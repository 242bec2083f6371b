"""Step time on a named GPU: against arithmetic on shapes and data sheets, and what NVIDIA says of recomputation."""

from types import SimpleNamespace

import pytest
from simulation import recipe

from bisect_recompute.probe.gpu import GPUS
from bisect_recompute.probe.simulate import links
from bisect_recompute.probe.simulate.streams import Stream, on
from bisect_recompute.probe.simulate.timeline import Timeline

H100 = GPUS["h100"]
KINDS = {"matmul", "memory_bound", "communication", "bubble"}


@pytest.fixture(scope="module")
def throughput(simulate):
    known = {}

    def run(name, **changes):
        key = repr((name, changes))
        if key not in known:
            known[key] = simulate(recipe(name, **changes)).throughput
        return known[key]

    return run


def test_a_step_is_the_sum_of_what_it_spends_time_on(throughput):
    step = throughput("llama3-8b")
    assert step.seconds_by_kind.keys() <= KINDS
    assert sum(step.seconds_by_kind.values()) == pytest.approx(step.step_seconds)


def test_model_flops_are_those_of_the_shapes(throughput):
    """Llama 3 8B, 4096 tokens: three times the products of a forward pass, half of the attention's square."""
    step = throughput("llama3-8b")
    layers, hidden, ffn, kv, sequence, vocabulary, batch, gpus = 32, 4096, 14336, 1024, 4096, 128256, 64, 8
    per_layer = 2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * ffn + sequence * hidden
    per_token = layers * per_layer + hidden * vocabulary
    useful = 3 * 2 * per_token * sequence * batch / gpus
    assert step.tflops_per_gpu == pytest.approx(useful / step.step_seconds / 1e12, rel=1e-6)
    # Beside it, backward through fused attention computes the scores once more: one of its five products.
    again = 2 * layers * sequence * hidden / 2 * sequence * batch / gpus
    assert step.flops == pytest.approx(useful + again, rel=1e-3)
    assert step.hardware_tflops_per_gpu == pytest.approx(step.flops / step.step_seconds / 1e12)


def test_products_and_attention_run_at_the_rates_of_the_gpu(throughput):
    """Attention: 2 products of [4096, 4096] per head forward, 5 backward, half of them masked."""
    step, layers, hidden, sequence, batch, gpus = throughput("llama3-8b"), 32, 4096, 4096, 64, 8
    attention = 7 * 2 * layers * hidden * sequence / 2 * sequence * batch / gpus
    at_peak = (step.flops - attention) / H100.matmul_efficiency + attention / H100.attention_efficiency
    assert step.seconds_by_kind["matmul"] == pytest.approx(at_peak / 989.4e12, rel=0.01)


def test_layers_are_alike(throughput):
    """One layer more is one more forward, backward and update."""
    seconds = [throughput("llama3-8b", model={"num_layers": n}).step_seconds for n in (2, 3, 4)]
    assert seconds[2] - seconds[1] == pytest.approx(seconds[1] - seconds[0], rel=0.02)


def test_full_recompute_costs_what_nvidia_says(throughput):
    """Megatron Bridge's documentation: about 30 % more for each layer (performance guide, activation recomputation)."""
    full = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    base, all_again = throughput("llama3-8b"), throughput("llama3-8b", model=full)
    assert 1.24 < all_again.step_seconds / base.step_seconds < 1.38
    assert all_again.recomputed_seconds == pytest.approx(all_again.step_seconds - base.step_seconds, rel=0.05)
    assert all_again.tflops_per_gpu / base.tflops_per_gpu == pytest.approx(base.step_seconds / all_again.step_seconds)
    assert all_again.hardware_tflops_per_gpu > all_again.tflops_per_gpu * 1.25


@pytest.mark.parametrize(("modules", "least", "most"), [(["core_attn"], 1.005, 1.08), (["mlp"], 1.1, 1.28)])
def test_selective_recompute_costs_its_modules(throughput, modules, least, most):
    again = throughput("llama3-8b", model={"recompute_granularity": "selective", "recompute_modules": modules})
    ratio = again.step_seconds / throughput("llama3-8b").step_seconds
    assert least < ratio < most
    assert again.recomputed_seconds / throughput("llama3-8b").step_seconds == pytest.approx(ratio - 1, rel=0.1)


def test_the_bubble_is_one_microbatch_on_each_other_stage(throughput):
    """(stages - 1) / microbatches of the time of all microbatches, were the stages alike, whatever their number."""

    def step(batch):
        parallel = {
            "pipeline_model_parallel_size": 2, "tensor_model_parallel_size": 1, "sequence_parallel": False,
            "data_parallel_size": 1,
        }
        few_layers, training = {"num_layers": 4}, {"global_batch_size": batch}
        return throughput("llama3-8b", model=few_layers, parallel=parallel, training=training)

    few, many = step(8), step(32)
    assert few.seconds_by_kind["bubble"] == pytest.approx(many.seconds_by_kind["bubble"], rel=0.01)
    # The last stage has the vocabulary as well: the first waits for it, and itself takes less than it.
    of_one = (many.step_seconds - few.step_seconds) / 24
    assert 0.2 * of_one < few.seconds_by_kind["bubble"] < of_one


def test_stages_that_were_not_simulated_are_said(simulate):
    notes = {}
    for ranks in ([0], [0, 4]):
        parallel = {"pipeline_model_parallel_size": 2, "data_parallel_size": 2, "ranks": ranks}
        notes[len(ranks)] = " ".join(simulate(recipe("llama3-8b", model={"num_layers": 2}, parallel=parallel)).notes)
    assert "stages that were not simulated" in notes[1] and "stages that were not simulated" not in notes[2]


def test_overlapped_collectives_of_data_parallelism_cost_less(throughput):
    overlap = {"overlap_grad_reduce": True, "overlap_param_gather": True}
    many = {"parallel": {"data_parallel_size": 8}, "training": {"global_batch_size": 32}, "model": {"num_layers": 4}}
    plain = throughput("llama3-8b", **many)
    overlapped = throughput("llama3-8b", **{**many, "training": many["training"] | overlap})
    assert overlapped.seconds_by_kind["communication"] < 0.8 * plain.seconds_by_kind["communication"]
    assert overlapped.seconds_by_kind["matmul"] == pytest.approx(plain.seconds_by_kind["matmul"])


def test_the_faster_gpu_is_faster(throughput):
    h100, b200 = (throughput("llama3-8b", model={"num_layers": 4}, hardware={"gpu": gpu}) for gpu in ("h100", "b200"))
    products = [step.seconds_by_kind["matmul"] for step in (h100, b200)]
    assert 1.9 < products[0] / products[1] < 2250 / 989.4
    assert h100.step_seconds / b200.step_seconds == pytest.approx(2.2, abs=0.3)


# --- links -----------------------------------------------------------------------------------------------------------

GIB = 2**30


def test_a_ring_moves_all_but_its_own_part():
    inside = links.ring(H100, list(range(8)), 0, GIB)
    assert inside == pytest.approx(7 / 8 * GIB / 370.8e9, rel=0.01)
    assert links.ring(H100, list(range(8)), 0, GIB, rounds=2) == pytest.approx(2 * inside, rel=0.01)


def test_between_nodes_each_gpu_of_the_group_brings_an_adapter():
    one_a_node = links.ring(H100, list(range(0, 64, 8)), 0, GIB)
    assert one_a_node == pytest.approx(7 / 8 * GIB / 50e9, rel=0.01)
    two_a_node = links.ring(H100, [r for r in range(64) if r % 8 < 2], 0, GIB)
    assert two_a_node == pytest.approx(15 / 16 * GIB / 100e9, rel=0.01)
    assert links.ring(GPUS["gb200"], list(range(64)), 0, GIB) == pytest.approx(63 / 64 * GIB / 721.8e9, rel=0.05)


def test_an_all_to_all_waits_for_its_slower_links():
    assert links.all_to_all(H100, list(range(8)), 0, GIB) == pytest.approx(7 / 8 * GIB / 370.8e9, rel=0.01)
    assert links.all_to_all(H100, list(range(16)), 0, GIB) == pytest.approx(8 / 16 * GIB / 50e9, rel=0.01)


def test_a_small_message_costs_its_latency():
    assert links.ring(H100, list(range(8)), 0, 8) == pytest.approx(6.6e-6 + 7 * 0.6e-6, rel=0.01)


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.name)
def test_every_gpu_names_its_source(gpu):
    assert "NVIDIA" in gpu.source and "data sheet" in gpu.source
    assert gpu.tflops["bf16"] < gpu.tflops.get("fp8", 1e9) and 0.7 < gpu.matmul_efficiency < 0.9


# --- streams ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def timeline(monkeypatch):
    """Of a forward pass on an H100, from time 0."""
    main = Stream()
    monkeypatch.setattr(Stream, "main", main)
    monkeypatch.setattr(Stream, "current", main)
    timeline = Timeline(H100, SimpleNamespace(phase="forward"))  # of the memory tracker, the phase alone
    timeline.counting = True
    return timeline


MILLISECOND_OF_BYTES = 3350e6
MILLISECOND_OF_FLOPS = 1e-3 * 989.4e12 * 0.803


def test_a_kernel_is_bound_by_flops_or_bytes_or_its_launch(timeline):
    timeline.kernel(MILLISECOND_OF_FLOPS, MILLISECOND_OF_BYTES / 2)
    timeline.kernel(MILLISECOND_OF_FLOPS, MILLISECOND_OF_BYTES * 2)
    timeline.kernel(0, 512)
    assert timeline.microbatches == pytest.approx({"matmul": 1e-3, "memory_bound": 2e-3 + 3.8e-6})
    assert Stream.main.time == pytest.approx(3e-3 + 3.8e-6)


def test_copies_of_another_stream_run_beside_and_are_waited_for(timeline):
    side = Stream()
    with on(side):
        timeline.kernel(0, 3 * MILLISECOND_OF_BYTES)
    timeline.kernel(MILLISECOND_OF_FLOPS, 0)
    assert (side.time, Stream.main.time) == pytest.approx((3e-3, 1e-3))
    side.record_event().wait()
    assert timeline.microbatches == pytest.approx({"matmul": 1e-3, "communication": 2e-3})


def test_products_of_two_streams_share_the_gpu(timeline):
    timeline.kernel(MILLISECOND_OF_FLOPS, 0)
    with on(Stream()):
        timeline.kernel(MILLISECOND_OF_FLOPS, 0)
    timeline.kernel(MILLISECOND_OF_FLOPS, 0)
    assert timeline.microbatches == pytest.approx({"matmul": 3e-3})


def test_a_collective_within_a_product_shows_what_outlasts_it(timeline):
    timeline.kernel(MILLISECOND_OF_FLOPS, 0, link=0.4e-3)
    assert timeline.microbatches == pytest.approx({"matmul": 1e-3})
    timeline.kernel(MILLISECOND_OF_FLOPS, 0, link=1.4e-3)
    assert timeline.microbatches == pytest.approx({"matmul": 2e-3, "communication": 0.4e-3})


def test_the_optimizer_is_counted_once_a_step(timeline):
    timeline.kernel(0, MILLISECOND_OF_BYTES)
    timeline.tracker.phase = "step"
    timeline.kernel(0, 2 * MILLISECOND_OF_BYTES)
    assert timeline.microbatches["memory_bound"] == pytest.approx(1e-3)
    assert timeline.once["memory_bound"] == pytest.approx(2e-3)
