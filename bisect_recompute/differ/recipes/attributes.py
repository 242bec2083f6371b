"""Reading and writing attributes of whatever the evaluated program has."""

from __future__ import annotations

from typing import Any

from bisect_recompute.differ.recipes.classes import BOUNDARY, FieldSpec, limit_of_body, same_class
from bisect_recompute.differ.recipes.state import Frame, Imprecise, Raised
from bisect_recompute.differ.recipes.values import (
    MISSING, PUBLISHED, TAINT, Bound, Class, Container, EnumMember, External, Func, Method, Module, Obj, Partial,
    Super, Unknown, describe, is_primitive,
)


class Attributes:
    """Part of the interpreter."""

    def get_attribute(self, owner: Any, name: str) -> Any:
        if isinstance(owner, Obj):
            return self._object_attribute(owner, name)
        if isinstance(owner, Module):
            value = self.module_attribute(owner, name)
            if value is MISSING:
                raise Raised(AttributeError, name)
            return value
        if isinstance(owner, External):
            return External(f"{owner.name}.{name}")
        if isinstance(owner, Class):
            return self._class_attribute(owner, name)
        if isinstance(owner, EnumMember):
            if name in ("name", "value", "_name_", "_value_"):
                return owner.name if "name" in name else owner.value
            slot = self.class_slot(owner.cls, name)
            return self.unwrap(slot[0], owner, owner.cls) if slot is not MISSING else Unknown("an enum's attribute")
        if isinstance(owner, Super):
            return self._super_attribute(owner, name)
        if isinstance(owner, (Func, Bound, Partial)):
            if name in ("__name__", "__qualname__") and isinstance(owner, Func):
                return owner.name
            if isinstance(owner, Partial) and name in ("func",):
                return owner.func
            return Unknown("an attribute of a function")
        if isinstance(owner, (Container, tuple, str, bytes, int, float, complex)) and hasattr(_kind_of(owner), name):
            return Method(name, owner)
        if owner is None or is_primitive(owner) or isinstance(owner, (Container, tuple)):
            raise Raised(AttributeError, f"{type(owner).__name__}.{name}")
        return Unknown(f"an attribute of {describe(owner)}")

    def _object_attribute(self, owner: Obj, name: str) -> Any:
        slot = owner.attrs.get(name)
        if slot is not None:
            return slot[0]
        if name == "__class__" and owner.cls is not None:
            return owner.cls
        if name == "__dict__":
            return Unknown("the attributes of an object as a dict")
        outside = owner.cls.name if owner.cls.__class__ is External else ""
        if outside == "argparse.ArgumentParser" and name in ("parse_args", "parse_known_args"):
            return Method(name, owner)
        if outside == "argparse.Namespace" and self.command_line is not None:
            value = self.argument(owner, name)
            if value is not MISSING:
                return value
        tainted = TAINT in owner.attrs
        if isinstance(owner.cls, Class):
            slot = self.class_slot(owner.cls, name)
            if slot is not MISSING:
                value = slot[0]
                if isinstance(value, Func):
                    return self.unwrap(value, owner, owner.cls)
                if not tainted:
                    return self._default(owner, name, value, slot[1])
            elif owner.why_open is None and not tainted:
                if self.defines(owner.cls, "__getattr__"):
                    getter = self.class_slot(owner.cls, "__getattr__")[0]
                    return self.call(Bound(getter, owner), [(name, None)], {})
                raise Raised(AttributeError, name)
        self.may_raise = True
        reason = owner.attrs[TAINT][0] if tainted else owner.why_open or "an object that is not known"
        child = Unknown(
            f"{name}: {reason}" if isinstance(owner.cls, Class) else reason,
            isinstance(owner, Unknown) and owner.fresh and not tainted,
            self.next_serial(),
            self._inner_aliases(owner, name) if isinstance(owner, Unknown) and owner.aliases else (),
        )
        if PUBLISHED in owner.attrs:
            child.attrs[PUBLISHED] = owner.attrs[PUBLISHED]
        self.put(owner.attrs, name, (child, None, True))
        return child

    def _inner_aliases(self, owner: Unknown, name: str) -> tuple:
        found: list = []
        for alias in owner.aliases:
            slot = alias.attrs.get(name) if isinstance(alias, Obj) else None
            if slot is not None and isinstance(slot[0], (Obj, Container)):
                found += slot[0].aliases if isinstance(slot[0], Unknown) else (slot[0],)
        return tuple(found)

    def _default(self, owner: Obj, name: str, value: Any, origin) -> Any:
        if isinstance(value, FieldSpec):
            if value.factory is not MISSING:
                value = self.call(value.factory, [], {})
            elif value.default is not MISSING:
                value = value.default
            else:
                raise Raised(AttributeError, name)
            self.put(owner.attrs, name, (value, origin, True))
        return value

    def _class_attribute(self, cls: Class, name: str) -> Any:
        if cls.path.startswith(BOUNDARY):
            return External(f"{cls.name}.{name}")
        if name == "__name__":
            return cls.name
        slot = self.class_slot(cls, name)
        if slot is MISSING:
            if not self.lineage(cls)[1] or name.startswith("__"):
                return Unknown(f"{cls.name}.{name} comes from outside the repository")
            raise Raised(AttributeError, name)
        value = slot[0]
        if isinstance(value, Func):
            return Bound(value, cls) if value.decorated == "classmethod" else value
        return value.default if isinstance(value, FieldSpec) and value.default is not MISSING else value

    def unwrap(self, value: Any, owner: Any, cls: Class) -> Any:
        """A function found on a class, as seen through an instance."""
        if not isinstance(value, Func):
            return value
        if value.decorated == "staticmethod":
            return value
        if value.decorated == "classmethod":
            return Bound(value, cls)
        if value.decorated == "property":
            return self.call_function(value, [(owner, None)], {})
        return Bound(value, owner)

    def _super_attribute(self, owner: Super, name: str) -> Any:
        instance = owner.self
        cls = instance.cls if isinstance(instance, Obj) else instance
        if not isinstance(cls, Class):
            return Unknown("super() of an unknown class")
        lineage = self.lineage(cls)[0]
        position = next((i for i, c in enumerate(lineage) if isinstance(c, Class) and same_class(c, owner.after)), -1)
        for each in lineage[position + 1 :]:
            if isinstance(each, Class):
                slot = self.class_member(each, name)
                if slot is not MISSING:
                    return self.unwrap(slot[0], instance, cls)
                if name == "__init__" and self.is_dataclass(each):
                    raise Imprecise("super().__init__ of a dataclass")
        if name == "__setattr__" or (name in ("__init__", "__post_init__") and self.lineage(cls)[1]):
            return Method(f"object.{name}", instance)
        return Unknown(f"super().{name} from outside the repository")

    def set_attribute(self, owner: Any, name: str, value: Any, origin) -> None:
        if isinstance(owner, Obj):
            if isinstance(owner.cls, Class) and self._special_set(owner, name, value, origin):
                return
            self.put_heap(owner, owner.attrs, name, (value, origin, False))
            if isinstance(owner, Unknown):
                self.write_through(owner, name)
        elif isinstance(owner, Class):
            self.put_heap(owner, owner.attrs, name, (value, origin, False))
        elif isinstance(owner, (External, Module)):
            self.globals_changed = True
            if isinstance(owner, Module):
                raise Imprecise(f"a name of module {owner.dotted} is assigned")
        elif isinstance(owner, (Func, Bound, Partial)):
            return
        else:
            raise Raised(AttributeError, f"{type(owner).__name__}.{name}")

    def write_through(self, owner: Unknown, name: str) -> None:
        """The objects that an unknown one may be may have got the attribute."""
        for alias in owner.aliases:
            if isinstance(alias, Obj):
                self.put_heap(alias, alias.attrs, name, (Unknown("may have been written through another name"), None, False))
            else:
                self.havoc(alias, "may have been written through another name")

    def _special_set(self, owner: Obj, name: str, value: Any, origin) -> bool:
        for each, names in self.setters(owner.cls):
            if "__setattr__" in names:
                hook = self.class_member(each, "__setattr__")[0]
                self.call_function(hook, [(owner, None), (name, None), (value, origin)], {})
                return True
            if name in names:
                frame = Frame(each.path, self._member_chunk(each, name), outer=each.frame, limit=limit_of_body(each), owner=each)
                setter = self.make_function(frame, self.class_source(each).setter(name))
                setter.owner = each
                self.call_function(setter, [(owner, None), (value, origin)], {})
                return True
        return False

    def setters(self, cls: Class) -> list[tuple[Class, frozenset]]:
        """Classes of the lineage whose code runs on attribute writes, and the names for which it does."""
        if cls.node is not None:
            return self._setters(cls)
        return self.memoised(("setters", cls.path, cls.name), lambda: self._setters(cls))

    def _setters(self, cls: Class) -> list[tuple[Class, frozenset]]:
        found = []
        for each in self.lineage(cls)[0]:
            if isinstance(each, Class):
                if each.node is None:
                    self.depend("member", each.path, each.name, "")
                source = self.class_source(each)
                names = frozenset(n for n in source.members if n == "__setattr__" or source.setter(n) is not None)
                if names:
                    found.append((each, names))
        return found


def _kind_of(owner: Any) -> type:
    return owner.kind if isinstance(owner, Container) else type(owner)
