"""`bisect-recompute run GOOD..BAD`"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click

from bisect_recompute.cli import options
from bisect_recompute.cli.plan import Plan
from bisect_recompute.cli.recipes import find_recipe, recipe_options, recipe_text, with_thresholds
from bisect_recompute.errors import UsageError
from bisect_recompute.history.repository import Repository, repository_path
from bisect_recompute.measurement.journal import MANIFEST, Manifest, new_journal
from bisect_recompute.measurement.samples import fewest_samples
from bisect_recompute.measurement.shift import CONFIDENCE
from bisect_recompute.probe.recipe import RecipeFunction, Thresholds


@click.command("run", short_help="name the first bad commit of GOOD..BAD")
@click.argument("span", metavar="GOOD..BAD")
@options.over_a_range(direction="worse")
@click.option(
    "--first-parent/--all-parents",
    default=False,
    help="Follow merges' first parents only, or all as `git bisect` does (default).",
)
@click.option(
    "--all-shifts",
    is_flag=True,
    help="Find every shift between endpoints that differ, and report the net and each part; follows first parents. "
    "Shifts that cancel each other out are seen by `scan`.",
)
@click.pass_context
def command(ctx, out, jobs, as_json, quiet, **_):
    """Names the first bad commit of GOOD..BAD and why, by simulated training steps of its commits.

    Exit code: 0 a culprit is named, 2 the call was wrong, 3 the endpoints do not differ, 4 several suspects are left, 5
    an endpoint cannot be probed, 130 interrupted (`resume` goes on).
    """
    plan = planned(ctx, "run")
    from bisect_recompute.cli.main_job import work

    folder = out or new_folder(plan.manifest)
    ctx.exit(work(plan, folder, new_journal(folder, plan.manifest), jobs or options.default_jobs(), as_json, quiet))


def planned(ctx: click.Context, job: str) -> Plan:
    """What a call of `run` or `scan` is to find out. Raises UsageError."""
    asked = ctx.params
    repository = Repository(asked["repo"])
    stated = ctx.get_parameter_source("first_parent") == click.core.ParameterSource.COMMANDLINE
    all_shifts = asked.get("all_shifts", False)
    if all_shifts and stated and not asked["first_parent"]:
        raise UsageError("--all-shifts takes a line of commits apart: leave --all-parents out")
    first_parent = asked["first_parent"] or all_shifts
    commits = repository.range(asked["span"], first_parent)
    recipe = find_recipe(
        asked["recipe_spec"],
        repository,
        commits.good.sha,
        commits.bad.sha,
        submodule_repo=asked["submodule_repo"],
        given=asked["given"],
        kind=asked["probe_kind"],
        command=asked["command_line"],
    )
    torchrun = options.torchrun_settings(asked["probe_kind"], recipe, asked["nproc"], asked["iterations"], asked["hang_after"])
    threshold = asked["threshold"]
    if threshold is not None:
        recipe = with_thresholds(recipe, Thresholds(memory=threshold, throughput=threshold))
    manifest = Manifest(
        repository=str(repository.git_dir),
        good=commits.good.sha,
        bad=commits.bad.sha,
        first_parent=first_parent,
        recipe=recipe.name,
        recipe_spec=asked["recipe_spec"],
        recipe_text=recipe_text(recipe),
        recipe_function=isinstance(recipe, RecipeFunction),
        probe=asked["probe_kind"],
        metric=asked["metric"],
        direction=asked["direction"],
        memory_threshold=recipe.thresholds.memory,
        throughput_threshold=recipe.thresholds.throughput,
        timeout=asked["timeout"],
        torchrun=torchrun,
        repeats=_repeats(asked["repeats"], asked["probe_kind"]),
        job=job,
        reuse=not asked["no_cache"],
        all_shifts=all_shifts,
        reproduce=_call(repository, commits, recipe, ctx, job, torchrun),
        versions=options.versions(),
    )
    return Plan(repository, commits, recipe, manifest)


def _repeats(count: int, kind: str) -> int:
    if count > 1 and kind not in ("torchrun", "command"):
        raise UsageError(f"--repeats: --probe {kind} gives the same every time")
    if 1 < count < fewest_samples(CONFIDENCE):
        raise UsageError(f"--repeats {count}: so few cannot tell a shift from chance; give {fewest_samples(CONFIDENCE)} or more")
    return count


def _call(repository: Repository, commits, recipe, ctx: click.Context, job: str, torchrun) -> str:
    call = [
        "bisect-recompute",
        job,
        f"{commits.good.sha}..{commits.bad.sha}",
        "--repo",
        repository_path(repository),
        "--recipe",
        ctx.params["recipe_spec"],
    ]
    call += recipe_options(recipe)
    call += torchrun.options() if torchrun else []
    for name in ("metric", "threshold", "direction", "timeout", "repeats"):
        if ctx.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE:
            call += [f"--{name}", f"{ctx.params[name]}"]
    if ctx.get_parameter_source("first_parent") == click.core.ParameterSource.COMMANDLINE:
        call.append("--first-parent" if ctx.params["first_parent"] else "--all-parents")
    call += ["--all-shifts"] * ctx.params.get("all_shifts", False)
    return shlex.join(call)


def new_folder(manifest: Manifest) -> Path:
    """Not used by an earlier run. Inside a repository's work tree git is told to leave the runs alone."""
    suffix = "" if manifest.job == "run" else f"-{manifest.job}"
    name = re.sub(r"[^\w.-]+", "-", f"{manifest.good[:10]}-{manifest.bad[:10]}-{manifest.recipe}{suffix}")[:120]
    folder, number = options.RUNS / name, 2
    while (folder / MANIFEST).exists():
        folder, number = options.RUNS / f"{name}-{number}", number + 1
    try:
        options.RUNS.mkdir(exist_ok=True)
        (options.RUNS / ".gitignore").write_text("*\n")
    except OSError as error:
        raise UsageError(f"cannot use {options.RUNS.absolute()}: {error.strerror}; give a folder with --out") from None
    return folder
