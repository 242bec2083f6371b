"""The built-in functions, methods and standard-library calls that recipes use."""

from __future__ import annotations

import builtins
import math
import os.path
from typing import Any, Optional

from bisect_recompute.differ.recipes.classes import FieldSpec
from bisect_recompute.differ.recipes.state import Imprecise, Raised
from bisect_recompute.differ.recipes.values import (
    MISSING, TAINT, ADict, AList, ASet, Bound, Class, Container, EnumMember, External, Func, Method, NotKnown,
    Obj, Partial, Unknown, describe, is_primitive, to_python,
)

_PURE = {
    "builtins.len": len, "builtins.int": int, "builtins.float": float, "builtins.str": str, "builtins.abs": abs,
    "builtins.round": round, "builtins.min": min, "builtins.max": max, "builtins.sum": sum, "builtins.sorted": sorted,
    "builtins.repr": repr, "builtins.pow": pow, "builtins.divmod": divmod, "builtins.ord": ord, "builtins.chr": chr,
    "math.ceil": math.ceil, "math.floor": math.floor, "math.sqrt": math.sqrt, "math.log2": math.log2, "math.log": math.log,
    "math.gcd": math.gcd, "math.prod": math.prod, "os.path.join": os.path.join, "os.path.basename": os.path.basename,
    "os.path.dirname": os.path.dirname, "posixpath.join": os.path.join,
}
_LARGE = 100_000


