"""`bisect-recompute calibrate CASES.json`"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import fnmatch
import json
import os
import re
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bisect_recompute.cli import options
from bisect_recompute.errors import UsageError
from bisect_recompute.history.repository import Repository
from bisect_recompute.history.worktree import cache_dir
from bisect_recompute.probe.calibration import Case, Comparison, failed, nearest, read_cases, spread
from bisect_recompute.report.text import plain


LONGEST_NAME = 120
"""Characters of a case in the name of its log."""


@click.command("calibrate", short_help="the simulator against measured runs")
@click.argument("cases_file", metavar="CASES.json", type=click.Path(path_type=Path))
@options.repo
@click.option("--revision", default="HEAD", help="Megatron-LM revision whose code is simulated (default HEAD).")
@click.option("--case", "globs", multiple=True, metavar="GLOB", help="Only cases of these names.")
@click.option("--jobs", type=click.IntRange(1, 64), default=os.cpu_count() or 1, help="Cases at once (default: cores).")
@options.timeout
@options.as_json
@options.quiet
@click.pass_context
def command(ctx, cases_file, repo, revision, globs, jobs, timeout, as_json, quiet):
    """Simulates each measured run of CASES.json with its own arguments and prints the error of the peak memory.

    Exit code: 0 done, whatever the errors; 2 the call was wrong; 5 no case could be simulated.
    """
    from bisect_recompute.cli.interrupt import interruptible

    repository = Repository(repo)
    commit = repository.commit(revision)
    cases = [case for case in read_cases(cases_file) if not globs or any(fnmatch.fnmatch(case.case, g) for g in globs)]
    if not cases:
        raise UsageError(f"{cases_file} has no case {' or '.join(globs) or 'at all'}")
    with interruptible():
        compared = list(_compare_all(repository, commit.sha, cases, jobs, timeout, quiet))
    compared.sort(key=lambda c: c.case)
    print(json.dumps(_document(commit.sha, compared), indent=2)) if as_json else _show(compared)
    ctx.exit(0 if any(c.status == "ok" for c in compared) else 5)


def _compare_all(repository, sha: str, cases: list[Case], jobs: int, timeout: float, quiet: bool):
    from bisect_recompute.cli.measurer import Simulated

    logs = cache_dir() / "logs"

    def one(case: Case) -> Comparison:
        def measure(recipe):
            name = re.sub(r"[^\w.-]", "-", case.case)[-LONGEST_NAME:]
            log = logs / f"{sha}-{os.getpid()}-{name}-{recipe.gpus}.log"
            return Simulated(repository, recipe, case.case, timeout, simulator).measure(sha, log)

        try:
            return nearest(case, measure)
        except UsageError as error:
            return failed(case, str(error))

    from bisect_recompute.probe.simulate.client import Simulator

    with Simulator(cache_dir() / "bytecode", timeout) as simulator:
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            for number, comparison in enumerate(pool.map(one, cases), 1):
                if not quiet:
                    click.echo(f"{number}/{len(cases)} {_line(comparison)}", err=True)
                yield comparison


def _line(c: Comparison) -> str:
    return f"{plain(c.case, 100)}: {c.status} {_percent(c.error_pct) or plain(c.reason, 150)}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f} %"


def _document(sha: str, compared: list[Comparison]) -> dict:
    peak, allocated = _spreads(compared)
    return {
        "revision": sha,
        "cases": [dataclasses.asdict(c) for c in compared],
        "ran": sum(c.status == "ok" for c in compared),
        "median_abs_error_pct": peak["median"], "p90_abs_error_pct": peak["p90"], "worst_abs_error_pct": peak["worst"],
        "allocated_median_abs_error_pct": allocated["median"], "allocated_p90_abs_error_pct": allocated["p90"],
        "allocated_worst_abs_error_pct": allocated["worst"],
    }


def _spreads(compared: list[Comparison]) -> tuple[dict, dict]:
    return spread([c.error_pct for c in compared]), spread([c.allocated_error_pct for c in compared])


def _show(compared: list[Comparison]) -> None:
    console = Console(highlight=False)
    table = Table("case", "simulated", "measured", "peak error", "allocated error", box=None, header_style="dim")
    for column in table.columns[1:]:
        column.justify = "right"
    for c in compared:
        table.add_row(Text(plain(c.case, 100)), _bytes(c.simulated_bytes), _bytes(c.measured_bytes), _percent(c.error_pct),
                      _percent(c.allocated_error_pct))
    console.print(table)
    failed = [c for c in compared if c.status != "ok"]
    for c in failed:
        console.print(Text(f"{c.status}: {plain(c.case, 100)}: {plain(c.reason, 300)}", style="yellow"), soft_wrap=True)
    for what, numbers in zip(("peak", "allocated"), _spreads(compared)):
        if numbers["median"] is not None:
            console.print(
                f"{what}: {len(compared) - len(failed)} of {len(compared)} ran; absolute error median {numbers['median']:.2f} %, "
                f"90th percentile {numbers['p90']:.2f} %, worst {numbers['worst']:.2f} %"
            )


def _bytes(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
