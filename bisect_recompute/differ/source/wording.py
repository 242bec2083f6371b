"""From items that are left on one side of a commit to sentences."""

from __future__ import annotations

import ast
import re
from collections import defaultdict

from bisect_recompute.differ.source.change import SettingChange, SourceChange
from bisect_recompute.differ.source.conditions import shown
from bisect_recompute.differ.source.words import NEIGHBOURS

_OFF = {"None", "False", "0", "[]", "()", "''", "0.0"}


def describe(before, after) -> list[SourceChange]:
    """``before`` and ``after``: compare.Side with crossed-out items."""
    roles = defaultdict(lambda: ([], []))
    out, kept = _whole(before, after)
    for index, placed in kept:
        roles[placed.item.role][index].append(placed)
    for role, tell in (
        ("default", _defaults),
        ("argument", _arguments),
        ("labels", _labels),
        ("fail", _fails),
        ("site", _sites),
        ("decision", _decisions),
        ("fill", _decisions),
    ):
        out += tell(*roles[role], before, after)
    loud = {(c.file, c.symbol) for c in out}
    out += _uses(roles["use"], roles["branch"], loud)
    return out


def _whole(before, after):
    """Classes and functions that come or go as a whole, in one sentence each; and the items of all others.

    Where one goes and another comes it may be the same under a new name: then each of its items is told.
    """
    containers = [defaultdict(list), defaultdict(list)]
    kept = []
    for index, (side, other) in enumerate(((before, after), (after, before))):
        for placed in side.found:
            top = placed.item.symbol.split(".")[0]
            whole = top and not other.defines(top)
            containers[index][(placed.file, top)].append(placed) if whole else kept.append((index, placed))
    gone, came = containers
    if gone and came:
        kept += [(index, p) for index in (0, 1) for group in containers[index].values() for p in group]
        return [], kept
    out = [
        _comes_or_goes(file, top, group, came=False)
        for (file, top), group in gone.items()
        if _loud(group)
        # a legacy tree that goes takes nothing from anybody who does not fail at once
        and "legacy" not in file
    ]
    if out or any(p.item.role != "use" for _, p in kept):
        # By itself a new class changes nothing for anybody; beside other changes it belongs to the picture.
        out += [_comes_or_goes(file, top, group, came=True) for (file, top), group in came.items() if _loud(group)]
    return out, kept


def _loud(group) -> list:
    return [p for p in group if p.item.role in ("site", "decision", "fill", "fail")]


def _comes_or_goes(file, top, group, came: bool) -> SourceChange:
    loud = _loud(group)
    sites = sum(p.item.role == "site" for p in loud)
    what = f"{sites} checkpoint site{'s' if sites != 1 else ''}" if sites else "recompute conditions"
    detail = (
        f"{top} is new and has {what}: runs that do not use it do not change"
        if came
        else f"{top} is removed with its {what}: runs that use it fail or must use another class"
    )
    return SourceChange(file, top, "plumbing" if came else "checkpoint-site", min(p.item.line for p in loud), detail)


def regions(old, new) -> list[SourceChange]:
    """Sites as before whose checkpointed local function now holds calls that stood outside it, or the reverse."""
    was = {(p.file, p.item.symbol, p.item): p.item for p in old if p.item.inside}
    out = []
    for p in new:
        before, now = was.get((p.file, p.item.symbol, p.item)), p.item
        if before is None or before.inside == now.inside:
            continue
        into = (now.inside - before.inside) & before.outside_only - now.outside_only
        out_of = (before.inside - now.inside) & now.outside_only
        parts = [
            f"{verb} {', '.join(sorted(names))}"
            for verb, names in (("now also recomputes", into), ("no longer recomputes", out_of))
            if names
        ]
        if parts:
            out.append(_change(p, "checkpoint-site", f"{_what(now)}: {'; '.join(parts)}"))
    return out


