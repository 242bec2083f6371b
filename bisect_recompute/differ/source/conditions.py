"""Conditions in a form in which nesting, order and negation no longer show.

A condition is a conjunction of clauses, a clause a disjunction of literals (text): ``if a and b`` and two nested ``if``
come out the same, and so do ``if x: raise`` and ``assert not x``.
"""

from __future__ import annotations

import ast
import re
from itertools import product

Condition = frozenset
"""frozenset of clauses, each a frozenset of literals; the empty one is always true."""

ALWAYS: Condition = frozenset()
_LIMIT = 24

_NEGATED = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
}
_ROAD = re.compile(r"\b(?:self|config|cfg|args|model_config|transformer_config)\.(?=[A-Za-z_])")
_GETATTR = re.compile(r"\bgetattr\((?:[\w.]+), '(\w+)'(?:, [\w.'\"-]+)?\)")
_APPLY = re.compile(r"\bapply_module\(([\w.]+)\)")
_TE_VERSION = re.compile(r"^_te_version (>=|<) packaging\.version\.Version\(('[^']+')\)$")
"""What Megatron Core wrote before it had is_te_min_version."""
_EQUALS = re.compile(r"^(\w+) == ")


def text(node: ast.AST) -> str:
    """Source without the road to a setting: ``self.config.fp8``, ``config.fp8``, ``args.fp8`` are ``fp8``."""
    return applied(_ROAD.sub("", _GETATTR.sub(r"\1", ast.unparse(node))))


def applied(source: str) -> str:
    """``source`` without Megatron Core's typed wrapper around a module, which at run time is the module."""
    return _APPLY.sub(r"\1", source)


def when(node: ast.expr, positive: bool = True) -> Condition:
    """The condition under which ``node`` is true (or false)."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return when(node.operand, not positive)
    if isinstance(node, ast.BoolOp):
        parts = [when(value, positive) for value in node.values]
        conjunction = isinstance(node.op, ast.And) == positive
        return both(*parts) if conjunction else _either(parts, node, positive)
    if isinstance(node, ast.Compare):
        return _compared(node, positive)
    if isinstance(node, ast.Constant):
        return ALWAYS if bool(node.value) == positive else _literal("False")
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "bool"
        and len(node.args) == 1
    ):
        return when(node.args[0], positive)
    return _literal(text(node) if positive else f"not {text(node)}")


def _compared(node: ast.Compare, positive: bool) -> Condition:
    if len(node.ops) > 1:
        sides = [node.left, *node.comparators]
        pairs = [ast.Compare(sides[i], [op], [sides[i + 1]]) for i, op in enumerate(node.ops)]
        return when(ast.BoolOp(ast.And(), pairs), positive)
    operator, right = node.ops[0], node.comparators[0]
    if (
        isinstance(right, ast.Constant)
        and isinstance(right.value, bool)
        and isinstance(operator, (ast.Is, ast.IsNot, ast.Eq, ast.NotEq))
    ):  # `x is True`, `x == True`: x
        return when(node.left, positive == (right.value == isinstance(operator, (ast.Is, ast.Eq))))
    if isinstance(operator, (ast.In, ast.NotIn)) and isinstance(right, (ast.List, ast.Set, ast.Tuple)):
        right = ast.Tuple(sorted(right.elts, key=ast.unparse), ast.Load())
    operator = operator if positive else _NEGATED[type(operator)]()
    return _literal(text(ast.Compare(node.left, [operator], [right])))


def both(*conditions: Condition) -> Condition:
    return frozenset().union(*conditions)


def _literal(literal: str) -> Condition:
    version = _TE_VERSION.match(literal)
    if version:
        literal = f"{'not ' if version.group(1) == '<' else ''}is_te_min_version({version.group(2)})"
    return frozenset({frozenset({literal})})


def _either(parts: list[Condition], node: ast.expr, positive: bool) -> Condition:
    size = 1
    for part in parts:
        size *= max(len(part), 1)
    if size > _LIMIT:
        return _literal(text(node) if positive else f"not ({text(node)})")
    if any(part == ALWAYS for part in parts):
        return ALWAYS
    return frozenset(frozenset().union(*chosen) for chosen in product(*parts))


def alternatives(condition: Condition) -> list[Condition]:
    """The condition as a list of plain conjunctions, one of which must hold (itself when that would be too long)."""
    size = 1
    for clause in condition:
        size *= len(clause)
    if size > _LIMIT:
        return [condition]
    ways = (frozenset(chosen) for chosen in product(*condition))
    possible = [way for way in ways if not any(f"not {literal}" in way for literal in way)]
    return list(dict.fromkeys(simplified(frozenset(frozenset({x}) for x in way)) for way in possible))


def simplified(condition: Condition) -> Condition:
    """Without literals that another one implies: ``x == 'a'`` makes ``x``, ``x is not None`` and ``x != 'b'`` idle."""
    known = {m.group(1) for clause in condition if len(clause) == 1 for m in [_EQUALS.match(next(iter(clause)))] if m}
    if not known:
        return condition
    idle = re.compile(rf"^({'|'.join(known)})( is not None| != .*)?$")
    return frozenset(c for c in condition if not (len(c) == 1 and idle.match(next(iter(c)))))


def shown(condition: Condition) -> str:
    """For people, in a fixed order."""
    clauses = sorted(" or ".join(sorted(clause)) for clause in condition)
    if len(clauses) > 1:
        clauses = [f"({c})" if " or " in c else c for c in clauses]
    return " and ".join(clauses)
