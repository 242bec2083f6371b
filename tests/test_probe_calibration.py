"""The simulator against the peaks that NVIDIA measured on H100, each run with its own arguments."""

import json
import os

import pytest
from command_line import ROOT, call

from bisect_recompute.errors import UsageError
from bisect_recompute.probe.calibration import Case, read_cases, spread

CASES = ROOT / "fixtures" / "measured" / "h100.json"
CLONE = os.environ.get("BISECT_RECOMPUTE_MEGATRON_LM", "")
needs_clone = pytest.mark.skipif(not CLONE, reason="BISECT_RECOMPUTE_MEGATRON_LM names no Megatron-LM clone")


def case(**arguments) -> Case:
    return Case(case="gpt/one", megatron_args={f"--{k.replace('_', '-')}": v for k, v in arguments.items()}, measured={})


def test_spread_is_of_absolute_errors():
    # Percentiles of 1, 2, 3, 4 by linear interpolation: the median lies halfway, the 90th at rank 2.7.
    assert spread([-1.0, 4.0, None, -3.0, 2.0]) == {"median": 2.5, "p90": pytest.approx(3.7), "worst": 4.0}
    assert spread([None]) == {"median": None, "p90": None, "worst": None}


def test_the_number_of_gpus_is_stated_or_the_fewest_nodes_that_hold_the_layout():
    assert case(tensor_model_parallel_size=2).world_size == 8
    assert case(tensor_model_parallel_size=8, pipeline_model_parallel_size=8).world_size == 64
    # Experts are spread over the data parallel ranks: 16 of them with tensor parallel 1, in each of 4 stages.
    assert case(pipeline_model_parallel_size=4, expert_model_parallel_size=16).world_size == 64
    stated = case(micro_batch_size=2, global_batch_size=2)
    assert stated.model_copy(update={"nodes_gpus": [(1, 8)]}).world_size == 1  # one microbatch keeps one rank busy


def test_lists_and_flags_become_words():
    launch = case(bf16=True, fp16=False, recompute_modules="[layernorm mlp]", moe_layer_freq="([0]*3+[1]*12)").recipe().launch
    assert launch.arguments == ("--bf16", "--recompute-modules", "layernorm", "mlp", "--moe-layer-freq", "([0]*3+[1]*12)")


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "line 1: no JSON"), ("{}", "'cases' is missing"), ('{"cases": [{"case": "a"}]}', "cases.0.megatron_args")],
)
def test_a_file_that_holds_no_cases_says_so(tmp_path, text, says):
    path = tmp_path / "cases.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=says):
        read_cases(path)


@needs_clone
@pytest.mark.megatron_lm
def test_peaks_of_measured_runs(tmp_path):
    """Largest error allowed in percent; what has few separate allocations comes out to within kilobytes."""
    allowed = {
        "gpt/gpt3_7b_tp4_pp1_memory_speed": 0.005,
        "gpt/gpt3_mcore_reruns_resume_check_grads": 0.005,
        "gpt/gpt3_mcore_te_tp1_pp1_dist_optimizer_fim_dataset": 0.001,
        "gpt/gpt3_mcore_tp1_pp1_resume_torch_dist_dist_optimizer_overlap_grad_reduce_param_gather": 0.001,
        "gpt/gpt3_mcore_te_tp2_pp2_cross_entropy_loss_fusion": 0.6,
        "gpt/gpt3_mcore_te_tp2_pp2_cp2": 0.1,
        "gpt/gpt3_mcore_te_tp2_zp_z3_resume_fsdp_dtensor": 0.25,
        "moe/deepseek_proxy_fsdp_ep2_fsdp2_ep_overlap": 0.15,
        "bert/bert_mcore_tp1_pp2": 0.05,
        "bert/bert_mcore_tp2_pp2_resume_torch_dist": 0.001,
        "bert/bert_mcore_tp2_pp2_resume_torch_dist_local_spec": 0.005,
        "bert/bert_mcore_tp2_pp2_frozen_resume_torch_dist": 0.001,
        "bert/bert_release": 0.001,
        "t5/t5_11b_mcore_tp4_pp1": 0.05,
        "moe/gpt3_mcore_te_tp2_pp1_resume_torch_dist_te_8experts2parallel_dist_optimizer": 0.15,
        "hybrid/hybrid_mr_mcore_te_tp1_pp4_cp1_dgx_a100_1N8G": 0.05,
    }
    options = [word for name in allowed for word in ("--case", name)]
    revision = json.loads(CASES.read_text())["revision"]
    done = call("calibrate", CASES, "--repo", CLONE, "--revision", revision, *options, "--json", "--quiet", cwd=tmp_path,
                cache=tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    errors = {c["case"]: c["error_pct"] for c in document["cases"]}
    assert errors.keys() == allowed.keys()
    assert {name: error for name, error in errors.items() if error is None or abs(error) > allowed[name]} == {}
    assert document["ran"] == len(allowed) and document["median_abs_error_pct"] < 0.06


@needs_clone
@pytest.mark.megatron_lm
def test_megatron_fsdp_lets_go_of_gathered_parameters(tmp_path):
    """The norm of the parameters, which is logged, ends communication and frees what is gathered. The run was measured
    before 378d81fbd3 (May 2026), since which the bucket outside FSDP units stays: 13,436,928 bf16 numbers."""
    name = "gpt/gpt3_mcore_te_tp2_zp_z3_resume_fsdp_dtensor"
    stays = {}
    for revision in ("5fe3f06658", json.loads(CASES.read_text())["revision"]):
        done = call("calibrate", CASES, "--repo", CLONE, "--revision", revision, "--case", name, "--json", "--quiet",
                    cwd=tmp_path, cache=tmp_path / "cache")
        assert done.returncode == 0, done.stderr
        (only,) = json.loads(done.stdout)["cases"]
        stays[revision] = only["allocated_simulated_bytes"]
    before, now = stays.values()
    assert before == pytest.approx(only["allocated_measured_bytes"], rel=0.005)
    # Give or take a block that is up to 1 MiB larger than what it holds.
    assert now - before == pytest.approx(2 * 13_436_928, abs=2**20)


@needs_clone
@pytest.mark.megatron_lm
def test_overlap_through_user_buffers_on_gb200(tmp_path):
    """15 billion parameters, tensor parallel 4 with communication overlap, two interleaved pipeline stages. Buffers that
    Transformer Engine takes from CUDA itself count no more here than in the measured run."""
    cases = CASES.with_name("gb200.json")
    done = call("calibrate", cases, "--repo", CLONE, "--revision", json.loads(cases.read_text())["revision"], "--json",
                "--quiet", cwd=tmp_path, cache=tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    (only,) = json.loads(done.stdout)["cases"]
    assert abs(only["error_pct"]) < 0.05
    # Two of the allocator's smallest blocks: numbers that are logged.
    assert abs(only["allocated_simulated_bytes"] - only["allocated_measured_bytes"]) <= 1024
