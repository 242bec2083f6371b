from dataclasses import replace

import pytest
from findings import commits, findings, sha
from probe_results import GIB, result, tensors
from pydantic import ValidationError

from bisect_recompute.differ.evidence import CommitChanges, SettingChange, SourceChange
from bisect_recompute.probe.recipe import RecipeFunction
from bisect_recompute.verdict.decide import decide
from bisect_recompute.verdict.verdict import Verdict, verdict_schema

FOUND = dict(sides={-1: "good", 0: "good", 1: "bad", 3: "bad"}, culprit=1, last_good=0, suspects=(1,))


def texts(verdict: Verdict, kind: str) -> list[str]:
    return [e.text for e in verdict.evidence if e.kind == kind]


def test_culprit_with_the_numbers_of_its_own_two_sides():
    verdict = decide(findings({-1: 100 * GIB, 0: 102 * GIB, 1: 110 * GIB, 3: 110 * GIB}, **FOUND))
    assert verdict.outcome == "culprit"
    assert (verdict.culprit.commit, verdict.culprit.last_good, verdict.culprit.subject) == (sha(1), sha(0), "commit 1")
    memory = verdict.metrics.memory
    assert (memory.good, memory.bad, memory.shifted) == (102 * GIB, 110 * GIB, True)
    assert memory.change_pct == pytest.approx(100 * 8 / 102)
    assert (verdict.metrics.throughput.good, verdict.metrics.throughput.shifted) == (None, False)
    assert verdict.range.model_dump() == {
        "good": sha(-1),
        "bad": sha(3),
        "commits": 4,
        "repository": "project",
        "first_parent": True,
    }


def test_says_what_part_of_the_endpoints_shift_the_culprit_explains():
    verdict = decide(findings({-1: 100 * GIB, 0: 102 * GIB, 1: 110 * GIB, 3: 110 * GIB}, **FOUND))
    assert texts(verdict, "endpoints") == [
        "memory from 1111111111 to 5555555555: 100.00 GiB -> 110.00 GiB (+10.00 GiB, +10.0 %)"
    ]
    assert texts(verdict, "share") == [
        "this commit moves memory by +8.00 GiB, 80% of the +10.00 GiB between the endpoints; "
        "other commits of the range move the rest"
    ]
    assert verdict.confidence == 0.8


def test_no_share_is_told_when_the_culprit_explains_it_all():
    verdict = decide(findings({-1: 100, 0: 100, 1: 110, 3: 110}, **FOUND))
    assert texts(verdict, "share") == [] and verdict.confidence == 1.0


def test_no_shift():
    verdict = decide(findings({-1: 100 * GIB, 3: 100 * GIB}))
    assert (verdict.outcome, verdict.culprit, verdict.cause.kind) == ("no-shift", None, "unknown")
    assert (verdict.metrics.memory.good, verdict.metrics.memory.bad, verdict.metrics.memory.change_pct) == (
        100 * GIB,
        100 * GIB,
        0.0,
    )


def test_a_shift_the_other_way_is_told_though_it_was_not_asked_for():
    verdict = decide(findings({-1: 100 * GIB, 3: 90 * GIB}))
    assert verdict.outcome == "no-shift"
    assert texts(verdict, "endpoints") == [
        "memory from 1111111111 to 5555555555: 100.00 GiB -> 90.00 GiB "
        "(-10.00 GiB, -10.0 %), no shift for this question"
    ]


def test_endpoint_that_cannot_be_probed():
    verdict = decide(findings({-1: 100, 3: "failed"}))
    assert (verdict.outcome, verdict.confidence, verdict.metrics.memory.bad) == ("endpoint-failed", 0.0, None)
    assert texts(verdict, "failure") == ["the bad endpoint cannot be probed: failed at import: ImportError: x"]


def test_inconclusive_lists_the_suspects_and_why_they_are_left():
    verdict = decide(
        findings(
            {-1: 100, 0: 100, 1: "timeout", 2: "failed", 3: 200},
            suspects=(3, 1, 2),
            sides={-1: "good", 0: "good", 1: "skip", 2: "skip", 3: "bad"},
        )
    )
    assert (verdict.outcome, verdict.suspects) == ("inconclusive", [sha(1), sha(2), sha(3)])
    assert texts(verdict, "skipped") == [
        "could not be measured: timeout at import: ImportError: x",
        "could not be measured: failed at import: ImportError: x",
    ]
    assert verdict.probes.skipped == 2 and verdict.confidence == pytest.approx(0.333)


