"""`bisect-recompute hook`, the command of `git bisect run`"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from pathlib import Path

import click

from bisect_recompute.cli import options
from bisect_recompute.cli.recipes import find_recipe, recipe_text, with_thresholds
from bisect_recompute.errors import EndpointError, UsageError
from bisect_recompute.history.repository import Repository
from bisect_recompute.history.worktree import cache_dir
from bisect_recompute.measurement.journal import MANIFEST, Journal, Manifest, new_journal, open_journal
from bisect_recompute.measurement.judge import Judge
from bisect_recompute.measurement.limits import Limits
from bisect_recompute.measurement.shift import compare
from bisect_recompute.probe.recipe import Recipe, RecipeFunction, Thresholds
from bisect_recompute.probe.result import ProbeResult
from bisect_recompute.report.text import plain

CODES = {"good": 0, "bad": 1, "skip": 125}
"""Every other end is cli.STOP or more."""


@click.command("hook", short_help="for `git bisect run`")
@options.repo
@options.recipe
@options.by_name
@options.probe_kind
@options.command_line
@options.question
@options.timeout
@click.option(
    "--good", metavar="REV", help="Reference for good; default: the first good commit of the bisection under way."
)
@click.option(
    "--bad", metavar="REV", help="Reference for bad; default: the first bad commit of the bisection under way."
)
@click.option("--against", metavar="REV", help="Instead of two references: bad is what differs from this one by the threshold.")
@click.option("--limit", type=options.Size(), metavar="SIZE", help="Instead: bad is a peak above this, as 60GiB.")
@click.option("--min-tflops", type=options.Finite(min=0), metavar="N", help="Instead: bad is a step below this many TFLOP/s/GPU.")
@options.as_json
@options.quiet
@click.pass_context
def command(
    ctx, repo, recipe_spec, submodule_repo, given, probe_kind, command_line, metric, threshold, direction, timeout, good, bad, against,
    limit, min_tflops, as_json, quiet,
):
    """Judges HEAD: `git bisect run bisect-recompute hook --recipe R`.

    The two references are measured at the first call; every answer is kept in the tool's cache. Exit code: 0 good,
    1 bad, 125 HEAD cannot be measured, 128 the call was wrong, or the references cannot be measured or do not differ.
    """
    repository = Repository(repo)
    limits = Limits(limit, min_tflops)
    if against or limits:
        if good or bad or against and limits:
            raise UsageError("--against, --limit with --min-tflops, and --good with --bad are three ways to ask: take one")
        good = bad = repository.commit(against or "HEAD").sha
    else:
        good, bad = _references(repository, good, bad)
    recipe = find_recipe(recipe_spec, repository, good, bad, submodule_repo=submodule_repo, given=given, kind=probe_kind,
                         command=command_line)
    if threshold is not None:
        recipe = with_thresholds(recipe, Thresholds(memory=threshold, throughput=threshold))
    manifest = Manifest(
        repository=str(repository.common_dir),
        good=good,
        bad=bad,
        first_parent=False,
        recipe=recipe.name,
        recipe_spec=recipe_spec,
        recipe_text=recipe_text(recipe),
        recipe_function=isinstance(recipe, RecipeFunction),
        probe=probe_kind,
        metric=metric,
        direction=direction,
        memory_threshold=recipe.thresholds.memory,
        throughput_threshold=recipe.thresholds.throughput,
        timeout=timeout,
        torchrun=options.torchrun_settings(probe_kind, recipe),
        versions=options.versions(),
    )
    head = repository.commit("HEAD")
    with _journal(manifest) as journal:
        side, result = _judge(repository, recipe, manifest, journal, head.sha, limits, alone=bool(against))
    if as_json:
        print(json.dumps({"revision": head.sha, "side": side, "status": result.status, "measured_at": result.revision}))
    elif not quiet:
        from bisect_recompute.cli.screen import measured

        click.echo(f"{side}: {head.sha[:10]} {plain(head.subject, 80)}: {measured(result)}", err=True)
    ctx.exit(CODES[side])


def _references(repository: Repository, good: str | None, bad: str | None) -> tuple[str, str]:
    found = {"good": None, "bad": None}
    if good is None or bad is None:
        found = _bisection(repository.git_dir)
    for name, stated in (("good", good), ("bad", bad)):
        found[name] = stated or found[name]
        if found[name] is None:
            raise UsageError(
                f"no {name} commit is known: run this under `git bisect run` after `git bisect start BAD GOOD`, or "
                f"state it with --{name} REV"
            )
    return repository.commit(found["good"]).sha, repository.commit(found["bad"]).sha


def _bisection(git_dir: Path) -> dict[str, str | None]:
    """The first good and the first bad commit of git's own log of the bisection; its comments name them by id."""
    try:
        log = (git_dir / "BISECT_LOG").read_text(encoding="utf-8", errors="replace")
        terms = (git_dir / "BISECT_TERMS").read_text(encoding="utf-8").split()
    except OSError:
        return {"good": None, "bad": None}
    bad_term, good_term = terms if len(terms) == 2 else ("bad", "good")
    first = {}
    for term, sha in re.findall(r"^# (\S+): \[([0-9a-f]{40,64})\]", log, re.M):
        first.setdefault(term, sha)
    return {"good": first.get(good_term), "bad": first.get(bad_term)}


