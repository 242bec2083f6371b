"""``bisect-recompute check REV``: settings that are invalid, inert or in conflict at a revision."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Optional

import click

from bisect_recompute.errors import UsageError

_LINK = "3rdparty/Megatron-LM"


@click.command("check", help="Settings that REV refuses, that have no effect, or that work against each other.")
@click.argument("revision", metavar="REV", default="HEAD")
@click.option(
    "--repo", default=".", type=click.Path(path_type=Path), help="Repository (default: the working directory's)."
)
@click.option(
    "--recipe",
    "recipes",
    multiple=True,
    metavar="R",
    help="Only these: a GLOB of module:function, or a probe recipe (YAML file or shipped name). Default: all.",
)
@click.option(
    "--submodule-repo",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Clone of Megatron-LM, for the validation of the revision that a Megatron-Bridge pins.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(revision, repo, recipes, submodule_repo, as_json):
    from bisect_recompute.differ.rules.check import check
    from bisect_recompute.history.repository import Repository

    repository = Repository(repo)
    commit = repository.commit(revision)
    validator, missing = _validator(repository, commit.sha, submodule_repo)
    found = {}
    for name, fields, complete in _settings(repository, commit.sha, recipes):
        found[name] = check(fields, validator, complete)
    if not found:
        what = f"no recipe matches {', '.join(recipes)}" if recipes else "no recipe"
        raise UsageError(
            f"{what} at {commit.sha[:10]} in {repository.name}; name a probe recipe with --recipe recipes/x.yaml"
        )
    if as_json:
        document = {
            "revision": commit.sha,
            "validation": validator.name if validator else None,
            "recipes": {name: [dataclasses.asdict(f) for f in findings] for name, findings in found.items()},
        }
        click.echo(json.dumps(document, indent=1, ensure_ascii=True))
    else:
        _print(found, validator, missing)


def _validator(repository, sha: str, submodule_repo: Optional[Path]):
    """The revision's own validation with that of the Megatron-LM that it pins; and what to say where it is missing."""
    from bisect_recompute.differ.rules.validator import merged, read_validator
    from bisect_recompute.differ.source.submodule import submodule_clone
    from bisect_recompute.history.repository import Repository

    own = read_validator(repository, sha)
    if own.defaults:
        return own, ""
    links = repository.submodules(sha)
    path = _LINK if _LINK in links else next((p for p in links if "megatron" in p.lower()), None)
    if path is None:
        return (own if own.checks else None), "this revision pins no Megatron-LM: its labels and checks are not known"
    pinned = links[path]
    inner = Repository(submodule_repo) if submodule_repo else submodule_clone(repository, path)
    if inner is None:
        return (own if own.checks else None), (
            f"labels and checks of Megatron-LM {pinned[:10]} are not known: name a clone with --submodule-repo PATH"
        )
    try:
        inner.commit(pinned)
    except UsageError:
        return (own if own.checks else None), (
            f"{inner.name} has no commit {pinned[:10]}, which this revision pins, so its checks are left out: fetch it"
        )
    return merged(own, read_validator(inner, pinned)), ""


def _settings(repository, sha: str, recipes):
    """(name, fields, whether nothing else decides) of every recipe asked for."""
    globs = [r for r in recipes if not _is_probe_recipe(r)]
    for spec in recipes:
        if _is_probe_recipe(spec):
            yield spec, _probe_recipe(spec), True
    if globs or not recipes:
        from bisect_recompute.differ.recipes.timeline import matches
        from bisect_recompute.differ.rules.recipes import recipe_settings

        for key, fields in recipe_settings(repository, sha):
            if not globs or matches(key, globs):
                yield key, fields, False


def _is_probe_recipe(spec: str) -> bool:
    from bisect_recompute.probe.recipe import shipped_recipes

    return spec.endswith((".yaml", ".yml")) or Path(spec).is_file() or spec in shipped_recipes()


def _probe_recipe(spec: str):
    from bisect_recompute.differ.rules.settings import Setting
    from bisect_recompute.probe.recipe import load_recipe

    recipe = load_recipe(spec)
    lines = Path(spec).read_text(encoding="utf-8").split("\n") if Path(spec).is_file() else []
    values = {
        **recipe.parallel.model_dump(exclude={"ranks", "data_parallel_size"}),
        **recipe.model.stated(),
        "fp8": None,
        "fp4": None,
    }
    at = {
        name: next((i for i, text in enumerate(lines, 1) if text.strip().startswith(f"{name}:")), 0) for name in values
    }
    return {name: Setting("set", value, spec, at[name]) for name, value in values.items()}


def _print(found, validator, missing: str) -> None:
    from bisect_recompute.cli.tables import console, plain, table

    out = console()
    shown: dict = {}
    for name, findings in found.items():
        for f in findings:
            # One constant or helper often serves many recipes: the same finding is told once.
            shown.setdefault((f.kind, f.message, f.fix, f.source, f.file, f.line), []).append(name)
    kinds: Counter = Counter(kind for kind, *_ in shown)
    rows = []
    for (kind, message, fix, source, file, line), names in shown.items():
        where = f"{file}:{line}" if file else ""
        rows.append(
            (kind, names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else ""), message, fix, where, source)
        )
    rows.sort(key=lambda row: ("fails", "conflict", "inert", "note").index(row[0]))
    if rows:
        out.print(table(("", "recipe", "finding", "fix", "set at", "rule"), rows))
    if missing:
        out.print(plain(f"note: {missing}"))
    total = sum(bool(f) for f in found.values())
    summary = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common()) or "nothing found"
    out.print(
        f"{len(found)} recipes checked{f' against {validator.name}' if validator else ''}: {summary}; "
        f"{total} recipes concerned"
    )