def test_counts_probes_run_and_reused():
    measured = [result(sha(i), peak=p) for i, p in ((-1, 100), (0, 100), (3, 200))]
    f = findings(
        {-1: 100, 0: 100, 3: 200},
        sides=FOUND["sides"],
        culprit=1,
        last_good=0,
        suspects=(1,),
        results={1: measured[2], 2: measured[2]},
        probes_run=tuple(measured),
    )
    probes = decide(f).probes
    assert (probes.run, probes.reused, probes.seconds) == (3, 2, 6.0)


def test_categories_and_recomputed_work_at_the_culprit():
    good = result(sha(0), peak=100, tflops=10, recomputed=1e12, categories={"activations": 60, "parameters": 40})
    bad = result(
        sha(1), peak=110, tflops=9, recomputed=3e12, categories={"activations": 75, "parameters": 40, "temporary": -5}
    )
    f = findings(
        {}, **FOUND, results={-1: replace(good, revision=sha(-1)), 0: good, 1: bad, 3: replace(bad, revision=sha(3))}
    )
    assert texts(decide(f), "category") == ["at the peak: activations +15 bytes, temporary -5 bytes"]
    assert texts(decide(f), "flops") == ["recomputed work per step and GPU goes from 1.0 to 3.0 TFLOP"]


def changed(index, kinds, changes=(), source=()):
    return CommitChanges(commits(4).commits[index], kinds, changes, source)


SETTING = SettingChange("recipes.llama:pretrain", "recompute_modules", ["mlp"], None, "recipes/llama.py", 12)
DEFAULT = SettingChange("TransformerConfig", "recompute_method", None, "block", "megatron/core/c.py", 3)
SITE = SourceChange("megatron/core/x.py", "Block.forward", "checkpoint-site", 7, "the checkpoint moves")


@pytest.mark.parametrize(
    "changes, kind",
    [
        ([], "other-source"),
        ([changed(0, ("default",))], "other-source"),
        ([changed(1, ("none",))], "other-source"),
        ([changed(1, ("recipe-value",), (SETTING,))], "other-source"),
        ([changed(1, ("default",), (DEFAULT,))], "setting"),
        ([changed(1, ("checkpoint-site",), (), (SITE,))], "recompute-source"),
        ([changed(1, ("submodule",))], "dependency"),
        ([changed(1, ("plumbing",))], "other-source"),
    ],
)
def test_kind_of_cause_is_what_the_differ_says_of_the_culprit(changes, kind):
    f = findings({-1: 100, 0: 100, 1: 110, 3: 110}, **FOUND, changes=tuple(changes))
    assert decide(f).cause.kind == kind


def test_a_default_that_the_recipe_states_itself_is_not_the_cause():
    default = SettingChange("TransformerConfig", "bias_activation_fusion", True, False, "megatron/core/c.py", 3)
    f = findings({-1: 100, 0: 100, 1: 110, 3: 110}, **FOUND, changes=(changed(1, ("default",), (default,)),))
    assert (decide(f).cause.kind, decide(f).cause.changes) == ("other-source", [])


def with_settings(before: dict, after: dict, **more):
    """The culprit's two sides, with the settings that their code ended up with."""
    sides = {
        index: result(sha(index), peak=peak, settings=settings)
        for index, peak, settings in ((-1, 100, before), (0, 100, before), (1, 110, after), (3, 110, after))
    }
    return findings({}, **FOUND, results=sides, **more)


def test_a_setting_that_the_code_ended_up_with_is_the_cause_though_no_diff_shows_it():
    verdict = decide(with_settings({"recompute_method": None, "new": 1}, {"recompute_method": "block"}))
    assert verdict.cause.kind == "setting"
    assert texts(verdict, "setting") == ["as the commit's code ran: recompute_method None -> 'block'"]


def test_a_default_that_did_not_reach_the_probe_is_not_the_cause():
    same = {"recompute_method": "block"}
    verdict = decide(with_settings(same, same, changes=(changed(1, ("default",), (DEFAULT,)),)))
    assert (verdict.cause.kind, verdict.cause.changes) == ("other-source", [])
    moved = decide(with_settings({"recompute_method": None}, same, changes=(changed(1, ("default",), (DEFAULT,)),)))
    assert [c.field for c in moved.cause.changes] == ["recompute_method"]