def settings(before, after) -> list[SettingChange]:
    """Defaults of fields and command line flags that are another value than before."""
    out = []
    for role in ("default", "argument"):
        old, new = ([p for p in side.found if p.item.role == role] for side in (before, after))
        for was, now in _pairs(old, new, _default_key):
            if was and now and not _same_default(was, now):
                field = now.item.subject.lstrip("-").replace("-", "_")
                holder = now.item.symbol if role == "default" else f"{now.item.symbol} {now.item.subject}"
                out.append(
                    SettingChange(holder, field, _literal(_first(was)), _literal(_first(now)), now.file, now.item.line)
                )
    return out


def _default_key(placed):
    return placed.item.symbol.rpartition(".")[2] if placed.item.role == "default" else "", placed.item.subject


def _first(placed) -> str:
    return placed.item.content.split("\n")[0]


def _same_default(was, now) -> bool:
    return _first(was) == _first(now) or {_first(was), _first(now)} == {"None", "False"}


def _literal(source: str):
    try:
        return ast.literal_eval(source)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return source


def _change(placed, kind, detail) -> SourceChange:
    return SourceChange(placed.file, placed.item.symbol, kind, placed.item.line, detail)


def _pairs(old, new, key):
    """(old or None, new or None) for every key."""
    by_key = defaultdict(lambda: ([], []))
    for index, side in enumerate((old, new)):
        for placed in side:
            by_key[key(placed)][index].append(placed)
    for olds, news in by_key.values():
        for i in range(max(len(olds), len(news))):
            yield (olds[i] if i < len(olds) else None), (news[i] if i < len(news) else None)


def _defaults(old, new, before, after):
    for was, now in _pairs(old, new, _default_key):
        placed = now or was
        name, owner = placed.item.subject, placed.item.symbol
        if was and now:
            if not _same_default(was, now):
                yield _change(
                    now,
                    "default",
                    f"{owner}.{name} now defaults to {now.item.content} (was {was.item.content}): "
                    "runs that leave it out change",
                )
        elif name in NEIGHBOURS:
            continue
        elif f"{owner}.{name}" in (after.symbols if was else before.symbols):
            continue  # written twice on one side
        elif now:
            on = now.item.content == "True"
            effect = "in effect for runs that do not set it" if on else "nothing changes for runs that do not set it"
            yield _change(
                now, "default" if on else "plumbing", f"new field {owner}.{name}, default {now.item.content}: {effect}"
            )
        else:
            yield _change(
                was,
                "plumbing",
                f"field {owner}.{name} (default {was.item.content}) is gone: setting it has no effect or fails",
            )


def _arguments(old, new, before, after):
    for was, now in _pairs(old, new, _default_key):
        placed = now or was
        flag = placed.item.subject
        if was and now:
            (d0, c0), (d1, c1) = (p.item.content.split("\n", 1) for p in (was, now))
            if not _same_default(was, now):
                yield _change(now, "default", f"{flag} now defaults to {d1} (was {d0}): runs that leave it out change")
            if c0 != c1:
                yield _change(now, "validation", f"{flag} now accepts {c1 or 'anything'} (was {c0 or 'anything'})")
        elif flag.lstrip("-").replace("-", "_") in NEIGHBOURS:
            continue
        else:
            word = "new" if now else "removed"
            yield _change(placed, "plumbing", f"{word} command line flag {flag} (default {_first(placed)})")


def _labels(old, new, before, after):
    for was, now in _pairs(old, new, lambda p: p.item.subject):
        placed = now or was
        a, b = (set(p.item.content.split()) if p else set() for p in (was, now))
        parts = [
            f"{word} {', '.join(sorted(labels))}"
            for word, labels in (("now accepts", b - a), ("no longer accepts", a - b))
            if labels
        ]
        if parts:
            yield _change(placed, "validation", f"{placed.item.subject} {' and '.join(parts)}")


