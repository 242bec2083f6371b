"""Words of the commands in a shell script, as far as they follow from its text. Nothing is executed.

A variable that only an environment could set keeps the default that the script gives it (``${TP:-2}``). What a condition or a
loop decides is unknown.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Iterator

import tree_sitter
import tree_sitter_bash

_LANGUAGE = tree_sitter.Language(tree_sitter_bash.language())
_DECIDED = frozenset(("if_statement", "case_statement", "for_statement", "c_style_for_statement", "while_statement"))
CONDITION = "depends on"
_DEEPEST = 200
_NESTED = 3
"""Scripts in scripts."""
_MOST = 20_000


UNKNOWN = "\N{OBJECT REPLACEMENT CHARACTER}"
"""In a word's text, in place of a part that is not known."""
_MAYBE = "\N{INTERLINEAR ANNOTATION TERMINATOR}"
"""Within a string, before a word that is there only under a condition."""


@dataclass(frozen=True)
class Word:
    text: str
    line: int
    reason: str = ""
    """Why it is not known, or only there under a condition."""


@functools.lru_cache(maxsize=512)
def commands(source: bytes) -> tuple[tuple[Word, ...], ...]:
    """The words of each command of the script, in order; at the end those of variables that only other scripts can use."""
    script = _Script({})
    found = [*script.commands(source), *script.left()]
    return tuple(tuple(words[:_MOST]) for words in found)


