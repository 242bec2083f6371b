"""Which recipe that appears in a commit is one that vanishes in it, under another name or in another module."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Optional

from bisect_recompute.differ.recipes.recipes import Cell
from bisect_recompute.differ.recipes.source import SourceFile
from bisect_recompute.differ.recipes.values import MISSING, Func, Module, Partial

LIKE = 0.6
"""Share of equal lines above which a function is the same recipe under a new name."""


def pair(revision, gone: dict[str, Cell], bodies: dict[str, str], come: dict[str, Cell]) -> dict[str, str]:
    """Old key -> new key, at the new revision. ``bodies``: old key -> source of the function that is gone."""
    left, free = dict(gone), dict(come)
    pairs: dict[str, str] = {}

    def take(old: str, new: str) -> None:
        pairs[old] = new
        del left[old], free[new]

    for old, cell in gone.items():
        new = _by_alias(revision, cell) if cell.command_line is None else None
        if new in free:
            take(old, new)
    for normalise in (lambda name: name, _without_variant, _canonical):
        for old, new in _by_name(left, free, normalise):
            take(old, new)
    for old, new in _by_body(revision, left, free, bodies):
        if old in left and new in free:
            take(old, new)
    return pairs


def _by_alias(revision, cell: Cell) -> Optional[str]:
    """Where the old public name leads now: the module may still export it."""
    interpreter, world = revision.interpreter, revision.world
    module, _, name = cell.key.partition(":")
    while module.count(".") >= 2:
        path = world.find_module(module)
        if path is not None:
            try:
                value, _ = interpreter.evaluate(lambda: interpreter.module_attribute(Module(module, path), name))
            except Exception:
                # Whatever goes wrong in looking for an alias, there is none to be found here.
                value = MISSING
            if isinstance(value, Partial):
                value = value.func
            if isinstance(value, Func) and value.frame is None and (value.path, value.name) != (cell.path, cell.name):
                from bisect_recompute.differ.recipes.world import module_name

                return f"{module_name(value.path)}:{value.name}"
        module = module.rpartition(".")[0]
    return None


def _without_variant(name: str) -> str:
    """``f[bf16,v1]`` and the ``f[bf16]`` of before there were variants."""
    return re.sub(r",v\d+\]$", "]", name)


def _canonical(name: str) -> str:
    """What a launcher's cell is, however its function spells it: model, GPU, precision."""
    function, bracket, cell = _without_variant(name).partition("[")
    if not bracket:
        return name
    words = [w for w in function.split("_") if w not in ("config", "pretrain") and not re.fullmatch(r"\d+gpus?", w)]
    return "_".join(sorted(words)) + bracket + cell


def _by_name(gone: dict[str, Cell], come: dict[str, Cell], normalise) -> list[tuple[str, str]]:
    by_name: dict[str, list[str]] = defaultdict(list)
    for key in sorted(come):
        by_name[normalise(key.partition(":")[2])].append(key)
    found = []
    for old in sorted(gone):
        module, _, name = old.partition(":")
        candidates = by_name.get(normalise(name), [])
        if candidates:
            new = max(candidates, key=lambda k: _shared(module, k.partition(":")[0]))
            candidates.remove(new)
            found.append((old, new))
    return found


def _shared(a: str, b: str) -> int:
    return len(set(a.split(".")) & set(b.split(".")))


def _by_body(revision, gone: dict[str, Cell], come: dict[str, Cell], bodies: dict[str, str]) -> list[tuple[str, str]]:
    new_lines = {key: _lines(body_of(revision.world.file(cell.path), revision.world.chunks, cell)) for key, cell in come.items()
                 if cell.command_line is None}
    scored = []
    for old in gone:
        lines = _lines(bodies.get(old, "")) if gone[old].command_line is None else None
        if not lines:
            continue
        for new, others in new_lines.items():
            smaller, larger = sorted((len(lines), len(others)))
            if smaller >= LIKE * larger:
                share = len(lines & others) / len(lines | others)
                if share >= LIKE:
                    scored.append((share, _shared(old, new), old, new))
    taken: set[str] = set()
    found = []
    for _, _, old, new in sorted(scored, key=lambda s: (-s[0], -s[1], s[2], s[3])):
        if old not in taken and new not in taken:
            taken.update((old, new))
            found.append((old, new))
    return found


def body_of(file: Optional[SourceFile], chunks, cell: Cell) -> str:
    if file is None or cell.name not in file.bindings:
        return ""
    return chunks.text(file.bindings[cell.name][-1][1].chunk)


def _lines(body: str) -> frozenset[str]:
    return frozenset(line for line in map(str.strip, body.split("\n")) if len(line) > 6 and not line.startswith(("#", '"""')))
