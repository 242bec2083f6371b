"""One commit's source changes about recompute: the items of its old and new blocks, what is equal or only moved crossed out."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Callable, Iterable, Optional

from bisect_recompute.differ.source.change import SettingChange, SourceChange
from bisect_recompute.differ.source.chunks import Chunk, chunks
from bisect_recompute.differ.source.items import Item, items
from bisect_recompute.history.commit import ChangedPath
from bisect_recompute.differ.source.words import can_matter, is_word, may_speak
from bisect_recompute.differ.source import implementation, remarks, wording

ReadBlob = Callable[[str], Optional[bytes]]


@dataclass(frozen=True)
class Placed:
    file: str
    item: Item


@dataclass
class Side:
    """What differs on one side of a commit."""

    blocks: list[tuple[str, Chunk]]
    """File and block: only those that differ, after crossing out."""
    names: frozenset = frozenset()
    """Every class and function of the changed files that speak of recompute."""
    found: list[Placed] = field(default_factory=list)


class SourceDiffer:
    """Compares commits of one repository; blobs and blocks are remembered."""

    def __init__(self, read_blob: ReadBlob):
        self._read = read_blob
        self.blocks = lru_cache(maxsize=4096)(self._blocks)

    def changes(self, paths: Iterable[ChangedPath]) -> tuple[list[SettingChange], list[SourceChange]]:
        """Of one commit: the defaults that changed, and everything with a sentence on it."""
        paths = [p for p in paths if can_matter(p.path)]
        old = [(p.path, p.old_blob) for p in paths if p.old_blob]
        new = [(p.path, p.new_blob) for p in paths if p.new_blob]
        if not any(self.blocks(blob) for _, blob in old + new):
            return [], []
        before, after = self._side(old), self._side(new)
        same = Counter(_plain_text(c) for _, c in before.blocks) & Counter(_plain_text(c) for _, c in after.blocks)
        for side in (before, after):
            side.names = frozenset(name for _, c in side.blocks for name in c.symbol.split(".") if name)
            side.blocks = [(f, c) for f, c in _without(side.blocks, same) if may_speak(c.text)]
            side.found = [Placed(file, item) for file, chunk in side.blocks for item in _items(chunk)]
        before.found, after.found = _cross_out(before.found, after.found)
        before.found, after.found = _cross_out_renamed(before, after)
        found = wording.describe(before, after)
        found += implementation.changes(before, after, {(c.file, c.symbol) for c in found})
        found += remarks.changes(before, after, {(c.file, c.symbol) for c in found})
        return wording.settings(before, after), sorted(found, key=lambda c: (c.file, c.line, c.kind, c.detail))

    def _side(self, files: list[tuple[str, str]]) -> Side:
        return Side([(path, chunk) for path, blob in files for chunk in self.blocks(blob)])

    def _blocks(self, blob: str) -> tuple[Chunk, ...]:
        """The blocks of a file that may speak of recompute; none for a file that does not."""
        raw = self._read(blob)
        if raw is None or b"\0" in raw[:8000]:
            return ()
        source = raw.decode("utf-8", "replace").replace("\r\n", "\n").lstrip("\ufeff")
        return tuple(chunks(source)) if may_speak(source) else ()


@lru_cache(maxsize=20000)
def _plain_text(chunk: Chunk) -> str:
    return "\n".join(line.strip() for line in chunk.text.split("\n"))


def _without(blocks: list[tuple[str, Chunk]], same: Counter) -> list[tuple[str, Chunk]]:
    left, out = Counter(same), []
    for file, chunk in blocks:
        if left[_plain_text(chunk)] > 0:
            left[_plain_text(chunk)] -= 1
        else:
            out.append((file, chunk))
    return out


def _items(chunk: Chunk) -> tuple[Item, ...]:
    try:
        return items(chunk)
    except SyntaxError:
        return _lines(chunk)


def _lines(chunk: Chunk) -> tuple[Item, ...]:
    """What is left for a block that does not parse: its lines that hold a recompute name."""
    out = []
    for number, line in enumerate(chunk.text.split("\n")):
        code = re.sub(r"#.*", "", line).strip()
        if any(is_word(name) for name in re.findall(r"[A-Za-z_]\w*", code)):
            out.append(Item("use", "", " ".join(code.split()), frozenset(), chunk.symbol, chunk.line + number))
    return tuple(out)


def _cross_out(old: list[Placed], new: list[Placed]) -> tuple[list[Placed], list[Placed]]:
    """Removes equal pairs: those in the same place first, then those that moved."""
    for place in (lambda p: (p.file, p.item.symbol, p.item), lambda p: (p.item.symbol, p.item), lambda p: p.item):
        same = Counter(map(place, old)) & Counter(map(place, new))
        old, moved_from = _take(old, same, place)
        new, moved_to = _take(new, same, place)
    return old, new


def _take(placed, same, place):
    left, kept, taken = Counter(same), [], []
    for p in placed:
        if left[place(p)] > 0:
            left[place(p)] -= 1
            taken.append(p)
        else:
            kept.append(p)
    return kept, taken


def _cross_out_renamed(before: Side, after: Side) -> tuple[list[Placed], list[Placed]]:
    """Removes pairs that differ only by a name that went and another that came (variable, attribute, function)."""
    old, new = before.found, after.found
    old_names = {n for p in old for n in _names(p.item)}
    new_names = {n for p in new for n in _names(p.item)}
    gone, came = old_names - new_names, new_names - old_names
    if not gone or not came or len(gone) * len(came) > 400:
        return old, new
    for name in sorted(gone):
        users = [p for p in old if name in _names(p.item)]
        for other in sorted(came):
            if not _may_rename(name, other, before, after):
                continue
            renamed = [Placed(p.file, _renamed(p.item, name, other)) for p in users]
            left, rest = _cross_out(renamed, new)
            if not left:
                old = [p for p in old if p not in users]
                new = rest
                came.discard(other)
                break
    return old, new


def _may_rename(name: str, other: str, before: Side, after: Side) -> bool:
    # A known helper replaced by another one is a change of behaviour, unless the helper itself was renamed.
    if is_word(name) != is_word(other):
        return False
    was_defined, is_defined = name in before.names, other in after.names
    if was_defined or is_defined:
        return was_defined and is_defined and name not in after.names and other not in before.names
    return True


@lru_cache(maxsize=50000)
def _names(item: Item) -> frozenset:
    texts = [item.subject, item.content, *(literal for clause in item.guard for literal in clause)]
    return frozenset(name for t in texts for name in re.findall(r"(?<!['\"\w])[A-Za-z_]\w*(?!['\"])", t))


def _renamed(item: Item, name: str, other: str) -> Item:
    pattern = re.compile(rf"\b{re.escape(name)}\b")
    guard = frozenset(frozenset(pattern.sub(other, x) for x in clause) for clause in item.guard)
    return replace(item, subject=pattern.sub(other, item.subject), content=pattern.sub(other, item.content), guard=guard)