def _fails(old, new, before, after):
    seen = set()
    for p in old:
        if ("old", p.item.guard) not in seen:
            seen.add(("old", p.item.guard))
            yield _change(p, "validation", f"no longer fails when {shown(p.item.guard)}")
    for p in new:
        if ("new", p.item.guard) not in seen:
            seen.add(("new", p.item.guard))
            yield _change(p, "validation", f"now fails when {shown(p.item.guard)}")


def _sites(old, new, before, after):
    for key in (
        lambda p: (p.item.symbol, p.item.subject, p.item.content),
        lambda p: (p.item.symbol, p.item.subject, p.item.guard),
        lambda p: (p.item.symbol, p.item.subject),
        lambda p: (p.item.symbol.rpartition(".")[2], p.item.subject, p.item.content),
        lambda p: (p.item.subject, p.item.content),
        lambda p: (p.item.subject, p.item.content.split("\n")[0]),
    ):
        left_old, left_new = [], []
        for was, now in _pairs(old, new, key):
            if was and now:
                moved = f" (moved from {was.item.symbol})" if was.item.symbol != now.item.symbol else ""
                yield _change(now, "checkpoint-site", _site_change(was.item, now.item) + moved)
            elif was:
                left_old.append(was)
            else:
                left_new.append(now)
        old, new = left_old, left_new
    for p in new:
        yield _change(p, "checkpoint-site", f"new {_what(p.item)}{_if(p.item.guard)}")
    for p in old:
        yield _change(p, "checkpoint-site", f"{_what(p.item)}{_if(p.item.guard)} is gone")


def _what(item) -> str:
    argument = item.content.split("\n")[0]
    return f"{item.subject}({argument[:60]})"


def _if(guard) -> str:
    return f" when {shown(guard)}" if guard else ""


def _site_change(was, now) -> str:
    parts = []
    if was.guard != now.guard:
        added, removed = now.guard - was.guard, was.guard - now.guard
        if added and not removed:
            parts.append(f"now only when {shown(added)}")
        elif removed and not added:
            parts.append(f"no longer only when {shown(removed)}")
        else:
            parts.append(f"now when {shown(added)} (was: {shown(removed)})")
    if was.content != now.content:
        a, b = was.content.split("\n"), now.content.split("\n")
        came, went = [x for x in b if x not in a], [x for x in a if x not in b]
        bits = ([f"now with {', '.join(came)}"] if came else []) + ([f"without {', '.join(went)}"] if went else [])
        parts.append("what crosses the boundary changes: " + (", ".join(bits) or "other order"))
    return f"{_what(now)}: {'; '.join(parts)}"


def _decisions(old, new, before, after):
    for was, now in _pairs(old, new, lambda p: (p.item.symbol.rpartition(".")[2], p.item.subject)):
        placed = now or was
        field = placed.item.subject
        validator = re.search(r"post_init|valid|finalize|arguments", placed.item.symbol)
        kind = "checkpoint-site" if not validator else "default" if placed.item.role == "fill" else "validation"
        if was and now:
            detail = f"{field} is now {_value(now)} (was {_value(was)})"
        elif now:
            detail = f"{field} is now set to {_value(now)}"
            if kind == "checkpoint-site" and now.item.content in _OFF:
                continue
        else:
            detail = f"{field} is no longer set to {_value(was)}"
            if kind == "checkpoint-site" and was.item.content in _OFF:
                continue
        yield _change(placed, kind, detail)


def _value(placed) -> str:
    return f"{placed.item.content[:160]}{_if(placed.item.guard)}"


def _uses(uses, branches, loud):
    """One line per function for names that are only handed on; none where something stronger is said already."""
    told = set()
    for word, sides in (("passes on", uses), ("runs under a recompute condition", branches)):
        for index, verb in ((1, "now"), (0, "no longer")):
            for p in sides[index]:
                place = (p.file, p.item.symbol)
                if place not in loud and place not in told:
                    told.add(place)
                    yield _change(p, "plumbing", f"{verb} {word}: {p.item.content[:120]}{_if(p.item.guard)}")
