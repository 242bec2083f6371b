"""Classes of the repository: how instances are made and where their attributes come from."""

from __future__ import annotations

import ast
from typing import Any, Optional

from bisect_recompute.differ.recipes.source import last_word, member_chunk, mentions, touched_names
from bisect_recompute.differ.recipes.state import Frame, Imprecise, Raised
from bisect_recompute.differ.recipes.values import (
    MISSING, TAINT, Class, EnumMember, External, Func, Obj, Unknown, same,
)

# Loading a model's description goes to files and networks: its result is a fresh object left to the framework.
BOUNDARY = (
    "src/megatron/bridge/models/conversion/", "src/megatron/bridge/models/hf_pretrained/", "src/megatron/hub/bridge/",
    "src/megatron/hub/converters/",
)
_ENUM_BASES = ("enum.Enum", "enum.IntEnum", "enum.StrEnum", "enum.Flag", "enum.IntFlag")


class FieldSpec:
    """What ``dataclasses.field(...)`` returns."""

    __slots__ = ("default", "factory", "init", "keyword_only")

    def __init__(self, default=MISSING, factory=MISSING, init=True, keyword_only=False):
        self.default = default
        self.factory = factory
        self.init = init
        self.keyword_only = keyword_only


class ClassSource:
    """A class's syntax tree and its statements by the names that they bind."""

    __slots__ = ("chunk", "node", "members", "annotated")

    def __init__(self, chunk: str, node: ast.ClassDef):
        self.chunk = chunk
        self.node = node
        self.members: dict[str, list[ast.stmt]] = {}
        self.annotated: dict[str, ast.AnnAssign] = {}
        """Fields, if the class is a dataclass."""
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                if not mentions(statement.annotation, "ClassVar"):
                    self.annotated[statement.target.id] = statement
            for name in _member_names(statement):
                self.members.setdefault(name, []).append(statement)


    def setter(self, name: str) -> Optional[ast.FunctionDef]:
        for statement in self.members.get(name, ()):
            if isinstance(statement, ast.FunctionDef) and any(last_word(d) == "setter" for d in statement.decorator_list):
                return statement
        return None


def limit_of_body(cls: Class) -> Optional[tuple]:
    """A class's body sees what its module has bound before it."""
    return (f"class {cls.name}",) if cls.node is None else None


