"""``bisect-recompute diff A..B``: what each commit changes in recompute settings and recompute source."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command("diff", help="What each commit of A..B changes in recompute settings and source, resolved; nothing is run.")
@click.argument("span", metavar="A..B")
@click.option("--repo", default=".", type=click.Path(path_type=Path), help="Repository (default: the working directory's).")
@click.option("--recipe", "recipes", multiple=True, metavar="GLOB", help="Only these: module:function, function or module.")
@click.option("--field", "wanted", multiple=True, metavar="GLOB",
              help="Changes of these fields (default: of the effective recompute and offload state).")
@click.option("--first-parent/--all-parents", default=True, help="Follow only the main line (default) or all commits.")
@click.option("--no-cache", is_flag=True, help="Resolve everything again.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(span, repo, recipes, wanted, first_parent, no_cache, as_json):
    from bisect_recompute.differ.evidence import recompute_changes
    from bisect_recompute.differ.recipes.cache import recipe_changes
    from bisect_recompute.history.repository import Repository

    repository = Repository(repo)
    found = repository.range(span, first_parent=first_parent)
    settings = recipe_changes(repository, found.commits, use_cache=not no_cache)
    source = recompute_changes(repository, found.commits)
    entries = [_entry(c, s, e, recipes, wanted) for c, s, e in zip(found.commits, settings, source)]
    if as_json:
        document = {"range": {"good": found.good.sha, "bad": found.bad.sha, "commits": len(entries),
                              "repository": found.repository}, "commits": entries}
        click.echo(json.dumps(document, indent=1, ensure_ascii=True))
    else:
        _print(entries)


def _entry(commit, settings, evidence, recipes, wanted) -> dict:
    from bisect_recompute.differ.recipes.timeline import matches, selected

    def mine(keys):
        return [k for k in keys if not recipes or matches(k, recipes)]

    changes = selected(settings, recipes, wanted)
    moved = [[old, new] for old, new in settings.moved if not recipes or matches(old, recipes) or matches(new, recipes)]
    lists = {"added": mine(settings.added), "removed": mine(settings.removed), "moved": moved}
    there = {"recipe-value": changes, **{f"recipe-{k}": v for k, v in lists.items()}}
    kinds = [kind for kind, found in there.items() if found]
    source = [] if recipes else evidence.source
    if not recipes:
        kinds += [kind for kind in evidence.kinds if kind not in kinds and kind != "none"]
    return {
        "commit": commit.sha,
        "subject": commit.subject,
        "date": commit.date,
        "kinds": kinds or ["none"],
        "changes": [
            {"recipe": c.recipe, "field": c.field, "old": c.old, "new": c.new, "file": c.file, "line": c.line}
            for c in changes
        ],
        "states": [{"recipe": r, "old": a, "new": b} for r, a, b in settings.states if not recipes or matches(r, recipes)],
        "recipes": lists,
        "source": [{"file": s.file, "symbol": s.symbol, "kind": s.kind, "line": s.line, "detail": s.detail} for s in source],
    }


def _print(entries) -> None:
    from rich.text import Text

    from bisect_recompute.cli.tables import console, plain, table

    out = console()
    shown = 0
    for entry in entries:
        if entry["kinds"] == ["none"]:
            continue
        shown += 1
        head = Text.assemble((entry["commit"][:10], "bold yellow"), f" {entry['date'][:10]} ", plain(entry["subject"]))
        out.print(head, Text(f"  [{', '.join(entry['kinds'])}]", style="cyan"), sep="")
        if entry["changes"]:
            rows = [(c["recipe"], c["field"], f"{_show(c['old'])} -> {_show(c['new'])}", f"{c['file']}:{c['line']}")
                    for c in entry["changes"]]
            out.print(table(("  recipe", "field", "old -> new", "because of"), [("  " + r[0], *r[1:]) for r in rows]))
        for state in entry["states"]:
            out.print(plain(f"  {state['recipe']}: {state['old']} -> {state['new']}"))
        for kind, keys in entry["recipes"].items():
            if keys:
                out.print(plain(f"  {kind}: {len(keys)} recipe{'s' * (len(keys) > 1)}, {_first(keys)}"))
        for source in entry["source"][:20]:
            out.print(plain(f"  {source['kind']}: {source['file']}:{source['line']} {source['symbol']} {source['detail']}"))
        if len(entry["source"]) > 20:
            out.print(f"  and {len(entry['source']) - 20} more places in source (all with --json)")
    out.print(f"{shown} of {len(entries)} commits change recompute settings or source")


def _show(value) -> str:
    return value.strip("<>") if isinstance(value, str) and value in ("<unset>", "<unknown>") else json.dumps(value)


def _first(keys) -> str:
    first = keys[0] if isinstance(keys[0], str) else " -> ".join(keys[0])
    return first + (", ..." if len(keys) > 1 else "")
