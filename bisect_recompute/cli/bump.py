"""When a submodule bump is the culprit: the same search inside the submodule, with the settings held fixed."""

from __future__ import annotations

from dataclasses import replace

import click

from bisect_recompute.cli.investigation import investigate
from bisect_recompute.cli.measurer import Measurer
from bisect_recompute.cli.plan import Plan
from bisect_recompute.cli.screen import screen
from bisect_recompute.errors import UsageError
from bisect_recompute.measurement.journal import Journal
from bisect_recompute.measurement.shift import compare
from bisect_recompute.probe.bridge_commits import BridgeCommit
from bisect_recompute.verdict.findings import Findings


def inside(findings: Findings, plan: Plan, journal: Journal, measurer: Measurer, jobs: int, quiet: bool) -> Findings:
    """The findings with those inside the bump, or with a note why there are none.

    The good end inside is the old Megatron-LM with the culprit's settings: when it already measures like the culprit, the
    settings are to blame and not the bump.
    """
    if findings.culprit is None:
        return findings
    shas = [findings.commit(index).sha for index in (findings.last_good, findings.culprit)]
    old, new = (measurer.bridge_commit(sha) for sha in shas)
    if old is None or old.core == new.core:
        return findings
    try:
        bump = _range(plan, measurer, old, new)
    except UsageError as error:
        return _noted(findings, f"{new.submodule} moves from {old.core[:10]} to {new.core[:10]}; not searched: {error}")
    here = replace(plan, repository=measurer.code, range=bump, recipe=new.recipe)
    if not quiet:
        click.echo(f"the culprit moves {new.submodule}: going on inside", err=True)
    with screen(here, jobs, quiet) as progress:
        found = investigate(here, journal, measurer.inside(new), jobs, progress.on_event)
    if found.culprit is None:
        return _noted(findings, _why(findings, found, old, new))
    return replace(findings, inside=found, submodule=new.submodule)


def _range(plan: Plan, measurer: Measurer, old: BridgeCommit, new: BridgeCommit):
    return measurer.code.range(f"{old.core}..{new.core}", plan.manifest.first_parent)


def _why(findings: Findings, found: Findings, old: BridgeCommit, new: BridgeCommit) -> str:
    ends = found.results[-1], found.results[found.last]
    what = f"{new.submodule} moves from {old.core[:10]} to {new.core[:10]} too"
    if any(end.status not in ("ok", "oom") for end in ends):
        return f"{what}; the old one cannot be probed with the new settings, so it is not known whether the bump matters"
    if found.suspects:
        return f"{what} and is to blame; which of its commits cannot be told: {len(found.suspects)} are left"
    thresholds, question = findings.recipe.thresholds, (findings.metric, findings.direction)
    alike = compare(findings.results[findings.last_good], ends[0], thresholds, *question)
    if any(shift.shifted for shift in alike.values()):
        return f"{what}, but with the old Megatron-LM the new settings measure the same: the bump is not to blame"
    return f"{what}; neither the settings nor the bump alone make the shift"


def _noted(findings: Findings, note: str) -> Findings:
    return replace(findings, notes=(*findings.notes, note))
