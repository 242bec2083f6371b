"""Recompute settings move the simulated peak by what the shapes say. Llama 3 70B, tensor parallel 8, bf16."""

import pytest
from simulation import recipe

LAYERS, SEQUENCE, HIDDEN, FFN, HEADS, GROUPS, HEAD_DIM, TP = 80, 4096, 8192, 28672, 64, 8, 128, 8
BF16, FP32 = 2, 4
RESIDUAL = SEQUENCE // TP * HIDDEN * BF16  # [s/tp, b, h]: sequence parallel


@pytest.fixture(scope="module")
def peak(simulate):
    known = {}

    def run(**model):
        key = repr(sorted(model.items()))
        if key not in known:
            known[key] = simulate(recipe("llama3-70b", model=model))
        return known[key]

    return run


def selective(*modules):
    return {"recompute_granularity": "selective", "recompute_modules": list(modules)}


def full(method, layers):
    return {"recompute_granularity": "full", "recompute_method": method, "recompute_num_layers": layers}


def saved(peak, **model):
    return peak().memory.peak_bytes - peak(**model).memory.peak_bytes


def test_full_saves_most_then_mlp_then_nothing(peak):
    peaks = [peak(**m).memory.peak_bytes for m in (full("uniform", 1), full("block", 40), selective("mlp"), {})]
    assert peaks[0] < peaks[2] < peaks[3]
    assert peaks[0] < peaks[1] < peaks[3]


def test_mlp_saves_what_its_two_products_and_its_norm_keep(peak):
    fc1_output = SEQUENCE * 2 * FFN // TP * BF16  # gate and up, side by side
    fc2_input = SEQUENCE * FFN // TP * BF16
    norm = RESIDUAL + SEQUENCE // TP * FP32  # normalised input and one 1/rms per row
    assert saved(peak, **selective("mlp")) == LAYERS * (fc1_output + fc2_input + norm)


def test_full_uniform_keeps_one_residual_a_layer(peak):
    qkv = SEQUENCE * (HEADS + 2 * GROUPS) * HEAD_DIM // TP * BF16
    rope = 4 * SEQUENCE * HEAD_DIM * BF16  # cosines and sines, for q and for k
    statistics = HEADS // TP * SEQUENCE * FP32 + 512  # of the softmax, and the generator's state (one block)
    kept = (
        2 * RESIDUAL  # input of each half
        + 2 * (RESIDUAL + SEQUENCE // TP * FP32)  # what each norm keeps beside it
        + SEQUENCE * 3 * FFN // TP * BF16  # linear_fc1's output and linear_fc2's input
        + qkv + SEQUENCE * HEADS * HEAD_DIM // TP * BF16  # q, k, v and the attention's output
        + rope + statistics
    )
    assert saved(peak, **full("uniform", 1)) == LAYERS * (kept - RESIDUAL)


def test_full_block_of_half_the_layers_saves_half(peak):
    assert saved(peak, **full("block", 40)) == pytest.approx(saved(peak, **full("uniform", 1)) / 2, rel=0.01)


def test_core_attn_saves_nothing_with_fused_attention(peak):
    assert saved(peak, **selective("core_attn")) == pytest.approx(0, abs=0.01 * peak().memory.peak_bytes)


def test_core_attn_saves_the_scores_with_unfused_attention(peak):
    scores = HEADS // TP * SEQUENCE * SEQUENCE * BF16
    unfused = {"attention_backend": "unfused"}
    without = peak(**unfused).memory.peak_bytes
    with_it = peak(**unfused, **selective("core_attn")).memory.peak_bytes
    assert without - with_it > (LAYERS - 2) * scores


def test_flash_attention_keeps_what_the_fused_kernel_keeps(peak):
    """In backward of one layer it holds dq and one number a row in fp32, and dk and dv of every query head."""
    flash, fused = peak(attention_backend="flash"), peak(attention_backend="fused")
    assert flash.provenance.attention_backend == "flash-attn 2.7.4.post1"
    assert flash.throughput.flops == fused.throughput.flops
    assert flash.memory.allocated_bytes == fused.memory.allocated_bytes
    rows = SEQUENCE * HEADS // TP
    assert 0 <= flash.memory.peak_bytes - fused.memory.peak_bytes <= rows * HEAD_DIM * (FP32 + 2 * BF16) + rows * FP32


def test_layernorm_saves_nothing_where_it_is_fused_into_the_linear(peak):
    assert saved(peak, **selective("layernorm")) == 0


def test_an_empty_list_recomputes_nothing(peak):
    assert saved(peak, **selective()) == 0


def test_recomputed_flops_show_as_throughput(peak):
    base, mlp, everything = peak().throughput, peak(**selective("mlp")).throughput, peak(**full("uniform", 1)).throughput
    tokens = 16 * SEQUENCE
    mlp_forward = 2 * tokens * 3 * HIDDEN * FFN // TP * LAYERS
    assert base.recomputed_flops == 0
    # linear_fc2's output is not needed to go back through it, but the checkpoint runs the whole module again
    assert mlp.recomputed_flops == mlp_forward
    assert everything.flops == base.flops + everything.recomputed_flops
    assert everything.tflops_per_gpu < mlp.tflops_per_gpu < base.tflops_per_gpu


def test_a_kept_gate_half_costs_one_tensor_a_layer(peak):
    """Without the fusion, SwiGLU keeps gate and up halves after the split, and more from core 0.15 on."""
    unfused = peak(bias_activation_fusion=False).memory.peak_bytes
    assert (unfused - peak().memory.peak_bytes) % (LAYERS * SEQUENCE * FFN // TP * BF16) == 0


@pytest.mark.parametrize("model", [selective("nonsense"), {"recompute_granularity": "full"}])
def test_settings_that_the_revision_refuses_fail_with_its_own_words(simulate, model):
    result = simulate(recipe("llama3-70b", model=model), expect="failed")
    assert result.stage == "build"
    assert "recompute" in result.reason


def test_the_result_holds_the_settings_that_the_code_ended_up_with(peak):
    """Unset modules under selective are filled by Megatron Core itself, as are shapes that follow from others."""
    settings = peak(recompute_granularity="selective").settings
    assert settings["recompute_modules"] == ["core_attn"]
    assert settings["kv_channels"] == HEAD_DIM
    assert settings["attention_backend"] == "auto"


def test_a_peak_beyond_the_gpu_is_a_number_with_a_warning(peak):
    """Unfused attention keeps the scores of 80 layers: far over the 80 GiB of an H100, and still comparable."""
    result = peak(attention_backend="unfused")
    assert result.memory.peak_bytes > 80 * 2**30 == result.memory.capacity_bytes
    assert any("run out of memory" in note for note in result.notes)
    assert not any("run out of memory" in note for note in peak().notes)
