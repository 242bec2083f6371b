"""Small questions about syntax trees."""

from __future__ import annotations

import ast
from typing import Iterator, Optional

from bisect_recompute.differ.source.conditions import simplified, text, when


def last(node: Optional[ast.AST]) -> Optional[str]:
    """The name at the end of a chain: ``te_checkpoint`` of ``te.pytorch.te_checkpoint``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """``node`` and everything in it, in no particular order (ast.walk takes twice the time)."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, ast.AST):
                stack.append(value)
            elif type(value) is list:
                stack.extend(v for v in value if isinstance(v, ast.AST))


def functions_in(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Functions defined anywhere under these statements."""
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield statement
        for name in ("body", "orelse", "finalbody"):
            yield from functions_in(getattr(statement, name, ()))
        for handler in getattr(statement, "handlers", ()):
            yield from functions_in(handler.body)


def names(node: ast.AST) -> Iterator[str]:
    """Identifiers in ``node``: names, attributes, keywords, and strings that could be a field's name."""
    for n in walk(node):
        kind = type(n)
        if kind is ast.Name:
            yield n.id
        elif kind is ast.Attribute:
            yield n.attr
        elif kind is ast.keyword:
            if n.arg:
                yield n.arg
        elif kind is ast.Constant and isinstance(n.value, str) and "_" in n.value and n.value.isidentifier():
            yield n.value


def called(node: ast.AST) -> frozenset[str]:
    """Source of every callee in ``node``."""
    return frozenset(text(n.func) for n in walk(node) if isinstance(n, ast.Call))


def default_of(value: ast.expr) -> str:
    """A class field's default as source, through ``field(default=...)`` and ``field(default_factory=...)``."""
    if isinstance(value, ast.Call) and last(value.func) in ("field", "Field"):
        words = {k.arg: k.value for k in value.keywords}
        if "default" in words:
            return text(words["default"])
        factory = words.get("default_factory")
        if isinstance(factory, ast.Lambda):
            return text(factory.body)
        if factory is not None:
            empty = {"list": "[]", "dict": "{}", "set": "set()", "tuple": "()"}
            return empty.get(text(factory), f"{text(factory)}()")
    return text(value)


def value_of(value: ast.expr) -> str:
    """Source of a value; a boolean one in a form in which order and nesting do not show."""
    if isinstance(value, (ast.BoolOp, ast.Compare, ast.UnaryOp)):
        return " & ".join(sorted(" | ".join(sorted(clause)) for clause in simplified(when(value))))
    return text(value)


def is_nothing(value: ast.expr) -> bool:
    """None, or a tuple of it: what a name gets when its import failed."""
    if isinstance(value, ast.Tuple):
        return bool(value.elts) and all(is_nothing(e) for e in value.elts)
    return isinstance(value, ast.Constant) and value.value is None
