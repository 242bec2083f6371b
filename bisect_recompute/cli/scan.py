"""`bisect-recompute scan A..B`"""

from __future__ import annotations

import click

from bisect_recompute.cli import options
from bisect_recompute.cli.run import new_folder, planned
from bisect_recompute.measurement.journal import new_journal


@click.command("scan", short_help="measure every revision of a range: the timeline, all shifts in it")
@click.argument("span", metavar="A..B")
@options.over_a_range(direction="any")
@click.option(
    "--first-parent/--all-parents",
    default=True,
    help="Follow merges' first parents only (default), or all: a merge then counts as a shift where it is like none "
    "of its parents.",
)
@click.pass_context
def command(ctx, out, jobs, as_json, quiet, **_):
    """Measures every distinct revision of A..B, coarse to fine, and lists every shift in it.

    Revisions with the same code are measured once. It can be stopped at any time: the shifts found by then are shown, and
    `resume` goes on. Exit code: 0 done, 2 the call was wrong, 5 no revision can be measured, 130 interrupted.
    """
    plan = planned(ctx, "scan")
    from bisect_recompute.cli.scan_job import work

    folder = out or new_folder(plan.manifest)
    ctx.exit(work(plan, folder, new_journal(folder, plan.manifest), jobs or options.default_jobs(), as_json, quiet))
