"""Refusals read from source, against the configuration class of the installed Megatron Core itself."""

import dataclasses
import inspect
import re
import sys
import warnings

import pytest
from gitrepo import GitRepo
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from bisect_recompute.differ.rules.check import check
from bisect_recompute.differ.rules.settings import Setting
from bisect_recompute.differ.rules.validator import read_validator
from bisect_recompute.history.repository import Repository

LABELS = ["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts", "no_such"]
OFFLOAD = ["attn_norm", "core_attn", "attn_proj", "expert_fc1", "nothing"]
BASE = dict(num_layers=8, hidden_size=64, num_attention_heads=4, pipeline_dtype=None, params_dtype=None)


@pytest.fixture(scope="module")
def core():
    pytest.importorskip("torch")
    before = set(sys.modules)
    # The class needs no Transformer Engine, and its pure Python wheel refuses a plain import.
    sys.modules["transformer_engine"] = None
    try:
        yield pytest.importorskip("megatron.core.transformer.transformer_config")
    finally:
        for name in set(sys.modules) - before:
            if name.split(".")[0] in ("megatron", "transformer_engine"):
                del sys.modules[name]


@pytest.fixture(scope="module")
def validator(core, tmp_path_factory):
    from megatron.core import model_parallel_config

    repo = GitRepo(tmp_path_factory.mktemp("core"))
    sha = repo.commit(
        "installed",
        {
            "megatron/core/transformer/transformer_config.py": inspect.getsource(core),
            "megatron/core/model_parallel_config.py": inspect.getsource(model_parallel_config),
        },
    )
    return read_validator(Repository(repo.path), sha)


def test_labels_and_defaults_are_those_of_the_class(core, validator):
    fields = {f.name: f for f in dataclasses.fields(core.TransformerConfig)}
    for name in (
        "recompute_granularity",
        "recompute_modules",
        "cpu_offloading",
        "cpu_offloading_weights",
        "cuda_graph_impl",
    ):
        assert validator.defaults[name] == fields[name].default
    for label in validator.labels["recompute_modules"]:
        values = dict(
            recompute_granularity="selective", recompute_modules=[label], moe_grouped_gemm=True, num_moe_experts=2
        )
        if label != "mla_up_proj":
            assert raised(core, values) is None
    assert "Invalid choices" in str(
        raised(core, dict(recompute_granularity="selective", recompute_modules=["no_such"]))
    )


def raised(core, values):
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            core.TransformerConfig(
                **{**BASE, "params_dtype": torch.bfloat16, "pipeline_dtype": torch.bfloat16, **values}
            )
        except (ValueError, AssertionError) as error:
            return error
    return None


CHOICES = st.fixed_dictionaries(
    {},
    optional={
        "recompute_granularity": st.sampled_from([None, "full", "selective", "ful"]),
        "recompute_method": st.sampled_from([None, "uniform", "block", "unifrom"]),
        "recompute_num_layers": st.sampled_from([None, 1, 4]),
        "recompute_modules": st.one_of(st.none(), st.lists(st.sampled_from(LABELS), max_size=3, unique=True)),
        "distribute_saved_activations": st.booleans(),
        "sequence_parallel": st.booleans(),
        "tensor_model_parallel_size": st.sampled_from([1, 2]),
        "pipeline_model_parallel_size": st.sampled_from([1, 2]),
        "cpu_offloading": st.booleans(),
        "cpu_offloading_num_layers": st.sampled_from([0, 2, 8]),
        "fine_grained_activation_offloading": st.booleans(),
        "offload_modules": st.lists(st.sampled_from(OFFLOAD), max_size=3, unique=True),
        "moe_layer_recompute": st.booleans(),
    },
)


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=CHOICES)
def test_a_refusal_is_claimed_exactly_where_the_class_refuses(core, validator, values):
    complete = {**BASE, **values}
    fields = {
        name: Setting("set", value)
        for name, value in complete.items()
        if name not in ("params_dtype", "pipeline_dtype")
    }
    refused = [f for f in check(fields, validator, complete=True) if f.kind == "fails"]
    error = raised(core, values)
    # What has nothing to do with recompute or offload is not for check: sequence parallel without tensor parallel.
    assume(error is None or re.search("recomp|offload|activations", str(error), re.I))
    assert bool(refused) == (error is not None), (error, [f.message for f in refused])