class Classes:
    def class_source(self, cls: Class) -> ClassSource:
        """The class as this revision's file has it; evaluations that used an older body are found by their members."""
        if cls.node is not None:
            key: Any = id(cls)
            found = self.class_sources.get(key)
            if found is None or found.node is not cls.node:
                found = self.class_sources[key] = ClassSource(cls.chunk, cls.node)
            return found
        file = self.world.file(cls.path)
        binding = next((b for _, b in reversed(file.bindings.get(cls.name, ())) if b.kind == "class"), None) if file else None
        if binding is None:
            raise Imprecise(f"class {cls.name} is gone")
        key = (binding.chunk, binding.index)
        found = self.class_sources.get(key)
        if found is None:
            if len(self.class_sources) > 2000:
                self.class_sources.clear()
            found = self.class_sources[key] = ClassSource(binding.chunk, self.world.chunks.statement(*key))
        return found

    def decorate_class(self, made: Class, node: ast.ClassDef, frame: Optional[Frame]) -> Any:
        frame = frame or Frame(made.path, self.class_source(made).chunk)
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            value = self.eval(frame, called)
            name = value.name if isinstance(value, External) else ""
            if name.rpartition(".")[2] not in ("dataclass", "runtime_checkable", "final", "unique", "total_ordering"):
                applied = Unknown("") if isinstance(value, External) else self.eval(frame, decorator)
                if isinstance(applied, (Unknown, External)) or self.call(applied, [(made, None)], {}) is not made:
                    return Unknown(f"class {made.name} has a decorator that is not followed")
        return made

    def lineage(self, cls: Class) -> tuple[list, bool]:
        """(classes in method resolution order, whether all of them are known); outside classes as External."""
        if cls.node is None:
            return self.memoised(("lineage", cls.path, cls.name), lambda: self._lineage(cls))
        return self._lineage(cls)

    def _lineage(self, cls: Class) -> tuple[list, bool]:
        if cls.node is None:
            self.depend("member", cls.path, cls.name, "")
        if self.depth > 60:
            return [cls], False
        order: list = [cls]
        complete = True
        frame = cls.frame or Frame(cls.path, self.class_source(cls).chunk, limit=limit_of_body(cls))
        self.depth += 1
        try:
            for base in self.class_source(cls).node.bases:
                value = self.eval(frame, base)
                if isinstance(value, Class):
                    inherited, known = self.lineage(value)
                    complete &= known
                    # Later bases win the place of shared ancestors, as in Python's own order for diamonds.
                    order = [c for c in order if not any(same_class(c, i) for i in inherited)] + list(inherited)
                elif isinstance(value, External):
                    order.append(value)
                    complete &= value.name in ("builtins.object", "typing.Protocol", "typing.Generic", "abc.ABC",
                                               *_ENUM_BASES, "builtins.str", "builtins.int")
                else:
                    complete = complete and _is_generic(base)
        finally:
            self.depth -= 1
        return order, complete

    def class_slot(self, cls: Class, name: str) -> Any:
        """Slot of a class attribute through the lineage, or MISSING."""
        for each in self.lineage(cls)[0]:
            if isinstance(each, Class):
                slot = each.attrs.get(name, MISSING)
                if slot is MISSING:
                    slot = self.class_member(each, name)
                if slot is not MISSING:
                    return slot
        return MISSING

    def class_member(self, cls: Class, name: str) -> Any:
        if cls.node is not None:
            return self._class_member(cls, name)
        return self.memoised(("member", cls.path, cls.name, name), lambda: self._class_member(cls, name))

    def _class_member(self, cls: Class, name: str) -> Any:
        if cls.node is None:
            self.depend("member", cls.path, cls.name, name)
        key = ("class", cls.path, cls.name, id(cls.frame), name)
        if key in self.in_progress:
            return MISSING
        found = self.class_source(cls).members.get(name)
        if not found:
            return MISSING
        self.in_progress.add(key)
        try:
            return self.isolated(lambda: self._run_members(cls, name, found))
        finally:
            self.in_progress.discard(key)

    def _run_members(self, cls: Class, name: str, found: list) -> Any:
        frame = Frame(cls.path, self._member_chunk(cls, name), outer=cls.frame, limit=limit_of_body(cls), owner=cls)
        try:
            if isinstance(found[-1], ast.FunctionDef):
                if any(last_word(d) == "setter" for d in found[-1].decorator_list):
                    found = [s for s in found if not any(last_word(d) == "setter" for d in s.decorator_list)] or found
                found = found[-1:]
            for statement in found:
                self.execute(frame, statement)
        except Raised as error:
            return (Unknown(f"class {cls.name}: {getattr(error.kind, '__name__', error.kind)}"), None, True)
        except Imprecise as error:
            return (Unknown(f"class {cls.name}: {error.reason}"), None, True)
        slot = frame.locals.get(name, MISSING)
        if slot is MISSING:
            return MISSING
        value = slot[0]
        if isinstance(value, Func) and value.owner is None:
            value.owner = cls
        elif self.is_enum(cls) and not isinstance(value, (Func, Class)) and not name.startswith("_"):
            value = EnumMember(cls, name, value)
        return (value, slot[1], True)

    def _member_chunk(self, cls: Class, name: str) -> str:
        source = self.class_source(cls)
        if cls.node is not None:
            return source.chunk
        fingerprint = self.world.fingerprint(("member", cls.path, cls.name, name))
        return member_chunk(cls.name, name, source.members[name][-1].lineno, fingerprint)

    def is_enum(self, cls: Class) -> bool:
        return any(isinstance(c, External) and c.name in _ENUM_BASES for c in self.lineage(cls)[0])

    def equal_to_member(self, member: EnumMember, plain: Any) -> Optional[bool]:
        lineage = self.lineage(member.cls)[0]
        mixed = any(isinstance(c, External) and c.name in ("builtins.str", "builtins.int", "enum.IntEnum", "enum.StrEnum")
                    for c in lineage)
        return self._equal(member.value, plain) if mixed else False

    def defines(self, cls: Class, name: str) -> bool:
        return self.class_slot(cls, name) is not MISSING

    def is_dataclass(self, cls: Class) -> bool:
        if cls.node is None:
            self.depend("member", cls.path, cls.name, "")
        for decorator in self.class_source(cls).node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if (called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")) == "dataclass":
                return True
        return False

    # Instances

    def instantiate(self, cls: Class, args: list, kwargs: dict) -> Any:
        if cls.path.startswith(BOUNDARY):
            return self.opaque_call(External(cls.name), args, kwargs)
        lineage, complete = self.lineage(cls)
        if self.is_enum(cls):
            return self._enum_by_value(cls, args)
        made = Obj(cls, self.next_serial(), None if complete else f"{cls.name} inherits from outside the repository",
                   True, None if self._has_truth(lineage) else True)
        for each in lineage:
            if isinstance(each, External):
                if each.name in ("builtins.object", "abc.ABC", "typing.Protocol", "typing.Generic"):
                    continue
                return self._open_instance(made, each, args, kwargs)
            if self._own(each, "__new__"):
                raise Imprecise(f"{cls.name} has its own __new__")
            init = self._own(each, "__init__")
            if init is not None:
                self.call_function(init, [(made, None), *args], kwargs)
                return made
            if self.is_dataclass(each):
                return self._dataclass_instance(made, lineage, complete, args, kwargs)
        if args or kwargs:
            raise Raised(TypeError, f"{cls.name}() takes no arguments")
        return made

    def _own(self, cls: Class, name: str) -> Optional[Func]:
        if cls.node is None:
            self.depend("member", cls.path, cls.name, "")
        if name not in self.class_source(cls).members:
            return None
        slot = self.class_member(cls, name)
        return slot[0] if slot is not MISSING and isinstance(slot[0], Func) else None

    def _has_truth(self, lineage: list) -> bool:
        return any(isinstance(c, Class) and (self._own(c, "__bool__") or self._own(c, "__len__")) for c in lineage)

    def _open_instance(self, made: Obj, base: External, args: list, kwargs: dict) -> Obj:
        made.why_open = made.why_open or f"made by {base.name}"
        for name, (value, origin) in kwargs.items():
            made.attrs[name] = (value, origin, False)
        if args:
            made.attrs[TAINT] = (f"positional arguments of {base.name}", None, True)
        return made

    def has_field(self, lineage: list, name: str) -> bool:
        """Like ``name in self.fields(lineage)``, reading only that member of each class."""
        for cls in lineage:
            if isinstance(cls, Class) and self.is_dataclass(cls):
                if cls.node is None:
                    self.depend("member", cls.path, cls.name, name)
                if name in self.class_source(cls).annotated:
                    return True
        return False

    def required(self, lineage: list) -> list[str]:
        """Fields without a default where they are declared; part of what ``is_dataclass`` depends on."""
        return [
            name for cls in lineage if isinstance(cls, Class) and self.is_dataclass(cls)
            for name, statement in self.class_source(cls).annotated.items() if statement.value is None
        ]

    def fields(self, lineage: list) -> dict[str, tuple[Class, ast.AnnAssign]]:
        for cls in lineage:
            if isinstance(cls, Class) and cls.node is None:
                self.depend("member", cls.path, cls.name, "*")
        found: dict = {}
        for cls in reversed(lineage):
            if isinstance(cls, Class) and self.is_dataclass(cls):
                for name, statement in self.class_source(cls).annotated.items():
                    found[name] = (cls, statement)
        return found

    def _dataclass_instance(self, made, lineage, complete, args, kwargs) -> Obj:
        given = dict(kwargs)
        if args:
            if not complete:
                made.attrs[TAINT] = ("positional arguments of a class that inherits from outside", None, True)
            names = [n for n, (c, s) in self.fields(lineage).items() if self._field_spec(c, s).init]
            if complete and len(args) > len(names):
                raise Raised(TypeError, "too many positional arguments")
            for name, slot in zip(names, args):
                if name in given:
                    raise Raised(TypeError, f"multiple values for {name}")
                given[name] = slot
        for name in given:
            if complete and not self.has_field(lineage, name):
                raise Raised(TypeError, f"unexpected keyword {name}")
        for name, (value, origin) in given.items():
            made.attrs[name] = (value, origin, False)
        for name in self.required(lineage) if complete else ():
            if name not in given and not self.class_has_default(lineage, name):
                raise Raised(TypeError, f"missing argument {name}")
        self.run_post_init(made, lineage, complete)
        return made

    def class_has_default(self, lineage: list, name: str) -> bool:
        for each in lineage:
            if isinstance(each, Class) and each.node is None:
                self.depend("member", each.path, each.name, name)
        return any(
            isinstance(c, Class) and any(
                not (isinstance(s, ast.AnnAssign) and s.value is None) for s in self.class_source(c).members.get(name, ())
            )
            for c in lineage
        )

    def _field_spec(self, cls: Class, statement: ast.AnnAssign) -> FieldSpec:
        if isinstance(statement.value, ast.Call):
            slot = self.class_member(cls, statement.target.id)
            if slot is not MISSING and isinstance(slot[0], FieldSpec):
                return slot[0]
        return FieldSpec()

    def run_post_init(self, made: Obj, lineage: list, complete: bool) -> None:
        """Only where the whole lineage is known: what it writes counts as the class's defaults."""
        if not complete:
            return
        for each in lineage:
            if isinstance(each, Class):
                post = self._own(each, "__post_init__")
                if post is not None:
                    explicit = set(made.attrs)
                    self.call_function(post, [(made, None)], {})
                    for name, (value, origin, _) in list(made.attrs.items()):
                        if name not in explicit:
                            self.put(made.attrs, name, (value, origin, True))
                    return

    def _enum_by_value(self, cls: Class, args: list) -> Any:
        if len(args) != 1:
            raise Imprecise("an enum is made")
        value = args[0][0]
        if isinstance(value, EnumMember):
            return value
        if cls.node is None:
            self.depend("member", cls.path, cls.name, "**")
        for statement in self.class_source(cls).node.body:
            for name in _member_names(statement):
                slot = self.class_member(cls, name)
                if slot is not MISSING and isinstance(slot[0], EnumMember):
                    if self._equal(slot[0].value, value):
                        return slot[0]
        return Unknown(f"a member of {cls.name}")

    # Attributes


def _member_names(statement: ast.stmt) -> set[str]:
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
        return {statement.name}
    if isinstance(statement, ast.AnnAssign):
        return {statement.target.id} if isinstance(statement.target, ast.Name) and statement.value is not None else set()
    return touched_names(statement)


def same_class(a: Any, b: Any) -> bool:
    return same(a, b) or (isinstance(a, Class) and isinstance(b, Class) and a is b)


def _is_generic(base: ast.expr) -> bool:
    return isinstance(base, ast.Subscript) and last_word(base.value) in ("Generic", "Protocol")
