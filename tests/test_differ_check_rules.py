"""Each rule of check on settings written for it; the other way round, settings that are fine."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_recompute.differ.rules.check import check
from bisect_recompute.differ.rules.literals import UNKNOWN, evaluate, holds
from bisect_recompute.differ.rules.settings import Setting, precision_fields
from bisect_recompute.differ.source.conditions import when


def rules(found, *kinds):
    return {f.rule for f in found if not kinds or f.kind in kinds}


def run(unknown=(), **values):
    fields = {name: Setting("set", value, "recipe.py", 7) for name, value in values.items()}
    fields.update({name: Setting("unknown") for name in unknown})
    return check(fields, None)


FOUND = {
    "modules-without-selective": dict(recompute_granularity=None, recompute_modules=["mlp"]),
    "method-or-count-without-full": dict(
        recompute_granularity="selective", recompute_modules=["mlp"], recompute_num_layers=2
    ),
    "layer-count-without-cpu-offloading": dict(cpu_offloading_num_layers=95),
    "offload-modules-without-offloading": dict(offload_modules=["core_attn"], fine_grained_activation_offloading=False),
    "selective-of-nothing": dict(recompute_granularity="selective", recompute_modules=[]),
    "module-inside-module": dict(recompute_granularity="selective", recompute_modules=["moe", "moe_act"]),
    "mlp-on-moe-layers": dict(
        recompute_granularity="selective", recompute_modules=["mlp"], num_moe_experts=8, moe_layer_freq=1
    ),
    "core-attention-already-fused": dict(
        recompute_granularity="selective",
        recompute_modules=["core_attn"],
        attention_backend="flash",
        transformer_impl="transformer_engine",
    ),
    "one-unit": dict(
        recompute_granularity="full",
        recompute_method="uniform",
        recompute_num_layers=16,
        num_layers=32,
        pipeline_model_parallel_size=2,
    ),
    "full-without-method": dict(recompute_granularity="full", recompute_method=None, recompute_num_layers=1),
    "full-without-count": dict(recompute_granularity="full", recompute_method="block", recompute_num_layers=None),
    "full-with-partial-cuda-graphs": dict(
        recompute_granularity="full",
        recompute_method="uniform",
        recompute_num_layers=1,
        cuda_graph_impl="transformer_engine",
        cuda_graph_scope=["attn"],
    ),
    "distributed-activations-with-sequence-parallel": dict(distribute_saved_activations=True, sequence_parallel=True),
    "cpu-offloading-with-pipeline": dict(cpu_offloading=True, pipeline_model_parallel_size=2),
    "cpu-offloading-with-recompute": dict(
        cpu_offloading=True, recompute_granularity="selective", recompute_modules=["mlp"]
    ),
    "moe-with-expert-parallel-overlap": dict(
        recompute_granularity="selective", recompute_modules=["moe"], overlap_moe_expert_parallel_comm=True
    ),
    "full-with-expert-parallel-overlap": dict(
        recompute_granularity="full",
        recompute_method="uniform",
        recompute_num_layers=1,
        overlap_moe_expert_parallel_comm=True,
    ),
    "shared-experts-with-overlap": dict(
        recompute_granularity="selective", recompute_modules=["shared_experts"], moe_shared_expert_overlap=True
    ),
    "discarding-with-delayed-fp8": dict(
        recompute_granularity="selective", recompute_modules=["layernorm"], fp8="hybrid", fp8_recipe="delayed"
    ),
}


@pytest.mark.parametrize("rule", FOUND)
def test_a_rule_finds_its_case_and_says_where_and_how_to_mend_it(rule):
    found = run(**FOUND[rule])
    assert rules(found) == {rule}
    (finding,) = found
    assert finding.fix and finding.source and set(finding.fields) & set(FOUND[rule])
    assert (finding.file, finding.line) == ("recipe.py", 7)


@pytest.mark.parametrize("rule", FOUND)
def test_nothing_is_claimed_about_what_is_not_known(rule):
    assert run(unknown=FOUND[rule]) == []


FINE = [
    {},
    dict(recompute_granularity=None, recompute_modules=None),
    dict(recompute_granularity=None, recompute_modules=[]),
    dict(recompute_granularity="selective", recompute_modules=["mlp", "layernorm"]),
    dict(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1, cuda_graph_impl="none"),
    dict(
        recompute_granularity="full",
        recompute_method="uniform",
        recompute_num_layers=1,
        cuda_graph_impl="local",
        cuda_graph_scope=["full_iteration"],
    ),
    dict(
        recompute_granularity="full",
        recompute_method="uniform",
        recompute_num_layers=1,
        cuda_graph_impl="full_iteration",
    ),
    dict(cpu_offloading=True, cpu_offloading_num_layers=4, pipeline_model_parallel_size=1, recompute_granularity=None),
    dict(cpu_offloading_num_layers=0),
    dict(offload_modules=[]),
    dict(fine_grained_activation_offloading=True, offload_modules=["core_attn"]),
    dict(recompute_granularity="selective", recompute_modules=["mlp"], num_moe_experts=8, moe_layer_freq=[0, 1, 1]),
    dict(recompute_granularity="selective", recompute_modules=["layernorm"], fp8="hybrid", fp8_recipe="tensorwise"),
    dict(distribute_saved_activations=False, sequence_parallel=True),
]


@pytest.mark.parametrize("values", FINE, ids=range(len(FINE)))
def test_sound_settings_are_left_alone(values):
    assert run(**values) == []


def test_selective_without_modules_is_told_as_what_it_means():
    (finding,) = run(recompute_granularity="selective", recompute_modules=None)
    assert finding.kind == "note" and "core_attn" in finding.message


@pytest.mark.parametrize(
    "name, fp8, recipe",
    [
        ("bf16_with_fp8_delayed_scaling_mixed", "hybrid", "delayed"),
        ("bf16_with_fp8_current_scaling_mixed", "hybrid", "tensorwise"),
        ("bf16_with_mxfp8_mixed", "e4m3", "mxfp8"),
        ("bf16_mixed", None, None),
    ],
)
def test_precision_recipes_by_name(name, fp8, recipe):
    found = precision_fields(name)
    assert found["fp8"].value == fp8
    assert recipe is None or found["fp8_recipe"].value == recipe


NAMES = ("a", "b", "modules")
VALUES = {"a": [True, False, UNKNOWN], "b": [1, 2, UNKNOWN], "modules": [["mlp"], [], UNKNOWN]}


def expressions():
    leaf = st.sampled_from(
        ["a", "b == 1", "b > 1", "'mlp' in modules", "len(modules) > 0", "b in (2, 3)", "model.b != 2"]
    )
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            inner.map(lambda x: f"not ({x})"),
            st.tuples(inner, inner).map(lambda p: f"({p[0]}) and ({p[1]})"),
            st.tuples(inner, inner).map(lambda p: f"({p[0]}) or ({p[1]})"),
        ),
        max_leaves=6,
    )


@given(expressions(), st.tuples(*(st.sampled_from(VALUES[n]) for n in NAMES)))
def test_a_definite_answer_holds_whatever_the_unknown_values_are(source, chosen):
    values = dict(zip(NAMES, chosen))
    answer = holds(when(ast.parse(source, mode="eval").body), values.__getitem__)
    plain = source.replace("model.b", "b")
    worlds = [{}]
    for name in NAMES:
        options = [values[name]] if values[name] is not UNKNOWN else [v for v in VALUES[name] if v is not UNKNOWN]
        worlds = [{**w, name: v} for w in worlds for v in options]
    truths = {bool(eval(plain, {}, w)) for w in worlds}
    if answer is not None:
        assert truths == {answer}
    elif UNKNOWN not in chosen:
        raise AssertionError("all values are known")


@pytest.mark.parametrize(
    "source",
    [
        "__import__('os').system('x')",
        "a.b.c()",
        "[x for x in modules]",
        "lambda: 1",
        "1 /",
        "(" * 300,
        "modules[0]",
        "f'{a}'",
        "a < 'x'",
        "b in 3",
    ],
)
def test_anything_but_a_comparison_of_fields_is_not_known(source):
    assert evaluate(source, {"a": 1, "b": 2, "modules": []}.get) is UNKNOWN
