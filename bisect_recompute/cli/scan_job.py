"""Runs a scan and shows it: what ``scan`` and ``resume`` share."""

from __future__ import annotations

import dataclasses
import json
from contextlib import AbstractContextManager
from pathlib import Path

import click

from bisect_recompute.cli.interrupt import interruptible
from bisect_recompute.cli.investigation import changes_of, source_line
from bisect_recompute.cli.main_job import resume_command
from bisect_recompute.cli.measurer import Measurer, Recorder, measurer_of
from bisect_recompute.cli.plan import Plan
from bisect_recompute.cli.scan_view import show
from bisect_recompute.cli.screen import screen
from bisect_recompute.cli.trouble import kept_for_resume
from bisect_recompute.driver.loop import Event, ProbeFinished, Reused
from bisect_recompute.driver.survey import Survey, survey
from bisect_recompute.errors import EndpointError
from bisect_recompute.measurement.journal import Journal, write_atomically
from bisect_recompute.measurement.shift import compare
from bisect_recompute.probe.result import ProbeResult
from bisect_recompute.report.timeline import write_plot
from bisect_recompute.verdict.findings import Findings
from bisect_recompute.verdict.steps import shifts_in
from bisect_recompute.verdict.timeline import Timeline, timeline

SCAN, PLOT = "scan.json", "timeline.svg"


def work(plan: Plan, out: Path, opened: AbstractContextManager[Journal], jobs: int, as_json: bool, quiet: bool) -> int:
    """The exit code. Ctrl-C, SIGTERM and SIGHUP end it with 130, and what is known by then is written and shown."""
    stopped = False
    results: dict[int, ProbeResult] = {}
    with interruptible(), opened as journal, kept_for_resume(resume_command(out)):
        measurer = measurer_of(plan.repository, plan.recipe, plan.manifest.recipe_spec, plan.manifest.timeout, plan.manifest.torchrun)
        try:
            with measurer:
                with screen(plan, jobs, quiet) as progress:
                    _measure(plan, Recorder(measurer, journal), jobs, progress, results)
        except KeyboardInterrupt:
            stopped = True
        found = _timeline(plan, journal, measurer, results)
        write_plot(found, out / PLOT)
        write_atomically(out / SCAN, json.dumps(found.dump(), indent=1) + "\n")
    if stopped:
        if not as_json:
            show(found, out)
        click.echo(f"stopped, nothing is lost; go on with: {resume_command(out)}", err=True)
        return 130
    return _end(found, out, as_json)


def show_again(out: Path, as_json: bool) -> int | None:
    """The exit code of the finished scan in ``out``; None where it has not finished."""
    try:
        found = Timeline.model_validate_json((out / SCAN).read_bytes())
    except (FileNotFoundError, ValueError):  # a damaged one is written again
        return None
    return _end(found, out, as_json) if found.complete else None


def _end(found: Timeline, out: Path, as_json: bool) -> int:
    if as_json:
        print(json.dumps(found.dump(), indent=2))
    else:
        show(found, out)
    if any(point.status in ("ok", "oom") for point in found.points):
        return 0
    first = found.points[0]
    raise EndpointError(f"no revision can be measured; {first.commit[:10]}: {first.status}: {first.reason[:400]}")


def _measure(plan: Plan, recorder: Recorder, jobs: int, progress, results: dict[int, ProbeResult]) -> None:
    def on_event(event: Event) -> None:
        if isinstance(event, (ProbeFinished, Reused)):
            results[event.index] = event.result
        progress.on_event(event)

    def differ(good: int, bad: int) -> bool:
        manifest = plan.manifest
        shifts = compare(results[good], results[bad], plan.recipe.thresholds, manifest.metric, manifest.direction)
        return any(shift.shifted for shift in shifts.values())

    try:
        if recorder.known(plan.range.bad.sha) is None:
            recorder.warm_up()
        survey(
            Survey(len(plan.range.commits), differ),
            lambda index: recorder.measure(plan.commit(index).sha),
            lambda result: "ok" if result.status in ("ok", "oom") else "skip",
            lambda index: recorder.known(plan.commit(index).sha),
            jobs,
            on_event,
        )
    finally:
        recorder.stop()


def _timeline(plan: Plan, journal: Journal, measurer: Measurer, results: dict[int, ProbeResult]) -> Timeline:
    manifest = plan.manifest
    found = Findings(
        range=plan.range,
        first_parent=manifest.first_parent,
        recipe=plan.recipe,
        metric=manifest.metric,
        direction=manifest.direction,
        results=results,
        sides={index: "skip" for index, result in results.items() if result.status not in ("ok", "oom")},
        probes_run=journal.probed,
        source_line=source_line(measurer),
        reproduce=manifest.reproduce,
        versions=manifest.versions,
    )
    shifts = list(shifts_in(found))
    changes, _ = changes_of(measurer, [plan.commit(shift.bad) for shift in shifts])
    return timeline(dataclasses.replace(found, changes=tuple(changes)), shifts)
