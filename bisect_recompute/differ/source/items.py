"""What a block of source says about recompute: checkpoint sites, conditions, defaults, what makes it fail."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Iterable, Iterator, NamedTuple, Optional

from bisect_recompute.differ.source.chunks import Chunk
from bisect_recompute.differ.source.conditions import ALWAYS, Condition, alternatives, both, simplified, text, when
from bisect_recompute.differ.source.syntax import (
    called,
    default_of,
    functions_in,
    is_nothing,
    last,
    names,
    value_of,
    walk,
)
from bisect_recompute.differ.source.words import NEIGHBOURS, SETTINGS, is_word

_INFERENCE = re.compile(r"inference|decode")
_SURROUNDINGS = re.compile(
    r"tensor_model_parallel_group|tp_group|pg_collection|process_groups?\b|rng_(?:states_)?tracker"
)
"""Arguments of a site that name where it runs, not what it keeps."""
_DISK = frozenset({"dist_checkpointing", "dcp", "saver", "loader"})
_SPEECH = frozenset(
    {
        "print",
        "warn",
        "warning",
        "info",
        "debug",
        "print_rank_0",
        "log_single_rank",
        "warn_rank_0",
        "log_on_each_pipeline_stage",
        "deprecated",
        "debug_rank",
        "nvtx_range_push",
        "nvtx_range_pop",
    }
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Item:
    role: str
    """site, decision, fill (of a setting), fail, default, argument, labels, branch or use."""
    subject: str
    """What it is about: the callee, the name assigned, the field."""
    content: str
    """Normalised text; two items are the same when role, subject, content and guard are."""
    guard: Condition
    symbol: str = field(compare=False)
    line: int = field(compare=False)
    inside: frozenset = field(default=frozenset(), compare=False)
    """Sites: callees within the checkpointed function."""
    outside_only: frozenset = field(default=frozenset(), compare=False)
    """Sites: callees that stand only elsewhere in the enclosing function."""


class Test(NamedTuple):
    node: ast.expr
    positive: bool
    speaks: bool
    """It reads a recompute name."""


Guard = tuple[Test, ...]


@lru_cache(maxsize=20000)
def items(chunk: Chunk) -> tuple[Item, ...]:
    """Raises SyntaxError when the block is not Python to this interpreter."""
    try:
        body, offset = parsed(chunk)
        owner = chunk.symbol.rpartition(".")[0] or (chunk.symbol if chunk.in_class else "")
        return tuple(_Reader(offset).block(body, owner, (), chunk.in_class))
    except RecursionError as error:
        raise SyntaxError(str(error)) from None


def parsed(chunk: Chunk) -> tuple[list[ast.stmt], int]:
    """The block's statements, and what to add to their line numbers. Raises SyntaxError."""
    indented = chunk.text[:1] in (" ", "\t")
    try:
        tree = ast.parse(f"if 1:\n{chunk.text}" if indented else chunk.text)
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(str(error)) from None
    return (tree.body[0].body, chunk.line - 2) if indented else (tree.body, chunk.line - 1)


