"""``bisect-recompute diff A..B``: what each commit changes in recompute settings and recompute source."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path

import click


@click.command("diff", help="What each commit of A..B changes in recompute settings and source, resolved; nothing is run.")
@click.argument("span", metavar="A..B")
@click.option("--repo", default=".", type=click.Path(path_type=Path), help="Repository (default: the working directory's).")
@click.option("--recipe", "recipes", multiple=True, metavar="GLOB", help="Only these: module:function, function or module.")
@click.option("--field", "wanted", multiple=True, metavar="GLOB",
              help="Changes of these fields (default: of the effective recompute and offload state).")
@click.option("--first-parent/--all-parents", default=True, help="Follow only the main line (default) or all commits.")
@click.option("--submodule-repo", type=click.Path(path_type=Path), metavar="PATH",
              help="Clone of the submodule that commits move (default: the submodule's own), to list what each move brings.")
@click.option("--no-cache", is_flag=True, help="Resolve everything again.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(span, repo, recipes, wanted, first_parent, submodule_repo, no_cache, as_json):
    from bisect_recompute.differ.evidence import expand_submodules, recompute_changes
    from bisect_recompute.differ.recipes.cache import recipe_changes
    from bisect_recompute.history.repository import Repository

    repository = Repository(repo)
    submodule = Repository(submodule_repo) if submodule_repo else None
    found = repository.range(span, first_parent=first_parent)
    settings = recipe_changes(repository, found.commits, use_cache=not no_cache)
    source = recompute_changes(repository, found.commits, use_cache=not no_cache)
    moving = [] if recipes else [c.commit for c in source if "submodule" in c.kinds]
    moved = expand_submodules(repository, moving, submodule, use_cache=not no_cache)
    entries = [
        {**_entry(c, s, e, recipes, wanted), "submodules": [_bump(*each) for each in moved.get(c.sha, ())]}
        for c, s, e in zip(found.commits, settings, source)
    ]
    if as_json:
        document = {"range": {"good": found.good.sha, "bad": found.bad.sha, "commits": len(entries),
                              "repository": found.repository}, "commits": entries}
        click.echo(json.dumps(document, indent=1, ensure_ascii=True))
    else:
        _print(entries, bool(recipes))


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
        changes += [c for c in evidence.changes if not wanted or any(fnmatchcase(c.field, pattern) for pattern in wanted)]
        kinds += [kind for kind in evidence.kinds if kind not in kinds and kind != "none"]
    return {
        "commit": commit.sha,
        "subject": commit.subject,
        "date": commit.date,
        "kinds": kinds or ["none"],
        "changes": [_change(c) for c in changes],
        "states": [{"recipe": r, "old": a, "new": b} for r, a, b in settings.states if not recipes or matches(r, recipes)],
        "recipes": lists,
        "source": [_source(s) for s in source],
    }


def _change(change) -> dict:
    return {"recipe": change.recipe, "field": change.field, "old": change.old, "new": change.new, "file": change.file,
            "line": change.line}


def _source(change) -> dict:
    return {"file": change.file, "symbol": change.symbol, "kind": change.kind, "line": change.line, "detail": change.detail}


def _bump(bump, inside) -> dict:
    """A submodule that the commit moves, with the commits that this brings."""
    commits = [
        {"commit": c.commit.sha, "subject": c.commit.subject, "date": c.commit.date, "kinds": list(c.kinds),
         "changes": [_change(x) for x in c.changes], "source": [_source(x) for x in c.source]}
        for c in inside
    ]
    return {"path": bump.path, "old": bump.old, "new": bump.new, "problem": bump.problem,
            "lost": [c.sha for c in bump.lost], "commits": commits}


def _print(entries, by_name: bool) -> None:
    from bisect_recompute.cli.tables import console, say

    out = console()
    shown = [entry for entry in entries if entry["kinds"] != ["none"]]
    for entry in shown:
        _head(out, entry, 0)
        for state, recipes in _grouped(entry["states"], lambda s: f"{s['old']} -> {s['new']}"):
            _print_group(out, recipes, state, by_name)
        for change, recipes in _grouped(entry["changes"], _shown):
            _print_group(out, recipes, change, by_name)
        for kind, keys in entry["recipes"].items():
            if keys:
                say(out, f"{kind}: {len(keys)} recipe{'s' * (len(keys) > 1)}, {_first(keys)}", 2)
        _print_source(out, entry["source"], 2)
        for moved in entry["submodules"]:
            _print_bump(out, moved)
    say(out, f"{len(shown)} of {len(entries)} commits change recompute settings or source")


def _head(out, entry, indent: int) -> None:
    from bisect_recompute.cli.tables import say

    say(out, f"{entry['commit'][:10]} {entry['date'][:10]} {entry['subject']}", indent, "bold yellow")
    say(out, f"[{', '.join(entry['kinds'])}]", indent + 2, "cyan")


def _grouped(items, text) -> list[tuple[str, list[str]]]:
    """Text -> the recipes for which it is the same."""
    groups: dict[str, list[str]] = {}
    for item in items:
        groups.setdefault(text(item), []).append(item["recipe"])
    return list(groups.items())


def _print_group(out, recipes: list[str], text: str, by_name: bool) -> None:
    from bisect_recompute.cli.tables import counted, say

    say(out, f"{counted([r or 'default' for r in recipes])}: {text}", 2)
    if by_name and len(recipes) > 1:
        for recipe in recipes:
            say(out, recipe, 6)


def _print_source(out, changes, indent: int) -> None:
    from bisect_recompute.cli.tables import say

    for source in changes[:20]:
        say(out, f"{source['kind']}: {source['file']}:{source['line']} {source['symbol']} {source['detail']}", indent)
    if len(changes) > 20:
        say(out, f"and {len(changes) - 20} more places in source (all with --json)", indent)


def _print_bump(out, moved) -> None:
    from bisect_recompute.cli.tables import say

    loud = [c for c in moved["commits"] if c["kinds"] != ["none"]]
    lost = f", and loses {len(moved['lost'])}" if moved["lost"] else ""
    say(out, f"{moved['path']}: " + (moved["problem"] or (
        f"brings {len(moved['commits'])} commits{lost}; {len(loud)} change recompute settings or source")), 2)
    for entry in loud:
        _head(out, entry, 4)
        for change, _ in _grouped(entry["changes"], _shown):
            say(out, change, 6)
        _print_source(out, entry["source"], 6)


def _shown(change) -> str:
    return f"{change['field']} {_value(change['old'])} -> {_value(change['new'])}  {change['file']}:{change['line']}"


def _value(value) -> str:
    return value.strip("<>") if isinstance(value, str) and value in ("<unset>", "<unknown>") else json.dumps(value)


def _first(keys) -> str:
    first = keys[0] if isinstance(keys[0], str) else " -> ".join(keys[0])
    return first + (", ..." if len(keys) > 1 else "")
