"""Statements. A statement returns None, or a signal: ("return", value), ("break",), ("continue",)."""

from __future__ import annotations

import ast
import builtins
from typing import Any, Optional, Sequence

from bisect_recompute.differ.recipes.source import touched_names
from bisect_recompute.differ.recipes.state import Ambiguous, Exhausted, Frame, Imprecise, Raised
from bisect_recompute.differ.recipes.values import (
    ITEMS, MISSING, ADict, AList, Class, Container, External, Obj, Unknown,
)

MAX_STEPS = 400_000
MAX_WEAK_ROUNDS = 4


class Statements:
    def execute(self, frame: Frame, node: ast.stmt) -> Optional[tuple]:
        return self.block(frame, (node,))

    def block(self, frame: Frame, body: Sequence[ast.stmt]) -> Optional[tuple]:
        handlers = self.statements
        for node in body:
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise Exhausted("it takes too many steps")
            handler = handlers.get(node.__class__)
            if handler is None:
                raise Imprecise(f"{type(node).__name__} statement")
            signal = handler(frame, node)
            if signal is not None:
                return signal
        return None

    def origin(self, frame: Frame, node: ast.AST) -> tuple:
        return (frame.path, frame.chunk, node.lineno)

    def bind(self, frame: Frame, name: str, value: Any, origin: tuple) -> None:
        if name in frame.skips:
            outer = frame.outer
            while outer is not None:
                if name in outer.locals:
                    self.put(outer.locals, name, (value, origin, False))
                    return
                outer = outer.outer
            raise Imprecise(f"global {name} is assigned")
        self.put(frame.locals, name, (value, origin, False))

    # Simple statements

    def do_Pass(self, frame, node):
        return None

    def do_Expr(self, frame, node):
        self.eval(frame, node.value)

    def do_Return(self, frame, node):
        return ("return", None if node.value is None else self.eval(frame, node.value))

    def do_Break(self, frame, node):
        return ("break",)

    def do_Continue(self, frame, node):
        return ("continue",)

    def do_Global(self, frame, node):
        frame.skips |= frozenset(node.names)

    def do_Assign(self, frame, node):
        value = self.eval(frame, node.value)
        origin = self.origin_of(frame, node.value)
        for target in node.targets:
            if target.__class__ is ast.Attribute:
                self.set_attribute(self.eval(frame, target.value), target.attr, value, origin)
            else:
                self.assign(frame, target, value, origin)

    def do_AnnAssign(self, frame, node):
        if node.value is not None:
            self.assign(frame, node.target, self.eval(frame, node.value), self.origin_of(frame, node.value))

    def do_AugAssign(self, frame, node):
        old = self.eval(frame, _as_load(node.target))
        right = self.eval(frame, node.value)
        if isinstance(old, AList) and isinstance(node.op, ast.Add):
            items = self.iterate(right)
            self.set_items(old, old.items if isinstance(old.items, Unknown) else Unknown("an unknown list was added")
                           if items is None else [*old.items, *items])
            value = old
        elif isinstance(old, ADict) and isinstance(node.op, ast.BitOr) and isinstance(right, ADict):
            known = not isinstance(old.items, Unknown) and not isinstance(right.items, Unknown)
            self.set_items(old, {**old.items, **right.items} if known else Unknown("an unknown dict was merged"))
            value = old
        else:
            if isinstance(old, Container) and not isinstance(old, AList):
                raise Imprecise("an operation in place")
            value = self.binary(node.op, old, right)
        self.assign(frame, node.target, value, self.origin(frame, node))

    def assign(self, frame, target, value, origin) -> None:
        if isinstance(target, ast.Name):
            self.bind(frame, target.id, value, origin)
        elif isinstance(target, ast.Attribute):
            self.set_attribute(self.eval(frame, target.value), target.attr, value, origin)
        elif isinstance(target, ast.Subscript):
            self.set_item(self.eval(frame, target.value), self.eval(frame, target.slice), value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(frame, target.elts, value, origin)
        elif isinstance(target, ast.Starred):
            self.assign(frame, target.value, value, origin)

    def _unpack(self, frame, targets, value, origin) -> None:
        items = self.iterate(value)
        starred = [i for i, t in enumerate(targets) if isinstance(t, ast.Starred)]
        if items is None:
            self.may_raise = True
            for target in targets:
                reason = value.reason if isinstance(value, Unknown) else "an unknown value is unpacked"
                fresh = isinstance(value, Unknown) and value.fresh
                self.assign(frame, target, Unknown(reason, fresh), origin)
            return
        if starred:
            first, after = starred[0], len(targets) - starred[0] - 1
            if len(items) < len(targets) - 1:
                raise Raised(ValueError, "not enough values to unpack")
            items = [*items[:first], self.new_list(list(items[first : len(items) - after])), *items[len(items) - after :]]
        if len(items) != len(targets):
            raise Raised(ValueError, "wrong number of values to unpack")
        for target, item in zip(targets, items):
            self.assign(frame, target, item, origin)

    def do_Delete(self, frame, node):
        for target in node.targets:
            if isinstance(target, ast.Name) and target.id in frame.locals:
                self.put(frame.locals, target.id, MISSING)
            elif isinstance(target, ast.Attribute):
                owner = self.eval(frame, target.value)
                if isinstance(owner, Obj) and target.attr in owner.attrs:
                    self.put_heap(owner, owner.attrs, target.attr, MISSING)
                else:
                    raise Imprecise("an attribute is deleted")
            elif isinstance(target, ast.Subscript):
                self.delete_item(self.eval(frame, target.value), self.eval(frame, target.slice))
            else:
                raise Imprecise("a name is deleted")

    def do_Assert(self, frame, node):
        if self.truth(self.eval(frame, node.test)) is False:
            raise Raised(AssertionError)

    def do_Raise(self, frame, node):
        if node.exc is None:
            raise Raised(Exception, "raised again")
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        kind: Any = raised.id if isinstance(raised, ast.Name) else getattr(raised, "attr", "an exception")
        found = getattr(builtins, kind, None)
        raise Raised(found if isinstance(found, type) else kind)

    def do_FunctionDef(self, frame, node):
        self.bind(frame, node.name, self.make_function(frame, node), self.origin(frame, node))

    def do_ClassDef(self, frame, node):
        scope = None if frame.names is None and frame.owner is None else frame
        made = Class(node.name, frame.path, frame.chunk, node, scope, self.next_serial())
        self.bind(frame, node.name, self.decorate_class(made, node, frame), self.origin(frame, node))

    # Branches

    def do_If(self, frame, node):
        truth = self.truth(self.eval(frame, node.test))
        if truth is not None:
            return self.block(frame, node.body if truth else node.orelse)
        reason = f"depends on `{_short(node.test)}`, which is not known"
        options = [lambda: self.block(frame, node.body), lambda: self.block(frame, node.orelse)]
        return self.alternatives(frame, options, reason)

    def do_Match(self, frame, node):
        subject = self.eval(frame, node.subject)
        for position, case in enumerate(node.cases):
            fits = self._matches(frame, case.pattern, subject)
            if fits and case.guard is not None:
                fits = self.truth(self.eval(frame, case.guard))
            if fits:
                return self.block(frame, case.body)
            if fits is None:
                rest = [lambda c=c: self.block(frame, c.body) for c in node.cases[position:]]
                names = set().union(*(touched_names(c.pattern) for c in node.cases[position:]))
                if names or any(isinstance(n, (ast.MatchAs, ast.MatchStar)) and n.name for c in node.cases for n in ast.walk(c)):
                    raise Imprecise("a match statement binds parts of an unknown value")
                return self.alternatives(frame, [*rest, lambda: None], "depends on an unknown match")
        return None

    def _matches(self, frame, pattern, subject) -> Optional[bool]:
        if isinstance(pattern, ast.MatchValue):
            return self.truth(self.compare(ast.Eq(), subject, self.eval(frame, pattern.value)))
        if isinstance(pattern, ast.MatchSingleton):
            return self.truth(self.compare(ast.Is(), subject, pattern.value))
        if isinstance(pattern, ast.MatchOr):
            found = [self._matches(frame, p, subject) for p in pattern.patterns]
            return True if True in found else None if None in found else False
        if isinstance(pattern, ast.MatchAs):
            fits = True if pattern.pattern is None else self._matches(frame, pattern.pattern, subject)
            if fits and pattern.name:
                self.bind(frame, pattern.name, subject, self.origin(frame, pattern))
            return fits
        return None

    # Loops

    def do_For(self, frame, node):
        source = self.eval(frame, node.iter)
        items = self.iterate(source)
        origin = self.origin_of(frame, node.iter)
        if items is None:
            def once():
                self.assign(frame, node.target, Unknown("an element of an unknown sequence"), origin)
                return self.block(frame, node.body)

            return self._weak_loop(frame, once) or self.block(frame, node.orelse)
        for item in items:
            self.assign(frame, node.target, item, origin)
            signal = self.block(frame, node.body)
            if signal is not None:
                if signal[0] == "break":
                    return None
                if signal[0] == "return":
                    return signal
        return self.block(frame, node.orelse)

    def do_While(self, frame, node):
        while True:
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise Exhausted("it takes too many steps")
            truth = self.truth(self.eval(frame, node.test))
            if truth is None:
                return self._weak_loop(frame, lambda: (self.eval(frame, node.test), self.block(frame, node.body))[1])
            if not truth:
                return self.block(frame, node.orelse)
            signal = self.block(frame, node.body)
            if signal is not None:
                if signal[0] == "break":
                    return None
                if signal[0] == "return":
                    return signal

    def _weak_loop(self, frame, once) -> Optional[tuple]:
        """A loop whose number of rounds is not known: whatever its body may write is unknown afterwards."""
        reason = "changed in a loop whose number of rounds is not known"
        written: set = set()
        kept: list = []
        """Keeps what ``written`` knows by id alive."""
        returned = None
        for _ in range(MAX_WEAK_ROUNDS):
            mark = len(self.trail)
            try:
                signal = once()
            except Raised:
                self.may_raise = True
                signal = None
            if signal is not None and signal[0] == "return":
                returned = signal
            effects = self.effects(mark)
            self.undo(mark)
            new = [(where, key, value, serial) for where, entries, serial in effects.values()
                   for key, value in entries.items() if (id(where), key) not in written]
            if not new:
                if returned is None:
                    return None
                if self.choose(frame, 2, reason) == 0:
                    return None
                return ("return", Unknown(reason))
            for where, key, value, serial in new:
                written.add((id(where), key))
                kept.append(where)
                old = where.get(key, MISSING)
                if key == ITEMS:
                    self.put(where, key, Unknown(reason, aliases=_heap_in(old) + _heap_in(value)), serial)
                elif value is MISSING:
                    self.put(where, key, (Unknown(reason, aliases=_heap_in(old)), None, False), serial)
                elif old is MISSING or old[0] is not value[0]:
                    self.put(where, key, (Unknown(reason, aliases=_heap_in(old) + _heap_in(value)), value[1], False), serial)
        raise Imprecise("a loop that is not understood")

    # Exceptions and contexts

    def do_Try(self, frame, node):
        outer_flag, self.may_raise = self.may_raise, False
        mark = len(self.trail)
        try:
            return self._try(frame, node, mark)
        finally:
            self.may_raise = self.may_raise or outer_flag

    do_TryStar = do_Try

    def _try(self, frame, node, mark):
        try:
            signal = self.block(frame, node.body)
        except Raised as error:
            handler = self._handler(frame, node, error)
            if handler is None:
                self.block(frame, node.finalbody)
                raise
            if self.may_raise:
                # It may have been raised earlier, with other writes done, or for another reason.
                self._weaken(mark)
            return self._after(frame, node, lambda: self._handle(frame, handler))
        unsure = self.may_raise and node.handlers
        if not unsure:
            if signal is None:
                signal = self.block(frame, node.orelse)
            return self.block(frame, node.finalbody) or signal
        effects = self.effects(mark)
        self.undo(mark)

        def whole():
            self.apply(effects)
            return signal or self.block(frame, node.orelse)

        def broken(handler):
            start = len(self.trail)
            self.apply(effects)
            self._weaken(start)
            return self._handle(frame, handler)

        options = [whole, *(lambda h=h: broken(h) for h in node.handlers)]
        return self._after(frame, node, lambda: self.alternatives(frame, options, "depends on whether code outside raises"))

    def _after(self, frame, node, run):
        try:
            signal = run()
        except Raised:
            self.block(frame, node.finalbody)
            raise
        return self.block(frame, node.finalbody) or signal

    def _weaken(self, mark: int) -> None:
        """Writes since the mark may or may not have happened."""
        effects = self.effects(mark)
        self.undo(mark)
        reason = "depends on whether code outside raises"
        since = self.serial
        try:
            self.agree([None, None], [effects, {}], reason, since)
        except Ambiguous:
            raise Imprecise("which object it works on depends on whether code outside raises") from None

    def _handler(self, frame, node, error: Raised):
        for handler in node.handlers:
            if handler.type is None:
                return handler
            types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
            for each in types:
                name = each.id if isinstance(each, ast.Name) else getattr(each, "attr", "")
                kind = getattr(builtins, name, None)
                if name in ("Exception", "BaseException") or name == error.kind:
                    return handler
                if isinstance(kind, type) and isinstance(error.kind, type) and issubclass(error.kind, kind):
                    return handler
        return None

    def _handle(self, frame, handler):
        if handler.name:
            self.bind(frame, handler.name, Unknown("an exception"), self.origin(frame, handler))
        return self.block(frame, handler.body)

    def do_With(self, frame, node):
        suppresses = False
        for item in node.items:
            context = self.eval(frame, item.context_expr)
            if isinstance(item.context_expr, ast.Call):
                called = self.eval(frame, item.context_expr.func)
                suppresses |= isinstance(called, External) and called.name == "contextlib.suppress"
            if item.optional_vars is not None:
                value = Unknown("what a context manager returns", isinstance(context, Unknown) and context.fresh)
                self.assign(frame, item.optional_vars, value, self.origin(frame, node))
        if not suppresses:
            return self.block(frame, node.body)
        return self.alternatives(
            frame, [lambda: self.block(frame, node.body), lambda: None], "depends on whether code raises"
        )


def _heap_in(place: Any) -> tuple:
    """Objects that a slot or a container's content leads to directly."""
    if place is MISSING or isinstance(place, Unknown):
        return place.aliases if isinstance(place, Unknown) else ()
    found = place.values() if isinstance(place, dict) else place if isinstance(place, (list, set)) else place[:1]
    return tuple(a for v in found for a in ((v,) if isinstance(v, (Obj, Container)) and not isinstance(v, Unknown)
                                            else v.aliases if isinstance(v, Unknown) else ()))


def _as_load(target: ast.AST) -> ast.AST:
    if isinstance(target, ast.Name):
        return ast.copy_location(ast.Name(target.id, ast.Load()), target)
    if isinstance(target, ast.Attribute):
        return ast.copy_location(ast.Attribute(target.value, target.attr, ast.Load()), target)
    return ast.copy_location(ast.Subscript(target.value, target.slice, ast.Load()), target)


def _short(node: ast.AST) -> str:
    text = getattr(node, "_short", None)
    if text is None:
        text = " ".join(ast.unparse(node).split())
        text = node._short = text if len(text) <= 60 else text[:57] + "..."
    return text