class _Script:
    def __init__(self, variables: dict[str, list[Word]], first_line: int = 1, nested: int = 0):
        self._variables, self._first_line, self._nested = variables, first_line, nested
        self._source = b""
        self._used: set[str] = set()

    def commands(self, source: bytes) -> Iterator[list[Word]]:
        self._source = source
        yield from self._below(tree_sitter.Parser(_LANGUAGE).parse(source).root_node, "", 0)

    def left(self) -> Iterator[list[Word]]:
        """Options in variables that no command of the script has used."""
        for name, words in self._variables.items():
            if name not in self._used:
                yield [part for word in words for part in split(word)]

    def _below(self, node, condition: str, depth: int) -> Iterator[list[Word]]:
        if depth > _DEEPEST:
            return
        if node.type == "variable_assignment":
            self._assign(node, condition)
        elif node.type == "command":
            words = [self._under(word, condition) for child in node.children for word in self._words(child)]
            told = self._told(words)
            yield [word for word in words if word not in told]
            for script in told:
                yield from self._inner(script, script.line)
        elif node.type == "heredoc_body":
            yield from self._inner(self._string(node, whole=True), node.start_point[0] + self._first_line)
        else:
            if node.type in _DECIDED:
                condition = condition or f"{CONDITION} the {node.type.partition('_')[0]} in line {self._line(node)}"
            for child in node.children:
                if child.type == "||":
                    condition = condition or f"{CONDITION} a failure in line {self._line(node)}"
                yield from self._below(child, condition, depth + 1)

    def _told(self, words: list[Word]) -> list[Word]:
        """What a shell is told to run: ``bash -c '...'``."""
        pairs = zip(words, words[1:])
        return [word for flag, word in pairs if re.fullmatch(r"-[a-z]*c", flag.text) and re.search(r"\s", word.text)]

    def _inner(self, script: Word, line: int) -> Iterator[list[Word]]:
        if self._nested < _NESTED:
            inner = _Script(self._variables, line, self._nested + 1)
            yield from inner.commands(script.text.encode("utf-8", "replace"))
            self._used |= inner._used

    def _line(self, node) -> int:
        return node.start_point[0] + self._first_line

    def _under(self, word: Word, condition: str) -> Word:
        return Word(word.text, word.line, condition or word.reason)

    def _assign(self, node, condition: str) -> None:
        target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if target is None or target.type != "variable_name":
            return
        name = self._text(target)
        words = self._words(value, keep_whole=True) if value is not None else []
        adds = any(child.type == "+=" for child in node.children)
        before = self._variables.get(name, [])
        if before and words[: len(before)] == before:  # ARGS=("${ARGS[@]}" --more)
            words, adds, value = words[len(before):], True, None
        words = [self._under(word, condition) for word in words]
        if adds and value is not None and value.type != "array" and before:
            words = [_joined([before[-1], *words])]
            before = before[:-1]
        if adds:
            self._variables[name] = (before + words)[:_MOST]
        elif condition and before:
            self._variables[name] = [Word(UNKNOWN, self._line(node), condition)]
        else:
            self._variables[name] = words

    def _words(self, node, keep_whole: bool = False) -> list[Word]:
        """What the shell makes of a node: no word, one or several. ``keep_whole``: no splitting at blanks, as in assignments."""
        line = self._line(node)
        if node.type in ("command_name", "array"):
            return [word for child in node.named_children for word in self._words(child)]
        if node.type in ("comment", "file_redirect", "heredoc_redirect", "herestring_redirect", "variable_assignment"):
            return []
        if node.type in ("simple_expansion", "expansion"):
            found = self._expanded(node)
            return found if keep_whole else [part for word in found for part in split(word)]
        if node.type == "string":
            inner = [child for child in node.named_children if child.type in ("simple_expansion", "expansion")]
            if len(inner) == 1 and inner[0].end_byte - inner[0].start_byte == node.end_byte - node.start_byte - 2:
                return self._expanded(inner[0])
            return [self._string(node)]
        if node.type == "concatenation":
            return [_joined([_within(self._words(child, keep_whole=True)) for child in node.named_children])]
        if node.type in ("word", "number"):
            return [Word(self._text(node).replace("\\\n", "").replace("\\", ""), line)]
        if node.type in ("raw_string", "ansi_c_string"):
            return [Word(self._text(node).strip("$'"), line)]
        return [Word(UNKNOWN, line, f"comes from a {node.type.replace('_', ' ')}")]

    def _string(self, node, whole: bool = False) -> Word:
        """The inside of double quotes (``whole``: all of it); blanks between the parts belong to it."""
        quote = 0 if whole else 1
        parts, at = [], node.start_byte + quote
        for child in node.named_children:
            parts.append(Word(self._between(at, child.start_byte), self._line(child)))
            if child.type in ("string_content", "heredoc_content"):
                parts.append(Word(self._text(child), self._line(child)))
            else:
                parts.append(_within(self._words(child, keep_whole=True)))
            at = child.end_byte
        parts.append(Word(self._between(at, node.end_byte - quote), node.end_point[0] + self._first_line))
        whole = _joined(parts)
        return Word(whole.text, self._line(node), whole.reason)

    def _expanded(self, node) -> list[Word]:
        line = self._line(node)
        name = next((self._text(n) for n in _walk(node) if n.type == "variable_name"), "")
        operator = next((n.type for n in node.children if n.type in (":-", "-", ":=", "=")), "")
        plain = all(n.type in ("$", "${", "}", "variable_name", "subscript") for n in node.children)
        self._used.add(name)
        if name in self._variables and (plain or operator):
            return self._variables[name]
        if operator:
            default = [n for n in node.named_children if n.type not in ("variable_name", "subscript")]
            return [_joined([w for n in default for w in self._words(n, keep_whole=True)])] if default else []
        return [Word(UNKNOWN, line, f"${name} is not set in the script" if plain else f"a change of ${name}")]

    def _text(self, node) -> str:
        return self._between(node.start_byte, node.end_byte)

    def _between(self, start: int, end: int) -> str:
        return self._source[start:end].decode("utf-8", "replace")


def _walk(node) -> Iterator:
    yield node
    for child in node.children:
        yield from _walk(child)


def _joined(words: list[Word]) -> Word:
    if not words:
        return Word("", 0)
    reason = next((word.reason for word in words if word.reason), "")
    return Word("".join(word.text for word in words), words[0].line, reason)


def _within(words: list[Word]) -> Word:
    """A variable's words inside a string."""
    if not words:
        return Word("", 0)
    texts = []
    for word in words:
        maybe = _MAYBE if word.reason.startswith(CONDITION) else ""
        texts.append(" ".join(maybe + part for part in word.text.split(" ")) if maybe else word.text)
    reason = next((word.reason for word in words if word.reason and not word.reason.startswith(CONDITION)), "")
    return Word(" ".join(texts), words[0].line, reason)


def split(word: Word) -> list[Word]:
    """At blanks, each part with the line that it stands in; a part that is known is so whatever stands beside it."""
    parts = []
    for offset, line in enumerate(word.text.replace("\\\n", "\n").split("\n")):
        for part in line.split():
            reason = word.reason if UNKNOWN in part or word.reason.startswith(CONDITION) else ""
            if _MAYBE in part:
                reason = f"{CONDITION} a condition in the script"
            parts.append(Word(part.replace(_MAYBE, ""), word.line + offset, reason))
    return parts
