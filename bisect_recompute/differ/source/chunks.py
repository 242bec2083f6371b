"""A Python file as blocks (functions, methods, class fields, other statements) found without parsing it.

Two versions of a file mostly share their blocks, so only those that differ are parsed, and a block that does not parse
(another Python, a merge marker) costs only itself.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Iterator, Optional

_TRIPLE = re.compile(r"\"\"\"|'''")
_CLOSED = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'")
_NAMED = re.compile(r"\s*(?:async\s+def|def|class)\s+(\w+)")
_FIELD = re.compile(r"\s*(\w+)\s*[:=](?!=)")
_BINDS = re.compile(r"\b(?:return|break|continue|def|class|lambda)\b")
_LEAVES = re.compile(r"^\s+(?:return|break|continue)\b", re.M)
_CONTINUES = re.compile(r"\s*(?:[)\]}]|(?:else|elif|except|finally)\b)")


@dataclass(frozen=True)
class Chunk:
    symbol: str
    """Class and name, dotted; empty for other module-level statements."""
    text: str
    """Source with its own indentation, without trailing blank and comment lines."""
    line: int
    """Line of the file on which the text begins."""
    in_class: bool


def chunks(source: str) -> list[Chunk]:
    """The blocks of a file in order. Never fails: text that is no Python comes out as some blocks."""
    lines = source.split("\n")
    inside = _inside_string(source)
    out: list[Chunk] = []
    for start, end in _blocks(lines, inside, 0, len(lines), 0):
        head = _head(lines, start, end)
        match = _NAMED.match(lines[head])
        if match and lines[head].lstrip().startswith("class"):
            out.extend(_members(lines, inside, match.group(1), start, head, end))
        else:
            out.append(_chunk(lines, start, end, match.group(1) if match else "", False))
    return out


def reduced(old: Chunk, new: Chunk) -> tuple[Chunk, Chunk]:
    """Two versions of a long function without the statements that they share, which become blank lines.

    What decides how others are read stays: early exits and nested functions; where an early exit differs all stays.
    Parsing a validator of a thousand lines for one that changed is most of a diff's time otherwise.
    """
    sides = [_statement_blocks(chunk) for chunk in (old, new)]
    if not all(sides):
        return old, new
    texts = [Counter("\n".join(lines[a:b]).strip() for a, b in blocks) for lines, blocks in sides]
    shared = texts[0] & texts[1]
    if any(_LEAVES.search(text) for side in texts for text in side - shared):
        return old, new
    out = []
    for chunk, (lines, blocks) in zip((old, new), sides):
        left = Counter(shared)
        for begin, end in blocks[1:]:
            text = "\n".join(lines[begin:end]).strip()
            if left[text] > 0 and not _BINDS.search(text):
                left[text] -= 1
                lines[begin:end] = [""] * (end - begin)
        out.append(replace(chunk, text="\n".join(lines)))
    return out[0], out[1]


def _statement_blocks(chunk: Chunk) -> Optional[tuple[list[str], list[tuple[int, int]]]]:
    lines = chunk.text.split("\n")
    if len(lines) < 60 or not re.match(r"\s*(async )?def ", lines[_head(lines, 0, len(lines))]):
        return None
    head = _head(lines, 0, len(lines))
    first = _body(lines, head, len(lines))
    if first is None:
        return None
    indent = len(lines[first]) - len(lines[first].lstrip())
    blocks = list(_blocks(lines, _inside_string(chunk.text), first, len(lines), indent))
    return (lines, blocks) if blocks else None


def _inside_string(source: str) -> set[int]:
    """Indices of lines that begin inside a string of several lines."""
    inside: set[int] = set()
    position, line, counted = 0, 0, 0
    while quote := _TRIPLE.search(source, position):
        begin = max(source.rfind("\n", 0, quote.start()) + 1, position)
        before = _CLOSED.sub("", source[begin : quote.start()])
        if "#" in before:
            position = source.find("\n", quote.start())
            if position < 0:
                break
            continue
        if "'" in before or '"' in before:  # inside an ordinary string
            position = quote.end()
            continue
        end = _closing(source, quote.group(), quote.end())
        line += source.count("\n", counted, quote.start())
        height = source.count("\n", quote.start(), end)
        inside.update(range(line + 1, line + 1 + height))
        line, counted, position = line + height, end, end
    return inside


def _closing(source: str, quote: str, start: int) -> int:
    end = source.find(quote, start)
    while end > start and source[end - 1] == "\\" and source[end - 2] != "\\":
        end = source.find(quote, end + 1)
    return len(source) if end < 0 else end + 3


def _blocks(lines, inside, start, end, indent) -> Iterator[tuple[int, int]]:
    begin, decorated = None, False
    for i in range(start, end):
        line = lines[i]
        if i in inside or len(line) - len(line.lstrip()) != indent or not line.strip() or line.lstrip()[0] == "#":
            continue
        if _CONTINUES.match(line) and begin is not None:
            continue
        if not decorated:
            if begin is not None:
                yield begin, i
            begin = i
        decorated = line.lstrip().startswith("@")
    if begin is not None:
        yield begin, end


def _head(lines, start, end) -> int:
    """The line of ``def`` or ``class``, after decorators (of one or more lines)."""
    if lines[start].lstrip().startswith("@"):
        for i in range(start + 1, end):
            if _NAMED.match(lines[i]):
                return i
    return start


def _body(lines, head, end) -> Optional[int]:
    """The first line under the head that begins at ``head``."""
    while head < end and not re.sub(r"#.*", "", lines[head]).rstrip().endswith(":"):
        head += 1
    return next((i for i in range(head + 1, end) if lines[i].strip() and lines[i].lstrip()[0] != "#"), None)


def _members(lines, inside, name, start, head, end) -> Iterator[Chunk]:
    first = _body(lines, head, end)
    if first is None:
        yield _chunk(lines, start, end, name, False)
        return
    indent = len(lines[first]) - len(lines[first].lstrip())
    if indent == 0:
        yield _chunk(lines, start, end, name, False)
        return
    for begin, stop in _blocks(lines, inside, first, end, indent):
        match = _NAMED.match(lines[_head(lines, begin, stop)]) or _FIELD.match(lines[begin])
        yield _chunk(lines, begin, stop, f"{name}.{match.group(1)}" if match else name, True)


def _chunk(lines, start, end, symbol, in_class) -> Chunk:
    while end > start + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    return Chunk(symbol, "\n".join(lines[start:end]), start + 1, in_class)
