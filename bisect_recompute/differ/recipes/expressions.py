"""Expressions: names, attributes, operators, literals and comprehensions."""

from __future__ import annotations

import ast
import builtins
import operator
from typing import Any, Optional

from bisect_recompute.differ.recipes.state import Frame, Imprecise, Raised
from bisect_recompute.differ.recipes.values import (
    MISSING, ADict, AList, ASet, Class, Container, EnumMember, External, Func, Module, NotKnown, Obj, Unknown,
    is_primitive, same, to_python,
)

_BINARY = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.BitOr: operator.or_, ast.BitAnd: operator.and_,
    ast.BitXor: operator.xor, ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.Pow: operator.pow,
}
_UNARY = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert}
_COMPARE = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_LARGE = 100_000


class Expressions:
    def eval(self, frame: Frame, node: ast.expr) -> Any:
        return self.expressions[node.__class__](frame, node)

    def ev_Constant(self, frame, node):
        return node.value

    def ev_Name(self, frame, node):
        slot = frame.locals.get(node.id)
        return slot[0] if slot is not None else self.lookup(frame, node.id)[0]

    def lookup(self, frame: Frame, name: str) -> tuple:
        """Slot of a name. Raises the evaluated program's NameError."""
        scope = frame
        while scope is not None:
            slot = scope.locals.get(name)
            if slot is not None:
                return slot
            if scope.names is not None and name in scope.names and name not in scope.skips:
                raise Raised(UnboundLocalError, name)
            if scope.owner is not None and scope.names is None:
                slot = self.class_member(scope.owner, name)
                if slot is not MISSING:
                    return slot
            scope = scope.outer
        slot = self.symbol(frame.path, name, frame.limit)
        if slot is not MISSING:
            return slot
        if hasattr(builtins, name):
            return (External(f"builtins.{name}"), None, False)
        raise Raised(NameError, name)

    def origin_of(self, frame: Frame, node: ast.expr) -> tuple:
        """Where the value of an expression was written down, through names and attributes."""
        kind = node.__class__
        if kind is not ast.Name and kind is not ast.Attribute:
            return (frame.path, frame.chunk, node.lineno)
        try:
            if kind is ast.Name:
                found = self.lookup(frame, node.id)[1]
            elif _is_path(node.value):
                owner = self.eval(frame, node.value)
                slot = owner.attrs.get(node.attr) if isinstance(owner, (Obj, Class)) else None
                if self.recording is not None and owner.__class__ is Obj and owner.attrs.__class__ is not dict:
                    owner.attrs.note_origin(node.attr)
                if slot is None and isinstance(owner, Module) and not owner.path.endswith("/"):
                    slot = self.symbol(owner.path, node.attr)
                if slot is None and isinstance(owner, Obj) and isinstance(owner.cls, Class):
                    slot = self.class_slot(owner.cls, node.attr)
                found = slot[1] if slot is not None and slot is not MISSING else None
            else:
                found = None
        except Raised:
            found = None
        return found or self.origin(frame, node)

    def ev_Attribute(self, frame, node):
        owner = self.expressions[node.value.__class__](frame, node.value)
        if owner.__class__ is Obj:
            slot = owner.attrs.get(node.attr)
            if slot is not None:
                return slot[0]
        return self.get_attribute(owner, node.attr)

    def ev_Call(self, frame, node):
        return self.call_node(frame, node)

    def ev_JoinedStr(self, frame, node):
        parts = [self.eval(frame, v) for v in node.values]
        unknown = next((p for p in parts if not isinstance(p, str)), None)
        return "".join(parts) if unknown is None else Unknown("a string made of an unknown value")

    def ev_FormattedValue(self, frame, node):
        value = self.eval(frame, node.value)
        spec = "" if node.format_spec is None else self.eval(frame, node.format_spec)
        try:
            plain = to_python(value)
            if isinstance(spec, str):
                if node.conversion != -1:
                    plain = {115: str, 114: repr, 97: ascii}[node.conversion](plain)
                return format(plain, spec)
        except NotKnown:
            pass
        except (TypeError, ValueError) as error:
            raise Raised(type(error), str(error)) from None
        return Unknown("a string made of an unknown value")

    def ev_BoolOp(self, frame, node):
        stop = isinstance(node.op, ast.Or)
        value = None
        for position, each in enumerate(node.values):
            value = self.eval(frame, each)
            if position == len(node.values) - 1:
                return value
            truth = self.truth(value)
            if truth is None:
                rest = [self.eval(frame, v) for v in node.values[position + 1 :]]
                if not stop and any(self.truth(r) is False for r in rest):
                    # Falsy whichever operand it is; only the truth of it is certain.
                    return Obj(None, self.next_serial(), "one of several falsy values", False, False)
                if stop and any(self.truth(r) is True for r in rest):
                    return Obj(None, self.next_serial(), "one of several true values", False, True)
                return Unknown(value.reason if isinstance(value, Unknown) else "an unknown operand")
            if truth is stop:
                return value
        return value

    def ev_IfExp(self, frame, node):
        truth = self.truth(self.eval(frame, node.test))
        if truth is not None:
            return self.eval(frame, node.body if truth else node.orelse)
        reason = "depends on a condition that is not known"
        options = [lambda: ("return", self.eval(frame, node.body)), lambda: ("return", self.eval(frame, node.orelse))]
        return self.alternatives(frame, options, reason)[1]

    def ev_UnaryOp(self, frame, node):
        value = self.eval(frame, node.operand)
        if isinstance(node.op, ast.Not):
            truth = self.truth(value)
            return Unknown("the opposite of an unknown value") if truth is None else not truth
        if is_primitive(value):
            try:
                return _UNARY[type(node.op)](value)
            except TypeError as error:
                raise Raised(TypeError, str(error)) from None
        return Unknown("an operation on an unknown value")

    def ev_BinOp(self, frame, node):
        return self.binary(node.op, self.eval(frame, node.left), self.eval(frame, node.right))

    def binary(self, op, left, right):
        for value in (left, right):
            if isinstance(value, Unknown):
                self.may_raise = True
                return Unknown(value.reason)
        if isinstance(op, ast.Add) and isinstance(left, AList) and isinstance(right, AList):
            if isinstance(left.items, Unknown) or isinstance(right.items, Unknown):
                return Unknown("an unknown list is added")
            return self.new_list([*left.items, *right.items])
        if isinstance(op, ast.BitOr) and isinstance(left, ADict) and isinstance(right, ADict):
            if isinstance(left.items, Unknown) or isinstance(right.items, Unknown):
                return Unknown("an unknown dict is merged")
            return self.new_dict({**left.items, **right.items})
        if isinstance(op, ast.Mult) and (isinstance(left, AList) or isinstance(right, AList)):
            items, times = (left, right) if isinstance(left, AList) else (right, left)
            if isinstance(times, int) and not isinstance(items.items, Unknown):
                if len(items.items) * max(times, 0) > _LARGE:
                    return Unknown("a very long list")
                return self.new_list(items.items * times)
        if isinstance(op, ast.Add) and isinstance(left, tuple) and isinstance(right, tuple):
            return left + right
        if isinstance(op, ast.Div) and isinstance(left, External):
            return External(f"{left.name}/")
        try:
            a, b = to_python(left), to_python(right)
        except NotKnown as error:
            self.may_raise = True
            return Unknown(error.reason)
        if isinstance(op, (ast.Pow, ast.LShift)) and not (isinstance(b, (int, float)) and abs(b) < 4096):
            return Unknown("a very large number")
        if isinstance(op, ast.Mult) and any(isinstance(x, int) and abs(x) > _LARGE for x in (a, b)):
            if not all(isinstance(x, (int, float)) for x in (a, b)):
                return Unknown("a very long value")
        try:
            return self.from_python(_BINARY[type(op)](a, b)) if type(op) in _BINARY else Unknown("an unusual operator")
        except (TypeError, ValueError, ArithmeticError, MemoryError) as error:
            raise Raised(type(error), str(error)) from None

    def ev_Compare(self, frame, node):
        left = self.eval(frame, node.left)
        if len(node.ops) == 1:
            return self.compare(node.ops[0], left, self.eval(frame, node.comparators[0]))
        result: Any = True
        for op, right_node in zip(node.ops, node.comparators):
            right = self.eval(frame, right_node)
            result = self.compare(op, left, right)
            truth = self.truth(result)
            if truth is False:
                return result
            if truth is None:
                return Unknown("a comparison with an unknown value")
            left = right
        return result

    def compare(self, op, left, right):
        kind = op.__class__
        if kind is ast.Is or kind is ast.IsNot:
            if right is None and is_primitive(left):
                return (left is None) is (kind is ast.Is)
            known = self._identical(left, right)
            if known is None:
                return Unknown("a comparison with an unknown value")
            return known if kind is ast.Is else not known
        if kind is ast.In or kind is ast.NotIn:
            known = self._contains(right, left)
            if known is None:
                return Unknown("a search in an unknown value")
            return known if kind is ast.In else not known
        if kind is ast.Eq or kind is ast.NotEq:
            known = self._equal(left, right)
            if known is None:
                return Unknown("a comparison with an unknown value")
            return known if kind is ast.Eq else not known
        try:
            return _COMPARE[type(op)](to_python(left), to_python(right))
        except NotKnown as error:
            self.may_raise = True
            return Unknown(error.reason)
        except TypeError as error:
            raise Raised(TypeError, str(error)) from None

    def _identical(self, a, b) -> Optional[bool]:
        if isinstance(a, Unknown) or isinstance(b, Unknown):
            # `x is y` of one and the same unknown is true; anything else stays open.
            return True if a is b else None
        if isinstance(a, External) or isinstance(b, External):
            if isinstance(a, External) and isinstance(b, External):
                return True if a.name == b.name else None
            return None if not _is_type_name(a if isinstance(a, External) else b) else False
        if any(isinstance(x, Obj) and x.cls is None and x is not a is not b for x in (a, b)):
            return None
        if any(isinstance(x, Obj) and x.cls is None for x in (a, b)):
            return True if a is b else None
        if is_primitive(a) and is_primitive(b):
            if a is None or b is None or isinstance(a, bool) or isinstance(b, bool):
                return a is b
            return None if type(a) is type(b) and a == b else False
        if is_primitive(a) or is_primitive(b):
            return False
        return True if same(a, b) else False if a is not b and not isinstance(a, tuple) else None

    def _equal(self, a, b) -> Optional[bool]:
        if is_primitive(a) and is_primitive(b):
            return a == b
        for x, y in ((a, b), (b, a)):
            if isinstance(x, EnumMember):
                if isinstance(y, EnumMember):
                    return same(x, y)
                if is_primitive(y):
                    return self.equal_to_member(x, y)
                return None
        if same(a, b) and not isinstance(a, (Unknown, float)):
            return True
        if isinstance(a, Unknown) or isinstance(b, Unknown):
            return None
        if isinstance(a, Obj) or isinstance(b, Obj):
            other = b if isinstance(a, Obj) else a
            made = a if isinstance(a, Obj) else b
            if isinstance(made.cls, Class) and made.truth and (is_primitive(other) or isinstance(other, Container)):
                return False if not self.defines(made.cls, "__eq__") else None
            return None
        if isinstance(a, External) or isinstance(b, External):
            return None
        if isinstance(a, (Func, Class, Module)) or isinstance(b, (Func, Class, Module)):
            return False
        try:
            return to_python(a) == to_python(b)
        except NotKnown:
            return None

    def _contains(self, container, item) -> Optional[bool]:
        if isinstance(container, str):
            if isinstance(item, str):
                return item in container
            if is_primitive(item):
                raise Raised(TypeError, "in <string>")
            return None
        items = container.items if isinstance(container, Container) else container
        if isinstance(items, (list, dict, set, tuple, frozenset)):
            found = [self._equal(each, item) for each in items]
            return True if True in found else None if None in found else False
        if is_primitive(container):
            raise Raised(TypeError, "not a container")
        return None

    def truth(self, value) -> Optional[bool]:
        if is_primitive(value):
            return bool(value)
        if isinstance(value, tuple):
            return bool(value)
        if isinstance(value, Container):
            return None if isinstance(value.items, Unknown) else bool(value.items)
        if isinstance(value, Obj):
            return value.truth
        if isinstance(value, External):
            if value.name == "typing.TYPE_CHECKING":
                return False
            return True if _is_type_name(value) else None
        if isinstance(value, EnumMember):
            return True if not is_primitive(value.value) or value.value else None
        return True

    # Literals

    def ev_Tuple(self, frame, node):
        items = self._elements(frame, node.elts)
        return Unknown("a tuple with unknown elements") if items is None else tuple(items)

    def ev_List(self, frame, node):
        items = self._elements(frame, node.elts)
        return self.new_list(Unknown("a list with unknown elements") if items is None else items)

    def ev_Set(self, frame, node):
        return self.make_set(self._elements(frame, node.elts))

    def make_set(self, items) -> Any:
        try:
            return ASet({to_python(i) for i in items}, self.next_serial()) if items is not None else Unknown("an unknown set")
        except NotKnown as error:
            return ASet(Unknown(error.reason), self.next_serial())
        except TypeError as error:
            raise Raised(TypeError, str(error)) from None

    def _elements(self, frame, nodes) -> Optional[list]:
        items: list = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                more = self.iterate(self.eval(frame, node.value))
                if more is None:
                    return None
                items.extend(more)
            else:
                items.append(self.eval(frame, node))
        return items

    def ev_Dict(self, frame, node):
        items: dict = {}
        for key_node, value_node in zip(node.keys, node.values):
            value = self.eval(frame, value_node)
            if key_node is None:
                if not isinstance(value, ADict) or isinstance(value.items, Unknown):
                    return self.new_dict(Unknown("a dict merged with an unknown one"))
                items.update(value.items)
                continue
            key = self.eval(frame, key_node)
            if not _hashable(key):
                return self.new_dict(Unknown("a dict with an unknown key"))
            items[key] = value
        return self.new_dict(items)

    def ev_Subscript(self, frame, node):
        owner = self.eval(frame, node.value)
        if isinstance(node.slice, ast.Slice):
            return self._slice(owner, [None if b is None else self.eval(frame, b) for b in
                                       (node.slice.lower, node.slice.upper, node.slice.step)])
        return self.get_item(owner, self.eval(frame, node.slice))

    def ev_Slice(self, frame, node):
        return Unknown("a slice")

    def _slice(self, owner, bounds):
        items = owner.items if isinstance(owner, AList) else owner
        if any(not (b is None or isinstance(b, int)) for b in bounds) or not isinstance(items, (list, tuple, str)):
            return Unknown("a slice of an unknown value")
        try:
            part = items[slice(*bounds)]
        except ValueError as error:
            raise Raised(ValueError, str(error)) from None
        return self.new_list(part) if isinstance(owner, AList) else part

    def ev_NamedExpr(self, frame, node):
        value = self.eval(frame, node.value)
        scope = frame
        while scope.names is None and scope.outer is not None and scope.owner is None:
            scope = scope.outer
        self.bind(scope, node.target.id, value, self.origin_of(frame, node.value))
        return value

    def ev_Lambda(self, frame, node):
        return self.make_function(frame, node)

    def ev_Starred(self, frame, node):
        raise Imprecise("a starred expression")

    def ev_Await(self, frame, node):
        raise Imprecise("await")

    ev_Yield = ev_YieldFrom = ev_Await

    # Comprehensions

    def ev_ListComp(self, frame, node):
        items = self._comprehend(frame, node, lambda inner: self.eval(inner, node.elt))
        return self.new_list(Unknown("a list made from unknown elements") if items is None else items)

    ev_GeneratorExp = ev_ListComp

    def ev_SetComp(self, frame, node):
        items = self._comprehend(frame, node, lambda inner: self.eval(inner, node.elt))
        return Unknown("a set made from unknown elements") if items is None else self.make_set(items)

    def ev_DictComp(self, frame, node):
        pairs = self._comprehend(frame, node, lambda i: (self.eval(i, node.key), self.eval(i, node.value)))
        if pairs is None or not all(_hashable(k) for k, _ in pairs):
            return self.new_dict(Unknown("a dict made from unknown elements"))
        return self.new_dict(dict(pairs))

    def _comprehend(self, frame, node, make) -> Optional[list]:
        inner = Frame(frame.path, frame.chunk, outer=frame, limit=frame.limit)
        results: list = []
        return results if self._generate(inner, node.generators, make, results) else None

    def _generate(self, frame, generators, make, results) -> bool:
        first, *rest = generators
        items = self.iterate(self.eval(frame, first.iter))
        if items is None or first.is_async:
            return False
        origin = self.origin_of(frame, first.iter)
        for item in items:
            self.assign(frame, first.target, item, origin)
            truths = [self.truth(self.eval(frame, test)) for test in first.ifs]
            if False in truths:
                continue
            if None in truths:
                return False
            if rest:
                if not self._generate(frame, rest, make, results):
                    return False
            else:
                results.append(make(frame))
                if len(results) > _LARGE:
                    return False
        return True

    def from_python(self, value: Any) -> Any:
        """Plain Python data as values of the evaluated program."""
        if isinstance(value, list):
            return self.new_list([self.from_python(v) for v in value])
        if isinstance(value, dict):
            return self.new_dict({k: self.from_python(v) for k, v in value.items()})
        if isinstance(value, (set, frozenset)):
            return ASet(set(value), self.next_serial())
        if isinstance(value, tuple):
            return tuple(map(self.from_python, value))
        if is_primitive(value):
            return value
        return Unknown(f"a {type(value).__name__}")


def _is_path(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _is_type_name(value: External) -> bool:
    """Whether an outside name surely names a class, function or module, which is true and is not None."""
    last = value.name.rpartition(".")[2]
    return value.name.startswith("builtins.") or "." not in value.name or (last[:1].isupper() and not last.isupper())


def _hashable(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_hashable, value))
    return is_primitive(value)
