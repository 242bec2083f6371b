"""Code that only a comment ties to recompute: the statement under the comment changed, no name in it says so."""

from __future__ import annotations

import ast
from typing import Iterable, Iterator, NamedTuple

from bisect_recompute.differ.source.change import SourceChange
from bisect_recompute.differ.source.chunks import Chunk
from bisect_recompute.differ.source.items import parsed
from bisect_recompute.differ.source.words import REMARK


def changes(before, after) -> list[SourceChange]:
    """``before`` and ``after``: compare.Side. One change per function at most."""
    old = {(file, chunk.symbol): chunk for file, chunk in before.blocks}
    out = []
    for file, chunk in after.blocks:
        was = old.get((file, chunk.symbol))
        if was is None or not (REMARK.search(_comments(chunk.text)) or REMARK.search(_comments(was.text))):
            continue
        try:
            marked, unmarked = _under_remarks(chunk), _under_remarks(was)
            if marked == unmarked:
                continue
            gone, came = unmarked - _texts(_statements(chunk)), marked - _texts(_statements(was))
        except SyntaxError:
            continue
        if gone or came:
            line = next((s.line for s in _statements(chunk) if came and s.text() in came), chunk.line)
            code = sorted(came or gone)[0][-100:]
            out.append(
                SourceChange(
                    file,
                    chunk.symbol,
                    "checkpoint-site",
                    line,
                    f"what happens during activation recompute changes: {'' if came else 'without '}{code}",
                )
            )
    return out


def _comments(text: str) -> str:
    """The comment lines, each run of them as one line."""
    lines = [line.strip() for line in text.split("\n")]
    return "\n".join(line for line in " ".join(x[1:] if x.startswith("#") else "\n" for x in lines).split("\n"))


def _under_remarks(chunk: Chunk) -> set[str]:
    """The first statement under each comment about recompute."""
    lines = chunk.text.split("\n")
    starts = []
    block = ""
    for number, line in enumerate(lines):
        bare = line.strip()
        if bare.startswith("#"):
            block += " " + bare[1:].strip()
        else:
            if bare and REMARK.search(block):
                starts.append(chunk.line + number)
            block = ""
    wanted = set(starts)
    return _texts(s for s in _statements(chunk) if s.line in wanted)


class _Statement(NamedTuple):
    line: int
    node: ast.stmt
    tests: tuple[str, ...]

    def text(self) -> str:
        return "".join(f"if {t}: " for t in self.tests) + ast.unparse(self.node)


def _texts(statements: Iterable[_Statement]) -> set[str]:
    return {s.text() for s in statements}


def _statements(chunk: Chunk) -> Iterator[_Statement]:
    body, offset = parsed(chunk)
    yield from _guarded(body, offset, ())


def _guarded(body, offset, tests) -> Iterator[_Statement]:
    for node in body:
        if isinstance(node, ast.If):
            test = ast.unparse(node.test)
            yield from _guarded(node.body, offset, (*tests, test))
            yield from _guarded(node.orelse, offset, (*tests, f"not ({test})"))
        elif hasattr(node, "body"):
            for name in ("body", "orelse", "finalbody"):
                yield from _guarded(getattr(node, name, []), offset, tests)
        else:
            yield _Statement(node.lineno + offset, node, tests)
