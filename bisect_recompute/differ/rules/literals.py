"""Whether a condition taken from source holds for given settings: yes, no, or not to be known. Nothing is executed."""

from __future__ import annotations

import ast
import operator
from typing import Callable, Optional

UNKNOWN = object()
"""A value that cannot be known from the settings."""

Lookup = Callable[[str], object]
"""Name of a field -> its value or UNKNOWN."""

_COMPARE = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_BINARY = {
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.Sub: operator.sub,
    ast.Add: operator.add,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Mult: operator.mul,
}
_CALLS = {"len": len, "set": set, "bool": bool, "list": list}


def holds(condition: frozenset, lookup: Lookup) -> Optional[bool]:
    """Of a condition (see source.conditions): True, False, or None where it depends on what is not known."""
    clauses = [_clause(clause, lookup) for clause in condition]
    if any(c is False for c in clauses):
        return False
    return None if any(c is None for c in clauses) else True


def _clause(clause: frozenset, lookup: Lookup) -> Optional[bool]:
    found = [truth(literal, lookup) for literal in clause]
    if any(f is True for f in found):
        return True
    return None if any(f is None for f in found) else False


def truth(literal: str, lookup: Lookup) -> Optional[bool]:
    value = evaluate(literal, lookup)
    return None if value is UNKNOWN else bool(value)


def evaluate(source: str, lookup: Lookup) -> object:
    """The value of an expression of fields, constants, comparisons and sets; UNKNOWN for anything else."""
    try:
        return _value(ast.parse(source, mode="eval").body, lookup)
    except (SyntaxError, TypeError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return UNKNOWN


def _value(node: ast.expr, lookup: Lookup) -> object:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return lookup(node.id)
    if isinstance(node, ast.Attribute):
        # An enum member is known by its name; anything else is a field, wherever it hangs.
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        return node.attr if owner[:1].isupper() else lookup(node.attr)
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        values = [_value(e, lookup) for e in node.elts]
        if any(v is UNKNOWN for v in values):
            return UNKNOWN
        return set(values) if isinstance(node, ast.Set) else values
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        value = _value(node.operand, lookup)
        if value is UNKNOWN:
            return UNKNOWN
        return not value if isinstance(node.op, ast.Not) else -value
    if isinstance(node, ast.BoolOp):
        return _boolean(node, lookup)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _value(node.left, lookup), _value(node.right, lookup)
        return UNKNOWN if left is UNKNOWN or right is UNKNOWN else _BINARY[type(node.op)](left, right)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = _value(node.left, lookup), _value(node.comparators[0], lookup)
        return UNKNOWN if left is UNKNOWN or right is UNKNOWN else _COMPARE[type(node.ops[0])](left, right)
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _CALLS
        and len(node.args) == 1
    ):
        value = _value(node.args[0], lookup)
        return UNKNOWN if value is UNKNOWN else _CALLS[node.func.id](value)
    return UNKNOWN


def _boolean(node: ast.BoolOp, lookup: Lookup) -> object:
    """As Python does it: ``offload_modules or []`` is a list."""
    stops = isinstance(node.op, ast.Or)
    value: object = not stops
    for part in node.values:
        value = _value(part, lookup)
        if value is UNKNOWN or bool(value) == stops:
            return value
    return value
