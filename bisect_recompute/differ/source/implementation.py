"""Changes inside the code that carries out checkpointing or offloading itself: they reach every site at once."""

from __future__ import annotations

import ast
import re
from typing import Iterator, Optional

from bisect_recompute.differ.source.change import SourceChange
from bisect_recompute.differ.source.chunks import Chunk
from bisect_recompute.differ.source.conditions import applied
from bisect_recompute.differ.source.items import is_speech, parsed
from bisect_recompute.differ.source.renames import masked, renamed
from bisect_recompute.differ.source.words import is_word

_SILENT = (ast.Import, ast.ImportFrom, ast.Pass, ast.Raise, ast.Assert)
_DEFINES = re.compile(r"^\s*(?:async )?def ", re.M)
_INDENT = re.compile(r"^(?:[bofe]>)+")
_KEEPS = re.compile(
    r"save_for_backward|saved_tensors|untyped_storage|resize_|detach|copy_|storage|pin_memory|ctx\.\w+ =|\bdel\b"
)


def changes(before, after) -> list[SourceChange]:
    """``before`` and ``after``: compare.Side."""
    old = {(chunk.symbol, file): chunk for file, chunk in before.blocks}
    by_symbol = {chunk.symbol: chunk for _, chunk in before.blocks}
    out = []
    for file, chunk in after.blocks:
        was = old.get((chunk.symbol, file)) or by_symbol.get(chunk.symbol)
        if was is None or not _DEFINES.search(chunk.text) or not _implements(file, chunk.symbol):
            continue
        line = _first_difference(was, chunk, before, after)
        if line is not None:
            number, code = line
            code = _INDENT.sub("", code)
            what = "what it keeps alive changes" if _KEEPS.search(code) else "how it works changes"
            out.append(
                SourceChange(
                    file,
                    chunk.symbol,
                    "checkpoint-site",
                    number,
                    f"{chunk.symbol} is recompute's own code: {what} for every run that uses it ({code[:100]})",
                )
            )
    return out


def _implements(file: str, symbol: str) -> bool:
    stem = file.rpartition("/")[2].removesuffix(".py")
    return is_word(stem) or any(is_word(part) or part == "checkpoint" for part in symbol.split("."))


def _first_difference(old: Chunk, new: Chunk, before, after) -> Optional[tuple[int, str]]:
    """Line and text of the first statement that differs, None when the two do the same."""
    try:
        was, now = list(_statements(old)), list(_statements(new))
    except SyntaxError:
        return None
    gone, came = renamed(old, new, before, after)
    known, current = [masked(text, gone) for _, text in was], [masked(text, came) for _, text in now]
    if known == current:
        return None
    for (line, text), plain in zip(now, current):
        if plain not in known:
            return line, text
    lost = next((text for (_, text), plain in zip(was, known) if plain not in current), "")
    return new.line, f"without {_INDENT.sub('', lost)}" if lost else "in another order"


def _unparse(node: ast.AST) -> str:
    return applied(ast.unparse(node))


def _statements(chunk: Chunk) -> Iterator[tuple[int, str]]:
    """Line and text of every statement; of a compound one, its head. No docstrings, annotations or log lines."""
    body, offset = parsed(chunk)
    for root in body:
        for node in ast.walk(root):
            for name in ("annotation", "returns"):
                if hasattr(node, name) and not isinstance(node, ast.AnnAssign):
                    setattr(node, name, None)
    yield from _flat(body, offset, "")


def _flat(body, offset, indent) -> Iterator[tuple[int, str]]:
    for node in body:
        if isinstance(node, ast.Expr) and is_speech(node) or isinstance(node, _SILENT):
            continue
        if isinstance(node, ast.If) and all(isinstance(n, ast.Raise) for n in node.body) and not node.orelse:
            continue
        inner = [(name, getattr(node, name)) for name in ("body", "orelse", "finalbody") if getattr(node, name, None)]
        inner += [("except", handler.body) for handler in getattr(node, "handlers", ())]
        if inner and isinstance(node, ast.stmt):
            yield node.lineno + offset, indent + _unparse(node).split("\n")[0]
            for name, block in inner:
                yield from _flat(block, offset, f"{indent}{name[0]}>")
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield node.lineno + offset, f"{indent}{_unparse(node.target)} = {_unparse(node.value)}"
        else:
            yield node.lineno + offset, indent + _unparse(node)
