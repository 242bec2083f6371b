"""Parallel layouts: any size, any rank, through the fake process group. Shapes by hand for the tiny recipe's kin."""

import pytest
from simulation import recipe

LLAMA = "llama3-8b"


def peak(result):
    return result.memory.peak_bytes


def test_each_pipeline_stage_keeps_as_many_microbatches_as_it_has_in_flight(simulate):
    """1F1B: stage i of 4 holds 4 - i microbatches when memory peaks, so the first is the hottest of equal stages."""
    piped = simulate(recipe(LLAMA, parallel={
        "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 4, "context_parallel_size": 1,
        "data_parallel_size": 1, "sequence_parallel": False,
    }, training={"global_batch_size": 8, "micro_batch_size": 1}))
    assert sorted(piped.memory.by_rank) == [0, 1, 3]
    assert piped.memory.peak_bytes == max(piped.memory.by_rank.values())
    first, second = piped.memory.by_rank[0], piped.memory.by_rank[1]
    assert first > second


def test_ranks_of_one_pipeline_stage_are_equal(simulate):
    layout = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "context_parallel_size": 1,
              "data_parallel_size": 2, "sequence_parallel": True}
    result = simulate(recipe("tiny", parallel={**layout, "ranks": list(range(8))}, training={"global_batch_size": 8}))
    ranks = result.memory.by_rank
    assert sorted(ranks) == list(range(8))
    assert len({ranks[r] for r in range(4)}) == 1
    assert len({ranks[r] for r in range(4, 8)}) == 1


def test_tensor_parallel_halves_what_it_shards(simulate):
    one = simulate(recipe("tiny")).memory
    two = simulate(recipe("tiny", parallel={"tensor_model_parallel_size": 2})).memory
    assert 0.5 <= two.by_category["parameters"] / one.by_category["parameters"] < 0.6


def test_distributed_optimizer_shards_its_state_over_data_parallel_ranks(simulate):
    training = {"use_distributed_optimizer": True, "global_batch_size": 32}
    one = simulate(recipe("tiny", training=training)).memory.by_category["optimizer_state"]
    eight = simulate(recipe("tiny", training=training, parallel={"data_parallel_size": 8})).memory
    assert eight.by_category["optimizer_state"] == pytest.approx(one / 8, rel=0.02)


def test_interleaved_pipeline_runs(simulate):
    result = simulate(recipe("tiny", model={"num_layers": 4}, parallel={
        "pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2,
    }, training={"global_batch_size": 8}))
    assert sorted(result.memory.by_rank) == [0, 1]


def test_context_parallel_halves_the_activations(simulate):
    base = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "data_parallel_size": 1,
            "sequence_parallel": False}
    one = simulate(recipe(LLAMA, parallel={**base, "context_parallel_size": 1})).memory.by_category["activations"]
    two = simulate(recipe(LLAMA, parallel={**base, "context_parallel_size": 2})).memory.by_category["activations"]
    assert two == pytest.approx(one / 2, rel=0.05)


def test_a_world_of_a_thousand_ranks_needs_one_process(simulate):
    result = simulate(recipe("tiny", parallel={"data_parallel_size": 1024, "ranks": [1023]},
                             training={"global_batch_size": 1024 * 4}))
    assert list(result.memory.by_rank) == [1023]
