"""`bisect-recompute resume [RUN]`"""

from __future__ import annotations

from pathlib import Path

import click

from bisect_recompute.cli import options
from bisect_recompute.cli.plan import Plan
from bisect_recompute.errors import UsageError
from bisect_recompute.measurement.journal import MANIFEST, open_journal, read_manifest


@click.command("resume", short_help="go on with a run that was stopped, killed or crashed")
@click.argument("run", required=False, type=click.Path(path_type=Path, file_okay=False))
@options.jobs
@options.as_json
@options.quiet
@click.pass_context
def command(ctx, run, jobs, as_json, quiet):
    """Goes on with the run in folder RUN (default: the newest one here). No finished probe is run again.

    A finished run says again what it found. Exit codes are those of `run`.
    """
    out = run or _newest()
    manifest = read_manifest(out)
    if manifest.job == "scan":
        from bisect_recompute.cli.scan_job import show_again, work
    else:
        from bisect_recompute.cli.main_job import show_again, work

    code = show_again(out, as_json)
    if code is not None:
        ctx.exit(code)
    plan = Plan.from_manifest(manifest)
    ctx.exit(work(plan, out, open_journal(out, options.versions()), jobs or options.default_jobs(), as_json, quiet))


def _newest() -> Path:
    runs = sorted(options.RUNS.glob(f"*/{MANIFEST}"), key=lambda path: path.stat().st_mtime)
    if not runs:
        raise UsageError(f"there is no run under {options.RUNS}/ here; name its folder: bisect-recompute resume RUN")
    return runs[-1].parent
