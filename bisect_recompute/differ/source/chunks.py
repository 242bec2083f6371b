"""A Python file as blocks (functions, methods, class fields, other statements) found without parsing it.

Two versions of a file mostly share their blocks, so only those that differ are parsed, and a block that does not parse
(another Python, a merge marker) costs only itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterator

_TRIPLE = re.compile(r"\"\"\"|'''")
_CLOSED = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'")
_NAMED = re.compile(r"\s*(?:async\s+def|def|class)\s+(\w+)")
_FIELD = re.compile(r"\s*(\w+)\s*[:=](?!=)")
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


def _inside_string(source: str) -> set[int]:
    """Indices of lines that begin inside a string of several lines."""
    inside: set[int] = set()
    position, line, counted = 0, 0, 0
    while quote := _TRIPLE.search(source, position):
        begin = max(source.rfind("\n", 0, quote.start()) + 1, position)
        before = _CLOSED.sub("", source[begin:quote.start()])
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


def _members(lines, inside, name, start, head, end) -> Iterator[Chunk]:
    body = head
    while body < end and not re.sub(r"#.*", "", lines[body]).rstrip().endswith(":"):
        body += 1
    first = next((i for i in range(body + 1, end) if lines[i].strip() and lines[i].lstrip()[0] != "#"), None)
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
