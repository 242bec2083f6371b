"""Crosses out items that differ only by a name that went and another that came."""

from __future__ import annotations

import keyword
import re
from collections import defaultdict

_NAME = re.compile(r"(?<!['\"\w])[A-Za-z_]\w*(?!['\"])")


def cross_out_renamed(before, after):
    """``before`` and ``after``: compare.Side. The items left on each side.

    A name counts as renamed in a function when the old one is gone from it, the new one was not in it, and both are
    given their meaning (assigned, defined, a parameter) in the files of the commit: reading another, existing field
    instead is a change of behaviour.
    """
    old, new = before.found, after.found
    words = [_words_by_symbol(side.blocks) for side in (before, after)]
    symbols = {p.item.symbol for p in old} & {p.item.symbol for p in new}
    for symbol in sorted(symbols):
        mine = [p for p in old if p.item.symbol == symbol]
        theirs = [p for p in new if p.item.symbol == symbol]
        gone = {n for p in mine for n in _names(p.item)} - words[1][symbol]
        came = {n for p in theirs for n in _names(p.item)} - words[0][symbol]
        gone, came = _bound(gone, before.everything), _bound(came, after.everything)
        if gone and came:
            by_mask = defaultdict(list)
            for p in mine:
                by_mask[_masked(p.item, gone)].append(p)
            for p in theirs:
                twins = by_mask[_masked(p.item, came)]
                if twins:
                    old = _less(old, twins.pop())
                    new = _less(new, p)
    return old, new


def _less(placed: list, one) -> list:
    return [p for p in placed if p is not one]


def _words_by_symbol(blocks) -> dict[str, set[str]]:
    words = defaultdict(set)
    for _, chunk in blocks:
        found = set(re.findall(r"[A-Za-z_]\w*", chunk.text))
        words[chunk.symbol] |= found
        words[chunk.symbol.rpartition(".")[0]] |= found
    return words


def _names(item) -> set[str]:
    texts = [item.subject, item.content, *(literal for clause in item.guard for literal in clause)]
    return {name for text in texts for name in _NAME.findall(text) if not keyword.iskeyword(name)}


def _bound(names: set[str], blocks) -> set[str]:
    """Those that some block assigns, defines, imports or takes as a parameter."""
    out = set()
    for name in names:
        n = re.escape(name)
        binding = re.compile(
            rf"\b{n}\s*(?::[^=\n()]*)?=(?!=)|\b(?:def|class|for|as|import|lambda)\s+{n}\b|^\s*{n}\s*[:,]|[(,]\s*{n}\s*(?:[:,)]|in\b)",
            re.M,
        )
        if any(name in chunk.text and binding.search(chunk.text) for _, chunk in blocks):
            out.add(name)
    return out


def renamed(old, new, before, after) -> tuple[set[str], set[str]]:
    """Names that went and names that came between two versions of one block, as far as they may be renames."""
    words = [set(re.findall(r"[A-Za-z_]\w*", chunk.text)) for chunk in (old, new)]
    gone, came = words[0] - words[1], words[1] - words[0]
    return (_bound(gone, before.everything), _bound(came, after.everything)) if gone and came else (set(), set())


def masked(text: str, names: set[str]) -> str:
    return _NAME.sub(lambda m: "?" if m.group() in names else m.group(), text) if names else text


def _masked(item, names: set[str]) -> tuple:
    def mask(text: str) -> str:
        return masked(text, names)

    guard = tuple(sorted(tuple(sorted(map(mask, clause))) for clause in item.guard))
    return item.role, mask(item.subject), mask(item.content), guard
