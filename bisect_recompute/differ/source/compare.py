"""One commit's source changes about recompute: items of old and new blocks, the equal and moved ones crossed out."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Callable, Iterable, Optional

from bisect_recompute.differ.source import implementation, remarks, wording
from bisect_recompute.differ.source.change import SettingChange, SourceChange
from bisect_recompute.differ.source.chunks import Chunk, chunks, reduced
from bisect_recompute.differ.source.items import Item, items
from bisect_recompute.differ.source.renames import cross_out_renamed
from bisect_recompute.differ.source.words import can_matter, is_word, may_speak
from bisect_recompute.history.commit import ChangedPath

_LINK = re.compile(r"[\w./-]+")
"""What a symbolic link's blob holds: a path, and no line end."""
ReadBlob = Callable[[str], Optional[bytes]]
Block = tuple[str, Chunk]
"""File and block."""


@dataclass(frozen=True)
class Placed:
    file: str
    item: Item


@dataclass
class Side:
    """One side of a commit."""

    files: dict[str, Callable[[], str]]
    """Path and source of every changed file that can matter."""
    everything: list[Block]
    """All blocks of those files that speak of recompute somewhere."""
    blocks: list[Block] = field(default_factory=list)
    """Those that speak of it themselves and are not on the other side too."""
    found: list[Placed] = field(default_factory=list)
    """Items of ``blocks`` that are not on the other side too."""

    def __post_init__(self):
        self.symbols = {chunk.symbol for _, chunk in self.everything}
        self._defined = {name: True for symbol in self.symbols for name in symbol.split(".")}

    def defines(self, name: str) -> bool:
        """A changed file holds a class or function of this name."""
        if name not in self._defined:
            pattern = re.compile(rf"^[ \t]*(?:class|(?:async )?def)[ \t]+{re.escape(name)}\b", re.M)
            sources = (source() for source in self.files.values())
            self._defined[name] = any(name in source and pattern.search(source) for source in sources)
        return self._defined[name]


class SourceDiffer:
    """Compares commits of one repository; files and blocks are remembered by content."""

    def __init__(self, read_blob: ReadBlob):
        self._read = read_blob
        self.blocks = lru_cache(maxsize=1024)(self._blocks)

    def changes(self, paths: Iterable[ChangedPath]) -> tuple[list[SettingChange], list[SourceChange]]:
        """Of one commit: the defaults that changed, and everything with a sentence on it."""
        paths = [p for p in paths if can_matter(p.path)]
        old = [(p.path, p.old_blob) for p in paths if p.old_blob]
        new = [(p.path, p.new_blob) for p in paths if p.new_blob]
        if not any(self.blocks(blob) for _, blob in old + new):
            return [], []
        before, after = self._side(old), self._side(new)
        same = Counter(_bare(c) for _, c in before.everything) & Counter(_bare(c) for _, c in after.everything)
        for side in (before, after):
            side.blocks = [(file, c) for file, c in _without(side.everything, same) if may_speak(c.text)]
        _reduce(before, after)
        for side in (before, after):
            side.found = _last_defaults(Placed(file, item) for file, chunk in side.blocks for item in _items(chunk))
        regions = wording.regions(before.found, after.found)
        before.found, after.found = _cross_out(before.found, after.found)
        if before.found and after.found:
            before.found, after.found = cross_out_renamed(before, after)
        return wording.settings(before, after), _sentences(before, after, regions)

    def _side(self, files: list[tuple[str, str]]) -> Side:
        sources = {path: partial(self._source, blob) for path, blob in files}
        return Side(sources, [(path, chunk) for path, blob in files for chunk in self.blocks(blob)])

    def _blocks(self, blob: str) -> tuple[Chunk, ...]:
        """The blocks of a file that may speak of recompute; none for a file that does not, or that the clone lacks."""
        source = self._source(blob)
        return tuple(chunks(source)) if may_speak(source) else ()

    def _source(self, blob: str) -> str:
        raw = self._read(blob)
        if raw is None or b"\0" in raw[:8000]:
            return ""
        source = raw.decode("utf-8", "replace").replace("\r\n", "\n").lstrip("\ufeff")
        return "" if _LINK.fullmatch(source) else source


def _sentences(before: Side, after: Side, regions: list[SourceChange]) -> list[SourceChange]:
    found = wording.describe(before, after) + regions
    for more in (implementation.changes(before, after), remarks.changes(before, after)):
        told = {(c.file, c.symbol) for c in found if c.kind != "plumbing"}
        more = [c for c in more if (c.file, c.symbol) not in told]
        louder = {(c.file, c.symbol) for c in more}
        found = [c for c in found if (c.file, c.symbol) not in louder] + more
    return sorted(found, key=lambda c: (c.file, c.line, c.kind, c.detail))


@lru_cache(maxsize=20000)
def _bare(chunk: Chunk) -> str:
    """The block's text at any indentation."""
    return "\n".join(line.strip() for line in chunk.text.split("\n"))


def _without(blocks: list[Block], same: Counter) -> list[Block]:
    left, out = Counter(same), []
    for file, chunk in blocks:
        if left[_bare(chunk)] > 0:
            left[_bare(chunk)] -= 1
        else:
            out.append((file, chunk))
    return out


def _reduce(before: Side, after: Side) -> None:
    """Of functions that are on both sides, only what differs needs to be parsed."""
    index = {(file, chunk.symbol): i for i, (file, chunk) in enumerate(before.blocks)}
    for j, (file, chunk) in enumerate(after.blocks):
        i = index.pop((file, chunk.symbol), None)
        if i is not None and chunk.symbol:
            was, now = reduced(before.blocks[i][1], chunk)
            before.blocks[i], after.blocks[j] = (file, was), (file, now)


def _items(chunk: Chunk) -> tuple[Item, ...]:
    try:
        return items(chunk)
    except SyntaxError:
        return _lines(chunk)


def _lines(chunk: Chunk) -> tuple[Item, ...]:
    """What is left for a block that does not parse: its lines that hold a recompute name."""
    out = []
    for number, line in enumerate(chunk.text.split("\n")):
        code = " ".join(re.sub(r"#.*", "", line).split())
        if any(is_word(name) for name in re.findall(r"[A-Za-z_]\w*", code)):
            out.append(Item("use", "", code, frozenset(), chunk.symbol, chunk.line + number))
    return tuple(out)


def _last_defaults(found: Iterable[Placed]) -> list[Placed]:
    """Of a field assigned twice in one class only the last, as Python has it."""
    out: dict[object, Placed] = {}
    for p in found:
        out[(p.file, p.item.symbol, p.item.subject) if p.item.role == "default" else len(out)] = p
    return list(out.values())


def _cross_out(old: list[Placed], new: list[Placed]) -> tuple[list[Placed], list[Placed]]:
    """Removes equal pairs: those in the same place first, then those that moved."""
    for place in (lambda p: (p.file, p.item.symbol, p.item), lambda p: (p.item.symbol, p.item), lambda p: p.item):
        same = Counter(map(place, old)) & Counter(map(place, new))
        old, new = _not_in(old, same, place), _not_in(new, same, place)
    return old, new


def _not_in(placed: list[Placed], same: Counter, place) -> list[Placed]:
    left, kept = Counter(same), []
    for p in placed:
        if left[place(p)] > 0:
            left[place(p)] -= 1
        else:
            kept.append(p)
    return kept
