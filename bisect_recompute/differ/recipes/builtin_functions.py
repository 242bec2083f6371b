"""Python's built-in functions, as recipes use them."""

from __future__ import annotations

import builtins
from typing import Optional

from bisect_recompute.differ.recipes.state import Imprecise, Raised
from bisect_recompute.differ.recipes.values import (
    MISSING, ADict, AList, ASet, Bound, Class, Container, EnumMember, External, Func, Method, Obj, Partial, Unknown,
    describe, is_primitive,
)

LARGE = 100_000
"""Elements of a range that is written out."""


class Builtins:
    """Part of the interpreter: ``lib_builtins__NAME`` is what a call of NAME does."""

    def lib_builtins__len(self, args, kwargs):
        items = self.iterate(args[0][0]) if args and not isinstance(args[0][0], ASet) else None
        if args and isinstance(args[0][0], ASet) and not isinstance(args[0][0].items, Unknown):
            return len(args[0][0].items)
        return Unknown("the length of an unknown value") if items is None else len(items)

    def lib_builtins__isinstance(self, args, kwargs):
        if len(args) != 2:
            raise Raised(TypeError)
        known = self.is_instance(args[0][0], args[1][0])
        return Unknown("the type of an unknown value") if known is None else known

    def is_instance(self, value, kind) -> Optional[bool]:
        if isinstance(kind, tuple):
            found = [self.is_instance(value, k) for k in kind]
            return True if True in found else None if None in found else False
        if isinstance(value, Unknown):
            return None
        if isinstance(kind, External) and kind.name.startswith("builtins."):
            real = getattr(builtins, kind.name[9:], None)
            if not isinstance(real, type):
                return None
            if real is object:
                return True
            if is_primitive(value) or isinstance(value, tuple):
                return isinstance(value, real)
            if isinstance(value, Container):
                return issubclass(value.kind, real)
            if isinstance(value, EnumMember) or isinstance(value, External):
                return None
            if isinstance(value, Obj) and isinstance(value.cls, Class):
                lineage, complete = self.lineage(value.cls)
                names = [c.name for c in lineage if isinstance(c, External)]
                return True if kind.name in names else False if complete or real in (str, int, float, bool) else None
            if isinstance(value, Obj):
                return False if value.cls is not None and real in (str, int, float, bool, type(None)) else None
            return None if real is type else False
        if isinstance(kind, Class):
            if isinstance(value, Obj) and isinstance(value.cls, Class):
                lineage, complete = self.lineage(value.cls)
                if any(isinstance(c, Class) and c.path == kind.path and c.name == kind.name for c in lineage):
                    return True
                return False if complete else None
            if isinstance(value, EnumMember):
                return value.cls.path == kind.path and value.cls.name == kind.name
            return None if isinstance(value, (Obj, External)) else False
        if is_primitive(value) and isinstance(kind, External) and not kind.name.startswith(("typing.", "collections.")):
            return False
        return None

    def lib_builtins__hasattr(self, args, kwargs):
        owner, name = args[0][0], args[1][0]
        if not isinstance(name, str):
            return Unknown("an attribute with an unknown name")
        if isinstance(owner, Obj) and name in owner.attrs:
            slot = owner.attrs[name]
            return True if not slot[2] or not isinstance(slot[0], Unknown) else Unknown(slot[0].reason)
        value = self._probe(owner, name)
        if value is MISSING:
            return False
        return Unknown(value.reason) if isinstance(value, Unknown) else True

    def _probe(self, owner, name):
        flag = self.may_raise
        try:
            if isinstance(owner, Obj) and isinstance(owner.cls, Class):
                slot = self.class_slot(owner.cls, name)
                if slot is not MISSING:
                    return True
            return self.get_attribute(owner, name)
        except Raised as error:
            if error.kind is AttributeError:
                return MISSING
            raise
        finally:
            self.may_raise = flag

    def lib_builtins__getattr(self, args, kwargs):
        owner, name = args[0][0], args[1][0]
        if not isinstance(name, str):
            return Unknown("an attribute with an unknown name")
        if len(args) < 3:
            return self.get_attribute(owner, name)
        try:
            return self.get_attribute(owner, name)
        except Raised as error:
            if error.kind is AttributeError:
                return args[2][0]
            raise

    def lib_builtins__setattr(self, args, kwargs):
        owner, name, value = (a[0] for a in args)
        if isinstance(name, str):
            self.set_attribute(owner, name, value, args[2][1])
        else:
            self.havoc(owner, "setattr() with an unknown name")

    def lib_builtins__delattr(self, args, kwargs):
        raise Imprecise("delattr()")

    def _write_past_hooks(self, args, kwargs):
        self.put_heap(args[0][0], args[0][0].attrs, args[1][0], (args[2][0], args[2][1], False))

    def lib_builtins__type(self, args, kwargs):
        value = args[0][0] if len(args) == 1 else None
        if isinstance(value, Obj) and isinstance(value.cls, Class):
            return value.cls
        if is_primitive(value) and value is not None:
            return External(f"builtins.{type(value).__name__}")
        return Unknown("the type of an unknown value")

    def lib_builtins__bool(self, args, kwargs):
        truth = self.truth(args[0][0]) if args else False
        return Unknown("the truth of an unknown value") if truth is None else truth

    def lib_builtins__list(self, args, kwargs):
        items = self.iterate(args[0][0]) if args else []
        return self.new_list(Unknown("a list of unknown elements") if items is None else items)

    def lib_builtins__tuple(self, args, kwargs):
        items = self.iterate(args[0][0]) if args else []
        return Unknown("a tuple of unknown elements") if items is None else tuple(items)

    def lib_builtins__set(self, args, kwargs):
        return self.make_set(self.iterate(args[0][0]) if args else [])

    lib_builtins__frozenset = lib_builtins__set

    def lib_builtins__dict(self, args, kwargs):
        items: dict = {}
        if args:
            value = args[0][0]
            if isinstance(value, ADict) and not isinstance(value.items, Unknown):
                items.update(value.items)
            else:
                pairs = self.iterate(value) if not isinstance(value, ADict) else None
                if pairs is None or not all(isinstance(p, tuple) and len(p) == 2 and self._plain_key(p[0]) for p in pairs):
                    return self.new_dict(Unknown("a dict of unknown items"))
                items.update(pairs)
        return self.new_dict({**items, **{k: v for k, (v, _) in kwargs.items()}})

    def lib_builtins__range(self, args, kwargs):
        values = [v for v, _ in args]
        if not values or not all(isinstance(v, int) for v in values):
            return Unknown("an unknown range")
        try:
            found = range(*values)
        except (TypeError, ValueError) as error:
            raise Raised(type(error)) from None
        return Unknown("a very long range") if len(found) > LARGE else self.new_list(list(found))

    def lib_builtins__any(self, args, kwargs, stop=True):
        items = self.iterate(args[0][0])
        if items is None:
            return Unknown("an unknown sequence")
        truths = [self.truth(i) for i in items]
        if stop in truths:
            return stop
        return Unknown("an unknown element") if None in truths else not stop

    def lib_builtins__all(self, args, kwargs):
        return self.lib_builtins__any(args, kwargs, stop=False)

    def lib_builtins__zip(self, args, kwargs):
        columns = [self.iterate(v) for v, _ in args]
        if None in columns:
            return Unknown("an unknown sequence")
        return self.new_list([tuple(row) for row in zip(*columns)])

    def lib_builtins__enumerate(self, args, kwargs):
        items = self.iterate(args[0][0])
        start = args[1][0] if len(args) > 1 else kwargs.get("start", (0,))[0]
        if items is None or not isinstance(start, int):
            return Unknown("an unknown sequence")
        return self.new_list(list(enumerate(items, start)))

    def lib_builtins__reversed(self, args, kwargs):
        items = self.iterate(args[0][0])
        return Unknown("an unknown sequence") if items is None else self.new_list(items[::-1])

    def lib_builtins__map(self, args, kwargs):
        items = self.iterate(args[1][0]) if len(args) == 2 else None
        if items is None:
            self._lost(args)
            return Unknown("an unknown sequence")
        return self.new_list([self.call(args[0][0], [(i, None)], {}) for i in items])

    def lib_builtins__filter(self, args, kwargs):
        items = self.iterate(args[1][0])
        if items is None:
            self._lost(args)
            return Unknown("an unknown sequence")
        kept = []
        for item in items:
            truth = self.truth(item if args[0][0] is None else self.call(args[0][0], [(item, None)], {}))
            if truth is None:
                return Unknown("a filter with an unknown result")
            if truth:
                kept.append(item)
        return self.new_list(kept)

    def _lost(self, args):
        for value, _ in args:
            self.havoc(value, "was passed to a function that is called an unknown number of times")

    def lib_builtins__next(self, args, kwargs):
        items = self.iterate(args[0][0])
        if items is None or isinstance(args[0][0], AList):
            # A generator is evaluated as a list: only its first element is ever asked for in recipes.
            if items:
                return items[0]
            return args[1][0] if items is not None and len(args) > 1 else Unknown("the next element")
        return Unknown("the next element")

    def lib_builtins__iter(self, args, kwargs):
        return Unknown("an iterator")

    def lib_builtins__callable(self, args, kwargs):
        value = args[0][0]
        if isinstance(value, (Func, Class, Bound, Partial, Method)):
            return True
        return False if is_primitive(value) or isinstance(value, Container) else Unknown("an unknown callable")

    def lib_builtins__vars(self, args, kwargs):
        if args and describe(getattr(args[0][0], "cls", None)) == "argparse.Namespace":
            return self.new_dict(self.all_arguments(args[0][0]))
        return Unknown("the attributes of an object as a dict")

    def lib_builtins__object(self, args, kwargs):
        return Obj(External("builtins.object"), self.next_serial(), None, True, True)

    def lib_builtins__sorted(self, args, kwargs):
        items = self.iterate(args[0][0])
        if isinstance(args[0][0], ASet) and not isinstance(args[0][0].items, Unknown):
            items = list(args[0][0].items)
        if items is None or "key" in kwargs:
            return Unknown("a sorted sequence")
        return self._pure(sorted)([(self.new_list(items), None)], kwargs)
