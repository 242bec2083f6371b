"""`bisect-recompute sweep [REV]`"""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor

import click
from rich.markup import escape

from bisect_recompute.cli import options
from bisect_recompute.cli.recipes import find_recipe
from bisect_recompute.errors import UsageError
from bisect_recompute.history.repository import Repository
from bisect_recompute.history.worktree import cache_dir

GIB = 2**30


@click.command("sweep", short_help="what each recompute choice costs and saves")
@click.argument("revision", metavar="[REV]", default="HEAD")
@options.repo
@options.recipe
@options.by_name
@options.jobs
@options.timeout
@click.option("--gpu-memory", type=options.Size(), metavar="SIZE", help="Memory of a GPU, as 80GiB; default: that of the recipe's GPU.")
@options.as_json
@options.quiet
@click.pass_context
def command(ctx, revision, repo, recipe_spec, submodule_repo, given, jobs, timeout, gpu_memory, as_json, quiet):
    """Measures the recipe at REV (default HEAD) without recomputation, with each choice alone, and with the best ones together.

    Ends with the cheapest choice that fits into the GPU, and the lines that enable it. Exit code: 0 done, 2 the call was wrong,
    5 the training without recomputation cannot be measured.
    """
    from bisect_recompute.cli.interrupt import interruptible
    from bisect_recompute.cli.measurer import Simulated
    from bisect_recompute.probe.recipe import Recipe, RecipeFunction

    repository = Repository(repo)
    commit = repository.commit(revision)
    recipe = find_recipe(recipe_spec, repository, commit.sha, submodule_repo=submodule_repo, given=given)
    with interruptible(), Simulated(repository, recipe, recipe_spec, timeout) as measurer:
        here = measurer.bridge_commit(commit.sha)
        base = here.recipe if here else recipe
        if not isinstance(base, Recipe) or isinstance(recipe, RecipeFunction) and not here:
            raise UsageError("sweep changes settings of a recipe: give a YAML recipe, or a recipe function of Megatron Bridge")
        rows = _sweep(measurer, base, commit.sha, here.core if here else commit.sha, jobs or options.default_jobs(), quiet)
    memory = gpu_memory or rows[0].result.memory.capacity_bytes if rows[0].peak else gpu_memory or 0
    if as_json:
        print(json.dumps(_document(commit.sha, recipe.name, rows, memory), indent=2))
    else:
        _print(commit.sha, recipe.name, rows, memory)
    ctx.exit(0 if rows[0].peak is not None else 5)


def _sweep(measurer, base, sha: str, code: str, jobs: int, quiet: bool) -> list:
    from bisect_recompute.differ.rules.validator import read_validator
    from bisect_recompute.probe.choices import CONTROL, combinations, single_choices
    from bisect_recompute.verdict.sweep import Row, ranked_labels

    validator = read_validator(measurer.code, code)

    def row(choice) -> Row:
        refusal = _refusal(base, choice, validator)
        if refusal:
            return Row(choice, None, refusal)
        name = re.sub(r"\W+", "-", str(choice))[:80]
        result = measurer.measure_choice(sha, choice, cache_dir() / "logs" / f"{sha}-{os.getpid()}-{name}.log")
        found = Row(choice, result)
        if not quiet:
            click.echo(f"{choice}: " + (f"{found.peak / GIB:.2f} GiB" if found.peak else f"{result.status}: {result.reason[:160]}"),
                       err=True)
        return found

    with ThreadPoolExecutor(jobs) as pool:
        rows = list(pool.map(row, [CONTROL, *single_choices(base, validator.labels.get("recompute_modules", ()))]))
        if rows[0].peak is not None:
            rows += pool.map(row, combinations(ranked_labels(rows, rows[0])))
    return rows


def _refusal(base, choice, validator) -> str:
    """What the revision's own checks, or what is known to conflict, say against the choice."""
    from bisect_recompute.differ.rules.check import check
    from bisect_recompute.differ.rules.settings import Setting
    from bisect_recompute.probe.choices import apply

    recipe = apply(base, choice)
    stated = {**recipe.model.stated(), **recipe.parallel.stated()}
    fields = {name: Setting("set", value) for name, value in stated.items()}
    ours = set(choice.settings())
    found = [f for f in check(fields, validator, complete=True) if f.kind in ("fails", "conflict") and ours & set(f.fields)]
    return f"{found[0].message} ({found[0].source}); {found[0].fix}" if found else ""


def _document(sha: str, recipe: str, rows, memory: int) -> dict:
    from bisect_recompute.verdict.sweep import cheapest, control_of, saved

    control, best = control_of(rows), cheapest(rows, memory)
    return {
        "revision": sha, "recipe": recipe, "gpu_memory_bytes": memory,
        "choices": [
            {
                "choice": str(row.choice), "settings": row.choice.settings(), "ruled_out": row.ruled_out or None,
                "status": row.result.status if row.result else "ruled-out", "stage": row.result.stage if row.result else None,
                "reason": row.result.reason if row.result else row.ruled_out,
                "peak_bytes": row.peak, "saved_bytes": saved(row, control) if row.peak is not None else None,
                "peak_change_pct": _percent(row.peak, control.peak), "step_seconds": row.seconds,
                "step_change_pct": _percent(row.seconds, control.seconds),
                "tflops_per_gpu": row.result.throughput.tflops_per_gpu if row.seconds else None,
                "hottest_rank": _hottest(row), "fits": row.fits(memory),
            }
            for row in rows
        ],
        "cheapest": {"choice": str(best.choice), "python": best.choice.python(), "options": best.choice.options()} if best else None,
    }


def _percent(value, control) -> float | None:
    return round(100 * (value / control - 1), 3) if value is not None and control else None


def _hottest(row) -> int | None:
    ranks = row.result.memory.by_rank if row.peak is not None else {}
    return int(max(ranks, key=ranks.get)) if ranks else None


def _print(sha: str, recipe: str, rows, memory: int) -> None:
    from bisect_recompute.cli.tables import console, table

    told = _document(sha, recipe, rows, memory)
    out = console()
    out.print(f"[bold]{escape(recipe)}[/] at {sha[:10]}, against {memory / GIB:.2f} GiB", soft_wrap=True)
    lines, notes = [], []
    for entry in told["choices"]:
        if entry["peak_bytes"] is None:
            notes.append(f"{entry['choice']}: {entry['reason']}")
            lines.append((entry["choice"], entry["status"], entry["stage"] or "", "", "", "", "", ""))
            continue
        lines.append((
            entry["choice"], f"{entry['peak_bytes'] / GIB:.2f} GiB", f"{entry['peak_change_pct']:+.2f} %",
            f"{entry['step_seconds']:.3f} s", f"{entry['step_change_pct']:+.2f} %", f"{entry['tflops_per_gpu']:.1f}",
            str(entry["hottest_rank"]), "fits" if entry["fits"] else "does not fit",
        ))
    out.print(table(("recompute", "peak memory", "", "step", "", "TFLOP/s/GPU", "rank", ""), lines))
    for note in notes:
        out.print(f"  {escape(note)}", soft_wrap=True)
    best = told["cheapest"]
    if best is None:
        out.print("none of these fits; smaller parallel shards, offloading or a larger GPU are left")
        return
    out.print(f"cheapest that fits: [bold]{escape(best['choice'])}[/]", soft_wrap=True)
    for line in best["python"]:
        out.print(f"  {escape(line)}", soft_wrap=True)
    if best["options"]:
        out.print(f"  {escape(' '.join(best['options']))}", soft_wrap=True)
