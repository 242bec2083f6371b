"""From the findings of a search to the verdict. Pure: the same findings give the same verdict."""

from __future__ import annotations

from dataclasses import replace

from bisect_recompute.measurement.shift import METRICS, Shift
from bisect_recompute.verdict.cause import cause_of
from bisect_recompute.verdict.evidence import evidence_of, share_explained
from bisect_recompute.verdict.findings import Between, Findings
from bisect_recompute.verdict.verdict import Culprit, Metric, Metrics, Probes, Range, Step, Verdict, Via

LONGEST_SUBJECT = 500
"""Characters; git sets no limit."""


def decide(findings: Findings) -> Verdict:
    f, outcome = findings, _outcome(findings)
    blamed = f.inside or f
    sides = (blamed.last_good, blamed.culprit) if outcome == "culprit" else (-1, f.last)
    return Verdict(
        outcome=outcome,
        range=range_of(f),
        culprit=culprit_of(f) if outcome == "culprit" else None,
        suspects=[f.commit(index).sha for index in sorted(f.suspects)] if outcome == "inconclusive" else [],
        metrics=metrics_of(blamed, *sides),
        cause=cause_of(blamed),
        confidence=_confidence(f, outcome),
        probes=probes_of(f),
        evidence=[*evidence_of(f), *(evidence_of(f.inside) if f.inside else [])],
        net=metrics_of(f, -1, f.last) if f.steps is not None else None,
        shifts=None if f.steps is None else [step_of(f, step) for step in f.steps],
        recipe=f.recipe.name,
        probe=f.results[-1].probe,
        reproduce=f.reproduce,
        versions=dict(f.versions),
    )


def step_of(f: Findings, shift: Between) -> Step:
    """As part of a whole: whichever way it goes."""
    alone = len(shift.suspects) == 1
    f = replace(
        f,
        direction="any",
        culprit=shift.bad if alone else None,
        last_good=shift.good,
        suspects=shift.suspects,
        inside=f.inside if shift.bad == f.culprit else None,
    )
    return Step(
        culprit=culprit_of(f) if alone else None,
        suspects=[] if alone else [f.commit(index).sha for index in shift.suspects],
        metrics=metrics_of(f, shift.good, shift.bad),
        cause=cause_of(f.inside or f),
    )


def _outcome(f: Findings) -> str:
    if any(f.results[index].status not in ("ok", "oom") for index in (-1, f.last)):
        return "endpoint-failed"
    if not any(shift.shifted for shift in f.shifts(-1, f.last).values()):
        return "no-shift"
    return "inconclusive" if f.culprit is None else "culprit"


def range_of(f: Findings) -> Range:
    return Range(
        good=f.range.good.sha,
        bad=f.range.bad.sha,
        commits=len(f.range.commits),
        repository=f.range.repository,
        first_parent=f.first_parent,
    )


def culprit_of(f: Findings) -> Culprit:
    if f.inside:
        via = Via(commit=f.commit(f.culprit).sha, submodule=f.submodule)
        return culprit_of(f.inside).model_copy(update={"via": via})
    commit = f.commit(f.culprit)
    return Culprit(
        commit=commit.sha,
        subject=_cut(commit.subject),
        author=_cut(commit.author),
        date=commit.date,
        repository=f.range.repository,
        last_good=f.commit(f.last_good).sha,
    )


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_SUBJECT else text[: LONGEST_SUBJECT - 1] + "…"


def metrics_of(f: Findings, good: int, bad: int) -> Metrics:
    shifts = f.shifts(good, bad)
    return Metrics(**{name: _metric(shifts[name]) for name in METRICS})


def _metric(shift: Shift) -> Metric:
    return Metric(good=shift.good, bad=shift.bad, unit=shift.unit, change_pct=shift.change_pct, shifted=shift.shifted)


def _confidence(f: Findings, outcome: str) -> float:
    """That the one to blame is named.

    Culprit: the part of the endpoints' shift that lies between it and its measured neighbour (the simulation is
    deterministic, so measured sides are certain; what is uncertain is whether the user's shift is this one).
    Inconclusive: the chance of each suspect. No shift: 1, both ends were measured. Endpoint failed: 0.
    """
    if outcome == "culprit":
        inner = share_explained(f.inside) if f.inside else 1.0
        return round(min(1.0, max(0.0, share_explained(f) * inner)), 3)
    return {"inconclusive": round(1 / max(len(f.suspects), 1), 3), "no-shift": 1.0, "endpoint-failed": 0.0}[outcome]


def probes_of(f: Findings) -> Probes:
    run = {result.revision for result in f.probes_run}
    return Probes(
        run=len(f.probes_run),
        reused=sum(f.commit(index).sha not in run for index in f.results),
        skipped=sum(side == "skip" for side in f.sides.values()),
        seconds=round(sum(result.seconds for result in f.probes_run), 3),
    )
