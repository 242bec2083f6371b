"""Runs a plan to its verdict and shows it: what ``run``, ``resume`` and ``demo`` share."""

from __future__ import annotations

import shlex
from contextlib import AbstractContextManager
from pathlib import Path

import click

from bisect_recompute.cli import final
from bisect_recompute.cli.bump import inside
from bisect_recompute.cli.interrupt import interruptible
from bisect_recompute.cli.investigation import investigate
from bisect_recompute.cli.measurer import measurer_of
from bisect_recompute.cli.plan import Plan
from bisect_recompute.cli.screen import screen
from bisect_recompute.cli.trouble import kept_for_resume
from bisect_recompute.errors import UsageError
from bisect_recompute.measurement.journal import Journal
from bisect_recompute.report.files import read_verdict, write_files, written_files
from bisect_recompute.verdict.decide import decide
from bisect_recompute.verdict.verdict import Verdict


def work(plan: Plan, out: Path, opened: AbstractContextManager[Journal], jobs: int, as_json: bool, quiet: bool) -> int:
    """The exit code. Ctrl-C, SIGTERM and SIGHUP end it with 130; the folder ``out`` is then ready for ``resume``."""
    try:
        with interruptible(), opened as journal, kept_for_resume(resume_command(out)):
            manifest = plan.manifest
            with measurer_of(plan.repository, plan.recipe, manifest.recipe_spec, manifest.timeout, manifest.torchrun) as measurer:
                with screen(plan, jobs, quiet) as progress:
                    findings = investigate(plan, journal, measurer, jobs, progress.on_event)
                findings = inside(findings, plan, journal, measurer, jobs, quiet)
            verdict = decide(findings)
            files = write_files(out, findings, verdict)
    except KeyboardInterrupt:
        click.echo(f"stopped, nothing is lost; go on with: {resume_command(out)}", err=True)
        return 130
    _show(verdict, out, files, as_json)
    if verdict.outcome == "endpoint-failed":
        _say_why(findings, out)
    return final.exit_code(verdict)


def resume_command(out: Path) -> str:
    return f"bisect-recompute resume {shlex.quote(str(out))}"


def show_again(out: Path, as_json: bool) -> int | None:
    """Shows what the finished run in ``out`` found; its exit code, None where it has not finished."""
    try:
        verdict = read_verdict(out)
    except UsageError:  # a damaged one is written again
        return None
    _show(verdict, out, written_files(out), as_json)
    return final.exit_code(verdict)


def _show(verdict: Verdict, out: Path, files: list[Path], as_json: bool) -> None:
    if as_json:
        final.show_json(verdict)
    else:
        final.show(verdict, out, files)


def _say_why(findings, out: Path) -> None:
    ends = {"good": findings.results[-1], "bad": findings.results[findings.last]}
    failed = {name: end for name, end in ends.items() if end.status not in ("ok", "oom")}
    said = {(end.status, end.stage, end.reason) for end in failed.values()}
    names = "both endpoints cannot be probed, the same way" if len(failed) == 2 and len(said) == 1 else None
    for name, end in failed.items():
        what = names or f"the {name} endpoint {end.revision[:10]} cannot be probed"
        reason = f"{end.status} at {end.stage}: {final.plain(end.reason, 400)}"
        click.echo(f"error: {what}: {reason}; log: {out / (end.log or 'logs')}", err=True)
        if names:
            break
