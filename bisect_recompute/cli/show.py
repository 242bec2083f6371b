"""``bisect-recompute show REV``: effective recompute settings of every recipe and launch script at a revision."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path

import click

from bisect_recompute.errors import UsageError


@click.command("show", help="Effective recompute settings of every recipe at REV, resolved from source; nothing is run.")
@click.argument("revision", metavar="REV")
@click.option("--repo", default=".", type=click.Path(path_type=Path), help="Repository (default: the working directory's).")
@click.option("--recipe", "recipes", multiple=True, metavar="GLOB", help="Only these: module:function, function or module.")
@click.option("--field", "wanted", multiple=True, metavar="GLOB", help="Only these fields (with --json: too).")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(revision, repo, recipes, wanted, as_json):
    from bisect_recompute.differ.recipes import fields as names
    from bisect_recompute.differ.recipes.revision import Revision
    from bisect_recompute.differ.recipes.scripts import scripts_at
    from bisect_recompute.differ.recipes.timeline import matches
    from bisect_recompute.history.repository import Repository

    repository = Repository(repo)
    commit = repository.commit(revision)
    chosen = [n for n in names.ALL if not wanted or any(fnmatchcase(n, p) for p in wanted)]
    if not chosen:
        raise UsageError(f"no field matches {', '.join(wanted)}: known are {', '.join(names.ALL)}")
    found = Revision(repository.read_blob, repository.tree(commit.sha))
    everything = {**found.recipes, **scripts_at(repository.read_blob, repository.tree(commit.sha))}
    states = {key: state for key, state in sorted(everything.items()) if not recipes or matches(key, recipes)}
    if not states:
        what = f"no recipe matches {', '.join(recipes)}" if recipes else "no recipe"
        raise UsageError(f"{what} at {commit.sha[:10]} in {repository.name}; `show {revision}` lists {len(everything)}")
    if as_json:
        document = {
            "revision": commit.sha,
            "recipes": {k: {n: entry(found, s.fields[n]) for n in chosen} for k, s in states.items()},
        }
        click.echo(json.dumps(document, indent=1, ensure_ascii=True))
        return
    _print(found, states, chosen, names, bool(recipes or wanted))


def entry(revision, state) -> dict:
    """A field as the contract writes it."""
    if state.state == "set":
        file, line = revision.world.line(state.origin)
        return {"state": "set", "value": state.value, "file": file, "line": line}
    if state.state == "unknown":
        return {"state": "unknown", "reason": state.reason}
    return {"state": "unset"} if state.default is None else {"state": "unset", "default": state.default}


def _print(revision, states, chosen, names, details) -> None:
    from rich.markup import escape

    from bisect_recompute.cli.tables import console, table

    out = console()
    few = details and len(states) <= 20
    idle = [k for k, s in states.items() if not s.has_model]
    if few:
        for key, state in states.items():
            out.print(f"[bold]{escape(key)}[/]  {escape(state.failed or names.describe_state(state.fields))}", soft_wrap=True)
            rows = []
            for name in chosen:
                field = state.fields[name]
                if field.state == "set":
                    file, line = revision.world.line(field.origin)
                    rows.append((name, json.dumps(field.value), f"{file}:{line}"))
                elif field.state == "unknown":
                    rows.append((name, "unknown", field.reason))
                elif field.default is not None:
                    rows.append((name, "unset", f"the provider's default: {json.dumps(field.default)}"))
            out.print(table(("field", "value", "from"), rows))
        return
    rows = [
        (key, "unknown: " + s.failed if s.failed else names.describe_state(s.fields), _sizes(s.fields))
        for key, s in states.items()
        if s.has_model
    ]
    out.print(table(("recipe", "recompute and offload", "TP PP CP EP"), rows))
    out.print(f"{len(rows)} recipes" + (f", {len(idle)} configurations without a model" if idle else "")
              + "; `--recipe GLOB` shows every field with its line")


def _sizes(fields) -> str:
    sizes = []
    for name in ("tensor_model", "pipeline_model", "context", "expert_model"):
        state = fields[f"{name}_parallel_size"]
        sizes.append(str(state.value) if state.state == "set" else "-" if state.state == "unset" else "?")
    return " ".join(sizes)
