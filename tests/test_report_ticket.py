import json
import re
import shlex
from dataclasses import replace

import pytest
from findings import commits, findings, sha
from markdown_it import MarkdownIt
from probe_results import GIB, result, tensors
from test_measurement_journal import MANIFEST

from bisect_recompute.differ.evidence import CommitChanges, SettingChange
from bisect_recompute.measurement.journal import new_journal
from bisect_recompute.report.files import read_verdict, write_files, write_ticket
from bisect_recompute.report.ticket import LIMIT, ticket
from bisect_recompute.verdict.decide import decide

EVIL = "`x` <img src=x onerror=alert(1)> @octocat #1 | [a](http://evil.example) **b** \u202e\x1b[31m\n# injected"


def culprit(subject="Keep one more tensor", **more):
    span = commits(4, subject)
    before, after = (
        tensors("decoder.layers.*.mlp", (4096, 1, 3584), 80),
        tensors("decoder.layers.*.mlp", (4096, 1, 3584), 160),
    )
    results = {
        -1: result(sha(-1), peak=100 * GIB, tflops=400.0, tensors=[before]),
        0: result(sha(0), peak=100 * GIB, tflops=400.0),
        1: result(sha(1), peak=110 * GIB, tflops=400.0, tensors=[after], notes=("a note",)),
        3: result(sha(3), peak=110 * GIB, tflops=400.0),
    }
    fields = dict(
        range=span,
        results=results,
        probes_run=tuple(results.values()),
        culprit=1,
        last_good=0,
        suspects=(1,),
        sides={-1: "good", 0: "good", 1: "bad", 3: "bad"},
        reproduce="bisect-recompute run a..b",
        versions={"bisect-recompute": "0.1.0"},
    )
    return findings({}, **(fields | more))


def parse(markdown):
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(markdown)
    return tokens, [child for token in tokens for child in (token.children or [])]


def test_says_who_what_and_how_much():
    body = ticket(decide(culprit()), list(culprit().results.values()))
    assert body.startswith(f"# {sha(1)[:10]} is the first bad commit: memory +10.0 %\n")
    assert "| peak memory | 100.00 GiB | 110.00 GiB | +10.00 GiB, +10.0 % | **shifted** |" in body
    assert "| throughput | 400.0 TFLOP/s/GPU | 400.0 TFLOP/s/GPU | none |  |" in body
    # 160 tensors of 4096 x 1 x 3584 in bf16; the good neighbour has none of them in this test.
    assert "| +160 | 4096 x 1 x 3584 | `bfloat16` | `decoder.layers.*.mlp` | +4.38 GiB |" in body
    assert "```sh\nbisect-recompute run a..b\n```" in body
    assert f"| `{sha(3)[:10]}` | bad | 110.00 GiB | 400.0 TFLOP/s/GPU | 2.0 | `ok` |" in body
    tokens, _ = parse(body)
    assert sum(t.type == "table_open" for t in tokens) == 3


@pytest.mark.parametrize("form", ["github", "jira", "text"])
@pytest.mark.parametrize(
    "make",
    [
        culprit,
        lambda: findings({-1: 100, 3: 100}),
        lambda: findings({-1: 100, 3: "failed"}),
        lambda: findings(
            {-1: 100, 0: 100, 1: "failed", 3: 200}, sides={-1: "good", 0: "good", 1: "skip", 3: "bad"}, suspects=(1, 3)
        ),
    ],
)
def test_every_outcome_in_every_format(form, make):
    f = make()
    body = ticket(decide(f), list(f.results.values()), form=form)
    assert len(body) > 100 and "None" not in body and " ()" not in body
    assert "\n\n\n" not in body


def test_hostile_commit_text_stays_text():
    change = SettingChange(EVIL.replace(":", ""), EVIL, EVIL, [EVIL], EVIL, 1)
    f = culprit(EVIL, changes=(CommitChanges(commits(4, EVIL).commits[1], ("recipe-value",), (change,)),))
    f = replace(
        f,
        results=f.results
        | {
            1: replace(
                f.results[1],
                notes=(EVIL,),
                memory=replace(f.results[1].memory, tensors=(tensors(EVIL, (1,), 1, file=EVIL),)),
            )
        },
    )
    body = ticket(decide(f), [replace(r, reason=EVIL) for r in f.results.values()])
    tokens, inline = parse(body)
    outside = "".join(t.content for t in inline if t.type == "text")
    assert not {"link_open", "html_block"} & {t.type for t in inline}
    assert [t.attrs["src"] for t in inline if t.type == "image"] == ["range.svg"]
    assert {t.content for t in inline if t.type == "html_inline"} == {"<sub>", "</sub>"}
    for trace in ("octocat", "evil.example", "injected", "onerror"):
        assert trace in body and trace not in outside
    assert [t.content for i, t in enumerate(tokens) if i and tokens[i - 1].type == "heading_open"] == [
        f"{sha(1)[:10]} is the first bad commit: memory +10.0 %",
        "Cause: a setting changes",
        "Reproduce",
        "Evidence",
        "Probes",
    ]
    assert "\u202e" not in body and "\x1b" not in body
    for form in ("jira", "text"):
        told = ticket(decide(f), form=form)
        assert "\u202e" not in told and "\x1b" not in told and "\n# injected" not in told


def test_stays_under_githubs_limit_and_cuts_between_lines():
    many = tuple(
        CommitChanges(
            c,
            ("plumbing",),
            tuple(SettingChange("`" * 900, "f", "`" * 900, "`" * 900, "`" * 900, 1) for _ in range(40)),
        )
        for c in commits(4).commits
    )
    body = ticket(
        decide(culprit("`" * 3000, changes=many)),
        [result(f"{i:040x}", status="failed", reason="`" * 999) for i in range(300)],
    )
    assert len(body) < LIMIT
    _, inline = parse(body)
    assert "`" not in "".join(t.content for t in inline if t.type == "text")


def test_the_command_stands_in_jira_as_it_is_typed():
    call = ["bisect-recompute", "run", "a..b", "--repo", "/home/a_b-c/{code}{noformat}", "--recipe", "x/y:z"]
    body = ticket(decide(culprit("{{code}}{{noformat}}", reproduce=shlex.join(call))), form="jira")
    assert body.count("{noformat}") == 2 and not re.search(r"(?<!\\){", body.split("{noformat}")[0])
    assert shlex.split(body.split("{noformat}")[1]) == call


def test_a_subject_of_a_megabyte_is_cut_in_the_verdict():
    told = decide(culprit("x" * 2**20)).culprit
    assert told.subject == "x" * 499 + "…"
    assert decide(culprit("x" * 500)).culprit.subject == "x" * 500


def test_files_of_a_run(tmp_path):
    f = culprit()
    verdict = decide(f)
    with new_journal(tmp_path / "run", MANIFEST) as journal:
        for probe in f.probes_run:
            journal.append(probe)
        written = write_files(tmp_path / "run", f, verdict)
    assert [path.name for path in written] == [
        "verdict.json", "ticket.md", "report.html", "range.svg", "bisect.log", "probes.jsonl", "attachments.zip"
    ]
    assert json.loads((tmp_path / "run" / "verdict.json").read_text()) == verdict.dump()
    assert read_verdict(tmp_path / "run") == verdict
    path = write_ticket(tmp_path / "run", verdict, "jira")
    assert path.name == "ticket.jira" and path.read_text().startswith("h2. ")