class _Reader:
    """Walks statements; ``guard``: the tests that lead to them, turned into a condition only where one is needed."""

    def __init__(self, offset: int):
        self.offset = offset
        self.function: Optional[ast.AST] = None
        self.nested: dict[str, ast.AST] = {}

    def block(self, body: list[ast.stmt], symbol: str, guard: Guard, in_class=False) -> Iterator[Item]:
        for statement in body:
            yield from self.statement(statement, symbol, guard, in_class)
            if isinstance(statement, ast.If) and not statement.orelse and _leaves(statement.body):
                # What follows an early exit runs only when it was not taken. A raise is no exit here: it is validation,
                # and every check added above a site would seem to change the site.
                guard += (_test(statement.test, False),)

    def statement(self, node: ast.stmt, symbol: str, guard: Guard, in_class: bool) -> Iterator[Item]:
        if isinstance(node, ast.If):
            yield from self.calls(node, [node.test], symbol, guard)
            yield from self.block(node.body, symbol, (*guard, _test(node.test, True)), in_class)
            yield from self.block(node.orelse, symbol, (*guard, _test(node.test, False)), in_class)
        elif isinstance(node, ast.ClassDef):
            yield from self.block(node.body, f"{symbol}.{node.name}" if symbol else node.name, guard, True)
        elif isinstance(node, _FUNCTIONS):
            yield from self.definition(node, symbol, guard)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith)):
            heads = (
                [i.context_expr for i in node.items]
                if hasattr(node, "items")
                else [node.test if isinstance(node, ast.While) else node.iter]
            )
            yield from self.expressions(node, heads, symbol, guard)
            yield from self.block(node.body, symbol, guard)
            yield from self.block(getattr(node, "orelse", []), symbol, guard)
        elif isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
            for part in (node.body, *(h.body for h in node.handlers), node.orelse, node.finalbody):
                yield from self.block(part, symbol, guard, in_class)
        elif isinstance(node, ast.Match):
            yield from self.expressions(node, [node.subject], symbol, guard)
            for case in node.cases:
                yield from self.block(case.body, symbol, guard)
        elif isinstance(node, (ast.Raise, ast.Assert)):
            yield from self.fails(node, symbol, guard)
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            if node.value is not None:
                yield from self.assignment(node, symbol, guard, in_class)
        elif not isinstance(node, (ast.Import, ast.ImportFrom, ast.Pass, ast.Global, ast.Nonlocal)):
            yield from self.expressions(node, [node], symbol, guard)

    def definition(self, node, symbol: str, guard: Guard) -> Iterator[Item]:
        outer = self.function is None
        name = f"{symbol}.{node.name}" if symbol else node.name
        if outer:
            self.function = node
            self.nested = {n.name: n for n in functions_in(node.body)}
        arguments = node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        defaults = [
            *zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults),
            *zip(arguments.kwonlyargs, arguments.kw_defaults),
        ]
        for argument, default in defaults:
            if default is not None and is_word(argument.arg):
                yield self.item("use", argument.arg, f"parameter {argument.arg}={text(default)}", (), name, default)
        # A nested function belongs to the symbol around it: it has no users of its own.
        yield from self.block(node.body, name if outer else symbol, () if outer else guard)
        if outer:
            self.function, self.nested = None, {}

    def fails(self, node, symbol, guard: Guard) -> Iterator[Item]:
        if isinstance(node, ast.Assert):
            guard = (*guard, _test(node.test, False))
        # In the other branch of a recompute condition stand checks that have nothing to do with it.
        if guard and (guard[-1].speaks or any(test.speaks and test.positive for test in guard)):
            for alternative in alternatives(_condition(guard)):
                yield self.item("fail", "", "", alternative, symbol, node)

    def assignment(self, node, symbol, guard: Guard, in_class) -> Iterator[Item]:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        value, name = node.value, last(targets[0])
        if in_class and self.function is None and name and (is_word(name) or name in SETTINGS or name in NEIGHBOURS):
            yield self.item("default", name, default_of(value), (), symbol, node)
            return
        allowed = _labels(name, node, self.function) if self.function is not None else None
        if allowed:
            yield self.item("labels", allowed[0], " ".join(allowed[1]), (), symbol, node)
        found = list(self.calls(node, [value], symbol, guard))
        yield from found
        decides = any(is_word(n) for t in targets for n in names(t)) or (
            isinstance(value, (ast.Compare, ast.BoolOp, ast.IfExp)) and any(map(is_word, names(value)))
        )
        if found:
            return
        if not decides and name != "__all__":
            yield from self.mentions(node, [value], symbol, guard)
        elif decides and not is_nothing(value):
            target = ", ".join(text(t) for t in targets)
            content = value_of(value) + (f" ({type(node.op).__name__})" if isinstance(node, ast.AugAssign) else "")
            if content != target:
                fills = isinstance(targets[0], ast.Attribute) and name in SETTINGS
                yield self.item("fill" if fills else "decision", target, content, guard, symbol, node)

    def expressions(self, node, roots, symbol, guard: Guard) -> Iterator[Item]:
        found = list(self.calls(node, roots, symbol, guard))
        yield from found or self.mentions(node, roots, symbol, guard)

    def mentions(self, node, roots, symbol, guard: Guard) -> Iterator[Item]:
        """A statement that hands on recompute names, or runs under a condition on one."""
        if all(is_speech(root) for root in roots):
            return
        words = sorted({n for root in roots for n in names(root) if is_word(n)})
        speaking = tuple(test for test in guard if test.speaks)
        if words:
            yield self.item("use", words[0], "; ".join(_gist(root) for root in roots), speaking, symbol, node)
        elif any(test.positive for test in speaking):
            callees = sorted(frozenset().union(*map(called, roots)))
            if callees:
                yield self.item("branch", callees[0], " ".join(callees), speaking, symbol, node)

    def calls(self, node, roots: Iterable[ast.AST], symbol, guard: Guard) -> Iterator[Item]:
        """Checkpoint sites and command line definitions in a statement's own expressions."""
        for root in roots:
            for call in walk(root):
                if not isinstance(call, ast.Call):
                    continue
                if last(call.func) == "add_argument":
                    yield from self.argument(call, symbol)
                elif self.is_site(call.func):
                    yield self.site(call, root, symbol, guard)

    def site(self, call: ast.Call, root, symbol, guard: Guard) -> Item:
        for test in walk(root):
            if isinstance(test, ast.IfExp):  # checkpoint(f) if x else f()
                if any(n is call for n in walk(test.body)):
                    guard = (*guard, _test(test.test, True))
                elif any(n is call for n in walk(test.orelse)):
                    guard = (*guard, _test(test.test, False))
        arguments = [text(a) for a in call.args]
        arguments += sorted(f"{k.arg}={text(k.value)}" if k.arg else f"**{text(k.value)}" for k in call.keywords)
        arguments = [a for a in arguments if not _SURROUNDINGS.search(a)]
        inside = self.region(call.args[0]) if call.args else frozenset()
        outside = called(self.function) - inside if inside else frozenset()
        return self.item("site", text(call.func), "\n".join(arguments), guard, symbol, call, inside, outside)

    def is_site(self, callee: ast.expr) -> bool:
        name = last(callee)
        if name is None or name in _SPEECH:
            return False
        if name in ("checkpoint", "apply") or is_word(name):
            owner = last(callee.value) if isinstance(callee, ast.Attribute) else None
            if name == "apply":
                return owner is not None and is_word(owner)
            return owner not in _DISK and not (owner and "optimizer" in owner)
        nested = self.nested.get(name) if self.function and is_word(self.function.name) else None
        return nested is not None and any(
            isinstance(n, ast.Call) and (last(n.func) == "checkpoint" or is_word(last(n.func) or ""))
            for n in walk(nested)
        )

    def region(self, wrapped: ast.expr) -> frozenset[str]:
        """Callees inside the function that a site wraps, when it is a lambda or a local function."""
        if isinstance(wrapped, ast.Lambda):
            return called(wrapped)
        name = last(wrapped.func if isinstance(wrapped, ast.Call) else wrapped)
        return called(self.nested[name]) if name in self.nested else frozenset()

    def argument(self, call: ast.Call, symbol) -> Iterator[Item]:
        words = {k.arg: k.value for k in call.keywords}
        flags = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        dest = words.get("dest")
        fields = [f.lstrip("-").replace("-", "_") for f in flags] + (
            [dest.value] if isinstance(dest, ast.Constant) else []
        )
        if any(isinstance(f, str) and (is_word(f) or f in NEIGHBOURS) for f in fields):
            action = words["action"].value if isinstance(words.get("action"), ast.Constant) else None
            implied = {"store_true": "False", "store_false": "True"}.get(action, "None")
            default = text(words["default"]) if "default" in words else implied
            choices = text(words["choices"]) if "choices" in words else ""
            yield self.item("argument", (flags or fields)[0], f"{default}\n{choices}", (), symbol, call)

    def item(self, role, subject, content, guard, symbol, node, inside=frozenset(), outside=frozenset()) -> Item:
        condition = guard if isinstance(guard, frozenset) else simplified(_condition(guard))
        return Item(role, subject, content, condition, symbol, node.lineno + self.offset, inside, outside)


