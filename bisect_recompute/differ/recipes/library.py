"""The methods of built-in types and the standard-library calls that recipes use."""

from __future__ import annotations

import builtins
import math
import os.path
from typing import Any, Optional

from bisect_recompute.differ.recipes.builtin_functions import LARGE, Builtins
from bisect_recompute.differ.recipes.classes import FieldSpec
from bisect_recompute.differ.recipes.state import Raised
from bisect_recompute.differ.recipes.values import (
    MISSING, TAINT, ADict, AList, ASet, Class, Container, EnumMember, External, Func, Method, NotKnown, Obj, Partial,
    Unknown, describe, is_primitive, to_python,
)

_PURE = {
    "builtins.len": len, "builtins.int": int, "builtins.float": float, "builtins.str": str, "builtins.abs": abs,
    "builtins.round": round, "builtins.min": min, "builtins.max": max, "builtins.sum": sum, "builtins.sorted": sorted,
    "builtins.repr": repr, "builtins.pow": pow, "builtins.divmod": divmod, "builtins.ord": ord, "builtins.chr": chr,
    "math.ceil": math.ceil, "math.floor": math.floor, "math.sqrt": math.sqrt, "math.log2": math.log2, "math.log": math.log,
    "math.gcd": math.gcd, "math.prod": math.prod, "os.path.join": os.path.join, "os.path.basename": os.path.basename,
    "os.path.dirname": os.path.dirname, "posixpath.join": os.path.join,
}


class Library(Builtins):
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
            if any(isinstance(v, int) and v > LARGE for v in given) or (name.startswith("format") and len(plain) > 1000):
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
        if None in parts or kwargs or math.prod(map(len, parts)) > LARGE:
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