def test_recompute_settings_are_told_before_others():
    size = replace(SETTING, field="micro_batch_size", old=1, new=2)
    f = findings(
        {-1: 100, 0: 100, 1: 110, 3: 110},
        **FOUND,
        recipe=RecipeFunction("recipes.llama", "pretrain"),
        changes=(changed(1, ("recipe-value",), (size, SETTING)),),
    )
    assert [c.field for c in decide(f).cause.changes] == ["recompute_modules", "micro_batch_size"]


def test_of_a_probed_recipe_function_only_its_own_changes_are_the_cause():
    other = replace(SETTING, recipe="recipes.llama:other")
    f = findings(
        {-1: 100, 0: 100, 1: 110, 3: 110},
        **FOUND,
        recipe=RecipeFunction("recipes.llama", "pretrain"),
        changes=(changed(1, ("recipe-value",), (other, SETTING)),),
    )
    assert [c.model_dump() for c in decide(f).cause.changes] == [
        {
            "recipe": "recipes.llama:pretrain",
            "field": "recompute_modules",
            "old": ["mlp"],
            "new": None,
            "file": "recipes/llama.py",
            "line": 12,
        }
    ]


@pytest.mark.parametrize(
    "changes, found",
    [
        ((replace(SETTING, recipe="recipes.llama:other"),), []),
        ((replace(SETTING, recipe="recipes.llama.llama3:pretrain"),), ["recipes.llama.llama3:pretrain"]),
        ((DEFAULT, replace(SETTING, recipe="recipes.llama:other")), ["TransformerConfig"]),
    ],
)
def test_other_recipes_are_no_cause_but_defaults_and_other_paths_to_the_function_are(changes, found):
    f = findings(
        {-1: 100, 0: 100, 1: 110, 3: 110},
        **FOUND,
        recipe=RecipeFunction("recipes.llama", "pretrain"),
        changes=(changed(1, ("recipe-value",), changes),),
    )
    assert [c.recipe for c in decide(f).cause.changes] == found
    assert decide(f).cause.kind == ("setting" if found else "other-source")


def test_every_commit_that_touches_recompute_is_in_the_evidence():
    f = findings(
        {-1: 100, 0: 100, 1: 110, 3: 110},
        **FOUND,
        changes=(changed(0, ("none",)), changed(2, ("checkpoint-site",), (), (SITE,))),
    )
    found = [e for e in decide(f).evidence if e.kind == "recompute-change"]
    assert [(e.commit, e.text, e.kinds) for e in found] == [
        (sha(2), "checkpoint-site: megatron/core/x.py:7 Block.forward", ["checkpoint-site"])
    ]


def test_what_a_reader_must_know_is_told():
    f = findings({-1: 100, 3: 100}, notes=("what the commits change could not be read: RecursionError: deep",))
    assert texts(decide(f), "note") == ["what the commits change could not be read: RecursionError: deep"]


def test_tensors_that_appear_are_named_at_their_line():
    before = tensors("decoder.layers.*.mlp", (4096, 1, 3584), 80, line=10)
    after = tensors("decoder.layers.*.mlp", (4096, 1, 3584), 160, line=12)
    good, bad = result(sha(0), peak=100, tensors=[before]), result(sha(1), peak=110, tensors=[after])
    f = findings({-1: 100, 3: 110}, **FOUND, results={0: good, 1: bad})
    (tensor,) = decide(f).cause.tensors
    assert (tensor.count, tensor.bytes, tensor.line) == (80, 80 * 4096 * 3584 * 2, 12)


def test_dump_is_what_the_schema_and_the_contract_say():
    dump = decide(findings({-1: 100, 0: 100, 1: 110, 3: 110}, **FOUND)).dump()
    assert dump["schema"] == "bisect-recompute/verdict/1"
    assert {
        "outcome",
        "range",
        "culprit",
        "suspects",
        "metrics",
        "cause",
        "confidence",
        "probes",
        "evidence",
    } <= dump.keys()
    assert dump["culprit"].keys() >= {"commit", "subject", "author", "date", "repository", "via"}
    assert dump["cause"].keys() == {"kind", "changes", "tensors", "counterfactual"}
    schema = verdict_schema()
    assert set(dump) <= set(schema["properties"])
    assert schema["properties"]["schema"]["const"] == "bisect-recompute/verdict/1"
    assert Verdict.model_validate(dump).dump() == dump
    with pytest.raises(ValidationError):
        Verdict.model_validate(dump | {"outcome": "guilty"})