def _journal(manifest: Manifest):
    """Answers of earlier calls with the same manifest, in the tool's cache and never in the user's repository."""
    deciding = {name: value for name, value in dataclasses.asdict(manifest).items() if name != "recipe_spec"}
    key = hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:20]
    folder = cache_dir() / "hook" / key
    return open_journal(folder) if (folder / MANIFEST).exists() else new_journal(folder, manifest)


def _judge(repository: Repository, recipe: Recipe | RecipeFunction, manifest: Manifest, journal: Journal, head: str,
           limits: Limits, alone: bool):
    from bisect_recompute.cli.interrupt import interruptible
    from bisect_recompute.cli.measurer import Recorder, measurer_of

    with interruptible(), measurer_of(repository, recipe, manifest.recipe_spec, manifest.timeout, manifest.torchrun) as measurer:
        recorder = Recorder(measurer, journal)
        try:
            if limits:
                result = recorder.known(head) or recorder.measure(head)
                return limits.side(result), result
            if alone:
                return _against(recorder, recipe, manifest, head)
            ends = [recorder.known(sha) or recorder.measure(sha) for sha in (manifest.good, manifest.bad)]
            judge = Judge(_shifts(ends, recipe, manifest))
            result = recorder.known(head) or recorder.measure(head)
        finally:
            recorder.stop()
    return judge.side(result), result


def _against(recorder, recipe, manifest: Manifest, head: str):
    """One reference: good where nothing shifts in the direction asked for."""
    base = recorder.known(manifest.good) or recorder.measure(manifest.good)
    if base.status not in ("ok", "oom"):
        raise EndpointError(f"--against {base.revision[:10]} cannot be probed: {base.status} at {base.stage}: {plain(base.reason, 400)}")
    result = recorder.known(head) or recorder.measure(head)
    if result.status not in ("ok", "oom"):
        return "skip", result
    shifts = compare(base, result, recipe.thresholds, manifest.metric, manifest.direction)
    return "bad" if any(shift.shifted for shift in shifts.values()) else "good", result


def _shifts(ends: list[ProbeResult], recipe, manifest: Manifest):
    for name, end in zip(("good", "bad"), ends):
        if end.status not in ("ok", "oom"):
            raise EndpointError(
                f"the {name} reference {end.revision[:10]} cannot be probed: {end.status} at {end.stage}: "
                f"{plain(end.reason, 400)}"
            )
    shifts = compare(*ends, recipe.thresholds, manifest.metric, manifest.direction)
    if not any(shift.shifted for shift in shifts.values()):
        from bisect_recompute.verdict.numbers import change

        found = "; ".join(f"{shift.metric} {change(shift)}" for shift in shifts.values() if shift.good is not None)
        raise UsageError(
            f"good {manifest.good[:10]} and bad {manifest.bad[:10]} do not differ by the threshold: {found}"
        )
    return shifts