def _gist(root: ast.AST) -> str:
    """Of a call only the arguments that hold recompute names: the others may change as they like."""
    root = root.value if isinstance(root, (ast.Expr, ast.Return, ast.Await)) and root.value is not None else root
    if isinstance(root, (ast.List, ast.Tuple, ast.Set)):
        return ", ".join(text(e) for e in root.elts if any(map(is_word, names(e))))
    if not isinstance(root, ast.Call):
        return text(root)
    spoken = [a for a in (*root.args, *root.keywords) if any(map(is_word, names(a)))]
    return f"{text(root.func)}({', '.join(text(a) for a in spoken)})"


def _test(node: ast.expr, positive: bool) -> Test:
    return Test(node, positive, any(map(is_word, names(node))))


def _condition(guard: Guard) -> Condition:
    """Without what only inference asks: training takes that way in any case."""
    whole = both(*(when(test.node, test.positive) for test in guard)) if guard else ALWAYS
    return frozenset(clause for clause in whole if not any(_INFERENCE.search(literal) for literal in clause))


def _leaves(body: list[ast.stmt]) -> bool:
    return isinstance(body[-1], (ast.Return, ast.Continue, ast.Break))


def _labels(name: Optional[str], node: ast.stmt, function: ast.AST) -> Optional[tuple[str, list[str]]]:
    """(field, labels) where a list of words is what the function subtracts from a field, or looks its members up in."""
    if not isinstance(node.value, (ast.Set, ast.List, ast.Tuple)) or name is None:
        return None
    words = [e.value for e in node.value.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
    if not words or len(words) != len(node.value.elts):
        return None
    uses = []
    for n in walk(function):
        right = n.right if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Sub) else None
        if last(right) == name and n.lineno > node.lineno and isinstance(n.left, ast.Call) and len(n.left.args) == 1:
            uses.append((n.lineno, last(n.left.args[0])))
    field_name = min(uses)[1] if uses else None  # the name may serve two fields, one after the other
    return (field_name, sorted(words)) if field_name in ("recompute_modules", "offload_modules") else None


def is_speech(node: ast.AST) -> bool:
    """True for docstrings, other constants, and calls that only print or log."""
    value = node.value if isinstance(node, ast.Expr) else node
    return isinstance(value, ast.Constant) or isinstance(value, ast.Call) and last(value.func) in _SPEECH
