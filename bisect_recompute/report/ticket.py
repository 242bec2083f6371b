"""The ticket of a run: GitHub Markdown, Jira wiki markup, or plain text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import jinja2

from bisect_recompute.measurement.judge import Judge
from bisect_recompute.measurement.shift import compare, unit_of, value
from bisect_recompute.probe.recipe import Thresholds
from bisect_recompute.probe.result import ProbeResult
from bisect_recompute.report import text
from bisect_recompute.verdict.numbers import amount, percent, signed
from bisect_recompute.verdict.verdict import Metric, Verdict

FORMATS = {"github": "ticket.md", "jira": "ticket.jira", "text": "ticket.txt"}
LIMIT = 65_000
DEFAULT_THRESHOLDS = Thresholds()
LABELS = {"memory": "peak memory", "throughput": "throughput"}
CAUSES = {
    "setting": "a setting changes",
    "recompute-source": "the code that recomputes changes",
    "other-source": "code outside recompute changes",
    "dependency": "a submodule moves",
    "unknown": "not known",
}


def ticket(
    verdict: Verdict,
    results: Sequence[ProbeResult] = (),
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    metric: str = "any",
    direction: str = "worse",
    form: str = "github",
) -> str:
    """Under 65,000 characters; text from commits appears only neutralised for the format."""
    body = (
        _environment()
        .get_template(f"{FORMATS[form]}.j2")
        .render(
            v=verdict,
            title=title(verdict),
            pull_request=pull_request(verdict),
            summary=summary(verdict),
            rows=metric_rows(verdict),
            sides=_sides(verdict),
            cause=CAUSES[verdict.cause.kind],
            probes=probe_count(verdict),
            evidence=sorted(verdict.evidence, key=lambda e: (e.kind == "recompute-change", e.kind == "note")),
            results=_probe_rows(verdict, results, thresholds, metric, direction),
            more=lambda items, shown: f"\n{len(items) - shown} more are in verdict.json." if len(items) > shown else "",
        )
    )
    return _cut(re.sub(r"\n{3,}", "\n\n", body).strip() + "\n")


def title(verdict: Verdict) -> str:
    """One line, made of nothing from a commit but its id."""
    moved = ", ".join(f"{name} {percent(m.change_pct)}" for name, m in _metrics(verdict) if m.shifted and m.change_pct)
    if verdict.outcome == "culprit":
        return f"{verdict.culprit.commit[:10]} is the first bad commit" + (f": {moved}" if moved else "")
    if verdict.outcome == "inconclusive":
        return f"{len(verdict.suspects)} suspects are left" + (f": {moved}" if moved else "")
    return {"no-shift": "no shift between the endpoints", "endpoint-failed": "an endpoint cannot be probed"}[
        verdict.outcome
    ]


def pull_request(verdict: Verdict) -> str:
    """Its number, where the culprit's subject ends with one in the forges' way: ``(#1234)``."""
    found = re.search(r"\(#(\d{1,7})\)\s*$", verdict.culprit.subject) if verdict.culprit else None
    return found[1] if found else ""


def summary(verdict: Verdict) -> list[str]:
    """The reason where no commit is named."""
    kind = "failure" if verdict.outcome == "endpoint-failed" else "endpoints"
    return [text.plain(e.text, 400) for e in verdict.evidence if e.kind == kind]


def metric_rows(verdict: Verdict) -> list[dict]:
    return [
        {
            "label": LABELS[name],
            "good": amount(m.good, m.unit),
            "bad": amount(m.bad, m.unit),
            "change": _change(m),
            "mark": "**shifted**" if m.shifted else "",
            "shifted": m.shifted,
        }
        for name, m in _metrics(verdict)
        if m.good is not None or m.bad is not None
    ]


def probe_count(verdict: Verdict) -> str:
    p = verdict.probes
    parts = [f"{p.run} probe{'s' * (p.run != 1)} in {p.seconds:.1f} s"]
    parts += [f"{p.reused} commit{'s' * (p.reused != 1)} answered by equal code"] * bool(p.reused)
    return ", ".join(parts + [f"{p.skipped} skipped"] * bool(p.skipped))


def _change(m: Metric) -> str:
    if m.good is None or m.bad is None:
        return ""
    return f"{signed(m.bad - m.good, m.unit)}, {percent(m.change_pct)}" if m.bad != m.good else "none"


def _metrics(verdict: Verdict):
    return (("memory", verdict.metrics.memory), ("throughput", verdict.metrics.throughput))


def _sides(verdict: Verdict) -> tuple[str, str]:
    if verdict.culprit:
        return verdict.culprit.last_good, verdict.culprit.commit
    return verdict.range.good, verdict.range.bad


def _probe_rows(verdict, results, thresholds, metric, direction) -> list[dict]:
    by_sha = {result.revision: result for result in results}
    good, bad = by_sha.get(verdict.range.good), by_sha.get(verdict.range.bad)
    judge = Judge(compare(good, bad, thresholds, metric, direction)) if good and bad else None
    unit = unit_of("throughput", *results)
    return [
        {
            "sha": result.revision,
            "side": judge.side(result) if judge and verdict.outcome in ("culprit", "inconclusive") else "",
            "memory": amount(value(result, "bytes"), "bytes") if result.memory else "",
            "throughput": amount(value(result, unit), unit) if result.throughput else "",
            "seconds": result.seconds,
            "outcome": result.status + (f" at {result.stage}: {result.reason}" if result.reason else ""),
        }
        for result in results
    ]


def _environment() -> jinja2.Environment:
    # No autoescape: it knows HTML only, and Markdown undoes HTML escapes. All commit text goes through a filter below.
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bisect_recompute.report"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "code": text.code,
        "cell": text.cell,
        "jira": text.jira,
        "jira_block": text.jira_block,
        "plain": text.plain,
        "block": _block,
        "json": lambda value: json.dumps(value, ensure_ascii=False),
        "bytes": lambda size: signed(size, "bytes"),
    }
    return environment


def _block(line: str) -> str:
    fence = "`" * max(3, max((len(run) + 1 for run in re.findall("`+", line)), default=0))
    return f"{fence}sh\n{line}\n{fence}"


def _cut(body: str) -> str:
    # At line ends only: every code span closes on its own line, so nothing in the rest turns into Markdown.
    note = "\nThe rest is in verdict.json.\n"
    if len(body) < LIMIT:
        return body
    return body[: body.rfind("\n", 0, LIMIT - len(note) - 1) + 1] + note