class Library:
    def make_library(self) -> dict:
        table = {name: self._pure(function) for name, function in _PURE.items()}
        for name in dir(self):
            if name.startswith("lib_"):
                table[name[4:].replace("__", ".")] = getattr(self, name)
        for name in dir(builtins):
            kind = getattr(builtins, name)
            if isinstance(kind, type) and issubclass(kind, BaseException):
                table[f"builtins.{name}"] = lambda a, k: Unknown("an exception", True)
        for name in ("builtins.print", "logging.getLogger", "builtins.id", "builtins.hash"):
            table[name] = lambda a, k, n=name: Unknown(f"the result of {n}()", True)
        # Its name has the underscores that stand for dots above.
        table["builtins.object.__setattr__"] = self._write_past_hooks
        return table

    def _pure(self, function):
        def run(args, kwargs):
            try:
                plain = [to_python(v) for v, _ in args]
                named = {k: to_python(v) for k, (v, _) in kwargs.items()}
            except NotKnown as error:
                self.may_raise = True
                return Unknown(error.reason)
            if function is str and len(plain) == 1 and isinstance(plain[0], (set, frozenset)):
                return Unknown("the text of a set")
            try:
                return self.from_python(function(*plain, **named))
            except Exception as error:
                raise Raised(type(error), str(error)) from None

        return run

    def iterate(self, value: Any) -> Optional[list]:
        """The elements, or None where they are not known. Raises the evaluated program's TypeError."""
        if isinstance(value, tuple):
            return list(value)
        if isinstance(value, Container):
            items = value.items
            if isinstance(items, Unknown):
                return None
            if isinstance(value, ASet):
                # The order of a set is not the program's: only its elements are known.
                return sorted(items, key=repr) if len(items) < 2 else None
            return list(items)
        if isinstance(value, str):
            return list(value)
        if isinstance(value, Class) and self.is_enum(value):
            found = []
            if value.node is None:
                self.depend("member", value.path, value.name, "**")
            for statement in self.class_source(value).node.body:
                for target in getattr(statement, "targets", []):
                    slot = self.class_member(value, getattr(target, "id", ""))
                    if slot is MISSING:
                        return None
                    found.append(slot[0])
            return found
        if is_primitive(value):
            raise Raised(TypeError, f"{type(value).__name__} is not iterable")
        self.may_raise = True
        return None

    # Items

    def get_item(self, owner: Any, key: Any) -> Any:
        if isinstance(owner, ADict) and not isinstance(owner.items, Unknown):
            if isinstance(key, EnumMember) or not self._plain_key(key):
                return Unknown("an item under an unknown key")
            if key not in owner.items:
                raise Raised(KeyError, repr(key))
            return owner.items[key]
        items = owner.items if isinstance(owner, AList) else owner
        if isinstance(items, (list, tuple, str)):
            if isinstance(key, int):
                if not -len(items) <= key < len(items):
                    raise Raised(IndexError)
                return items[key]
            if is_primitive(key):
                raise Raised(TypeError, "index")
            return Unknown("an element at an unknown place")
        if isinstance(owner, Class):
            if self.is_enum(owner) and isinstance(key, str):
                slot = self.class_slot(owner, key)
                if slot is MISSING:
                    raise Raised(KeyError, key)
                return slot[0]
            return owner
        if isinstance(owner, External):
            return owner if owner.name.startswith(("typing.", "builtins.")) else External(f"{owner.name}[]")
        if isinstance(owner, Obj) and isinstance(owner.cls, Class):
            slot = self.class_slot(owner.cls, "__getitem__")
            if slot is not MISSING and isinstance(slot[0], Func):
                return self.call_function(slot[0], [(owner, None), (key, None)], {})
        if is_primitive(owner):
            raise Raised(TypeError, "not subscriptable")
        self.may_raise = True
        return Unknown(f"an item of {describe(owner)}")

    def _plain_key(self, key: Any) -> bool:
        return is_primitive(key) or (isinstance(key, tuple) and all(map(self._plain_key, key)))

    def set_item(self, owner: Any, key: Any, value: Any) -> None:
        if isinstance(owner, ADict):
            if isinstance(owner.items, Unknown):
                return
            if not self._plain_key(key):
                self.set_items(owner, Unknown("an unknown key was set"))
            else:
                self.set_items(owner, {**owner.items, key: value})
        elif isinstance(owner, AList):
            if isinstance(owner.items, Unknown):
                return
            if isinstance(key, int):
                items = list(owner.items)
                if not -len(items) <= key < len(items):
                    raise Raised(IndexError)
                items[key] = value
                self.set_items(owner, items)
            else:
                self.set_items(owner, Unknown("an element at an unknown place was set"))
        elif isinstance(owner, Obj):
            self.havoc(owner, "an item was set on an object that is not followed")
        elif not isinstance(owner, External):
            raise Raised(TypeError, "item assignment")

    def delete_item(self, owner: Any, key: Any) -> None:
        if isinstance(owner, ADict) and not isinstance(owner.items, Unknown) and self._plain_key(key):
            if key not in owner.items:
                raise Raised(KeyError, repr(key))
            self.set_items(owner, {k: v for k, v in owner.items.items() if k != key})
        elif isinstance(owner, Container):
            self.set_items(owner, Unknown("an item was deleted"))
        else:
            self.havoc(owner, "an item was deleted")

    # Methods of built-in types

    def call_method(self, method: Method, args: list, kwargs: dict) -> Any:
        owner, name = method.self, method.name
        values = [v for v, _ in args]
        if name in ("parse_args", "parse_known_args"):
            return self.parse_arguments(name == "parse_known_args")
        if name.startswith("object."):
            if name == "object.__setattr__" and len(values) == 2 and isinstance(values[0], str):
                self.put_heap(owner, owner.attrs, values[0], (values[1], args[1][1], False))
            return None
        special = getattr(self, f"{owner.kind.__name__}_{name}" if isinstance(owner, Container) else "no_method", None)
        if special is not None:
            if isinstance(owner.items, Unknown):
                return Unknown(owner.items.reason)
            return special(owner, values, {k: v for k, (v, _) in kwargs.items()})
        try:
            plain = to_python(owner)
            given = [to_python(v) for v in values]
            named = {k: to_python(v) for k, (v, _) in kwargs.items()}
        except NotKnown as error:
            self.may_raise = True
            if isinstance(owner, Container) and name not in _READING:
                self.set_items(owner, Unknown(f".{name}() with an unknown argument"))
            return Unknown(error.reason)
        if isinstance(plain, (str, bytes)) and name in ("ljust", "rjust", "center", "zfill", "expandtabs", "format", "format_map"):
            if any(isinstance(v, int) and v > _LARGE for v in given) or (name.startswith("format") and len(plain) > 1000):
                return Unknown("a very long string")
        try:
            result = getattr(plain, name)(*given, **named)
        except Exception as error:
            raise Raised(type(error), str(error)) from None
        if isinstance(owner, Container) and name not in _READING:
            self.set_items(owner, plain if isinstance(owner, ASet) else Unknown(f".{name}() is not followed"))
        return self.from_python(result) if not _is_iterator(result) else self.new_list([self.from_python(r) for r in result])

    def list_append(self, owner, values, _):
        self.set_items(owner, [*owner.items, *values[:1]])

    def list_extend(self, owner, values, _):
        more = self.iterate(values[0]) if values else None
        self.set_items(owner, Unknown("extended by an unknown list") if more is None else [*owner.items, *more])

    def list_insert(self, owner, values, _):
        if len(values) != 2 or not isinstance(values[0], int):
            self.set_items(owner, Unknown("inserted at an unknown place"))
            return
        items = list(owner.items)
        items.insert(values[0], values[1])
        self.set_items(owner, items)

    def list_copy(self, owner, values, _):
        return self.new_list(list(owner.items))

    def list_pop(self, owner, values, _):
        items = list(owner.items)
        if values and not isinstance(values[0], int):
            self.set_items(owner, Unknown("popped at an unknown place"))
            return Unknown("an element at an unknown place")
        try:
            popped = items.pop(*values)
        except IndexError:
            raise Raised(IndexError) from None
        self.set_items(owner, items)
        return popped

    def list_remove(self, owner, values, _):
        found = [self._equal(each, values[0]) for each in owner.items]
        if True in found and None not in found[: found.index(True)]:
            at = found.index(True)
            self.set_items(owner, [*owner.items[:at], *owner.items[at + 1 :]])
        elif None in found:
            self.set_items(owner, Unknown("an unknown element was removed"))
        else:
            raise Raised(ValueError)

    def dict_get(self, owner, values, named):
        if not self._plain_key(values[0]):
            return Unknown("an item under an unknown key")
        return owner.items.get(values[0], values[1] if len(values) > 1 else named.get("default"))

    def dict_pop(self, owner, values, _):
        if not self._plain_key(values[0]):
            self.set_items(owner, Unknown("an unknown key was removed"))
            return Unknown("an item under an unknown key")
        if values[0] not in owner.items:
            if len(values) > 1:
                return values[1]
            raise Raised(KeyError)
        popped = owner.items[values[0]]
        self.set_items(owner, {k: v for k, v in owner.items.items() if k != values[0]})
        return popped

    def dict_setdefault(self, owner, values, _):
        if not self._plain_key(values[0]):
            self.set_items(owner, Unknown("an unknown key was set"))
            return Unknown("an item under an unknown key")
        if values[0] not in owner.items:
            self.set_items(owner, {**owner.items, values[0]: values[1] if len(values) > 1 else None})
        return owner.items[values[0]]

    def dict_update(self, owner, values, named):
        items = {**owner.items}
        for value in values:
            pairs = value.items if isinstance(value, ADict) else None
            if not isinstance(pairs, dict):
                self.set_items(owner, Unknown("updated from an unknown dict"))
                return
            items.update(pairs)
        self.set_items(owner, {**items, **named})

    def dict_keys(self, owner, values, _):
        return self.new_list(list(owner.items))

    def dict_values(self, owner, values, _):
        return self.new_list(list(owner.items.values()))

    def dict_items(self, owner, values, _):
        return self.new_list(list(owner.items.items()))

    def dict_copy(self, owner, values, _):
        return self.new_dict(dict(owner.items))

    # Built-in functions

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
        return Unknown("a very long range") if len(found) > _LARGE else self.new_list(list(found))

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

    # Standard library

    def lib_copy__deepcopy(self, args, kwargs):
        return self.clone(args[0][0])

    def lib_copy__copy(self, args, kwargs):
        value = args[0][0]
        if isinstance(value, Container):
            return type(value)(value.items, self.next_serial())
        if isinstance(value, Obj):
            copy = Obj(value.cls, self.next_serial(), value.why_open, value.fresh, value.truth)
            if isinstance(value, Unknown):
                copy = Unknown(value.reason, value.fresh, self.next_serial())
            copy.attrs = dict(value.attrs)
            return copy
        return value

    def lib_dataclasses__replace(self, args, kwargs):
        value = args[0][0]
        if isinstance(value, Unknown) or not isinstance(value, Obj):
            return self.opaque_call(External("dataclasses.replace"), args, kwargs)
        copy = self.lib_copy__copy(args[:1], {})
        for name, (new, origin) in kwargs.items():
            copy.attrs[name] = (new, origin, False)
        if isinstance(copy.cls, Class):
            lineage, complete = self.lineage(copy.cls)
            for name in kwargs:
                if complete and not self.has_field(lineage, name):
                    raise Raised(TypeError, f"unexpected field {name}")
            for name, slot in list(copy.attrs.items()):
                if slot[2] and name != TAINT and not self.has_field(lineage, name):
                    del copy.attrs[name]
            self.run_post_init(copy, lineage, complete)
        return copy

    def lib_dataclasses__field(self, args, kwargs):
        return FieldSpec(
            kwargs.get("default", (MISSING,))[0], kwargs.get("default_factory", (MISSING,))[0],
            kwargs.get("init", (True,))[0] is not False, kwargs.get("kw_only", (False,))[0] is True,
        )

    def lib_functools__partial(self, args, kwargs):
        return Partial(args[0][0], args[1:], kwargs)

    def lib_importlib__import_module(self, args, kwargs):
        name = args[0][0]
        if not isinstance(name, str) or name.startswith("."):
            return Unknown("a module with an unknown name")
        found = self.import_module(name)
        if isinstance(found, External):
            self.note_external(name)
        return found

    def lib_typing__cast(self, args, kwargs):
        return args[1][0]

    def lib_itertools__chain(self, args, kwargs):
        parts = [self.iterate(v) for v, _ in args]
        return Unknown("an unknown sequence") if None in parts else self.new_list([i for p in parts for i in p])

    def lib_itertools__product(self, args, kwargs):
        import itertools

        parts = [self.iterate(v) for v, _ in args]
        if None in parts or kwargs or math.prod(map(len, parts)) > _LARGE:
            return Unknown("an unknown sequence")
        return self.new_list(list(itertools.product(*parts)))

    def lib_os__getenv(self, args, kwargs):
        return Unknown("an environment variable")


_READING = frozenset(
    "count index copy keys values items get union intersection difference issubset issuperset isdisjoint "
    "symmetric_difference __contains__ __len__".split()
)


def _is_iterator(value: Any) -> bool:
    return type(value).__name__ in ("dict_keys", "dict_values", "dict_items")
