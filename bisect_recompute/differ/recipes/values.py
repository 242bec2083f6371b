"""What expressions evaluate to: Python's own immutable values, objects of the evaluated program, and the unknown."""

from __future__ import annotations

from typing import Any, Optional

_PRIMITIVES = frozenset((type(None), bool, int, float, complex, str, bytes, type(Ellipsis)))
MISSING = object()
ITEMS = 0
"""Key of a container's content; no name, so no place of another kind has it."""
TAINT = "!taint"
"""Attribute that says why any attribute may have any value."""
PUBLISHED = "!published"
"""Attribute of what is made from a published model: the model's name on Hugging Face."""


class NotKnown(Exception):
    """A plain Python value was needed and part of it is not known."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


class Obj:
    """An instance, or something opaque from outside the repository on which attribute writes are remembered.

    ``attrs``: name -> (value, origin, is_default). ``why_open`` is None where the class is fully known, else the reason
    why an attribute that is not in ``attrs`` may exist. ``fresh``: nothing but the recipe writes to it, so an attribute
    that is not in ``attrs`` was left to its class.
    """

    __slots__ = ("cls", "attrs", "why_open", "fresh", "serial", "truth")

    def __init__(self, cls: Any, serial: int, why_open: Optional[str] = None, fresh: bool = True, truth=None):
        self.cls = cls
        self.attrs: dict[str, tuple] = {}
        self.why_open = why_open
        self.fresh = fresh
        self.serial = serial
        self.truth = truth


class Unknown(Obj):
    """A value that cannot be known, and why. It may be one of ``aliases``: writing to it may write to those."""

    __slots__ = ("aliases",)

    def __init__(self, reason: str, fresh: bool = False, serial: int = 1 << 60, aliases: tuple = ()):
        super().__init__(None, serial, reason, fresh)
        self.aliases = tuple({id(a): a for a in aliases}.values()) if len(aliases) > 1 else aliases

    @property
    def reason(self) -> str:
        return self.why_open


class Container:
    """A list, dict or set of the evaluated program; ``state[ITEMS]`` is replaced, never changed in place."""

    __slots__ = ("state", "serial")
    kind: type

    def __init__(self, items: Any, serial: int):
        self.state = {ITEMS: items}
        self.serial = serial

    @property
    def items(self) -> Any:
        """The content, or an Unknown."""
        return self.state[ITEMS]


class AList(Container):
    __slots__ = ()
    kind = list


class ADict(Container):
    __slots__ = ()
    kind = dict


class ASet(Container):
    __slots__ = ()
    kind = set


class External:
    """Something named outside the repository: ``torch.bfloat16``, ``transformers.AutoConfig``."""

    __slots__ = ("name",)

    def __init__(self, name: str):
        self.name = name


class Module:
    """A module or package of the repository."""

    __slots__ = ("dotted", "path")

    def __init__(self, dotted: str, path: str):
        self.dotted = dotted
        self.path = path


class Func:
    """A function of the repository. ``frame`` is None for those that are no closures."""

    __slots__ = ("name", "path", "chunk", "node", "frame", "owner", "defaults", "decorated", "place", "key")

    def __init__(self, name, path, chunk, node, frame, defaults=((), ())):
        self.name = name
        self.path = path
        self.chunk = chunk
        self.node = node
        self.frame = frame
        self.owner = None
        self.defaults = defaults
        self.place = (path, name, chunk, node.lineno, node.col_offset)
        """Where it is defined: equal for the same text, whatever the text around it."""
        self.key = _key(self.place, defaults)
        """Equal for functions that do the same, as far as the names of their module mean the same; None: not known."""
        self.decorated: str = ""
        """"", "property", "staticmethod" or "classmethod"."""


def _key(place: tuple, defaults: tuple) -> Optional[tuple]:
    given = [None if slot is None else slot[0] for part in defaults for slot in part]
    if not all(is_primitive(v) or v.__class__ in (External, EnumMember) for v in given):
        return None
    return (*place, *((type(v).__name__, v if is_primitive(v) else describe(v)) for v in given))


class Class:
    """A class of the repository. At module level it is known by its place alone, ``node`` and ``chunk`` are None."""

    __slots__ = ("name", "path", "chunk", "node", "frame", "serial", "attrs")

    def __init__(self, name, path, chunk, node, frame, serial):
        self.name = name
        self.path = path
        self.chunk = chunk
        self.node = node
        self.frame = frame
        self.serial = serial
        self.attrs: dict[str, tuple] = {}


class Bound:
    """A function with its first argument."""

    __slots__ = ("func", "self")

    def __init__(self, func, self_):
        self.func = func
        self.self = self_


class Method:
    """A method of a built-in type: ``[].append``."""

    __slots__ = ("name", "self")

    def __init__(self, name, self_):
        self.name = name
        self.self = self_


class Partial:
    __slots__ = ("func", "args", "kwargs")

    def __init__(self, func, args, kwargs):
        self.func = func
        self.args = args
        self.kwargs = kwargs


class Super:
    __slots__ = ("after", "self")

    def __init__(self, after, self_):
        self.after = after
        self.self = self_


class EnumMember:
    """A member of an Enum class of the repository."""

    __slots__ = ("cls", "name", "value")

    def __init__(self, cls, name, value):
        self.cls = cls
        self.name = name
        self.value = value


HEAP = (Obj, Container)


def is_primitive(value: Any) -> bool:
    return value.__class__ in _PRIMITIVES


def same(a: Any, b: Any) -> bool:
    """Whether two values are certainly the same for any use (identity for objects)."""
    if a is b:
        return True
    if is_primitive(a) and is_primitive(b):
        return type(a) is type(b) and a == b
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, External) and isinstance(b, External):
        return a.name == b.name
    if isinstance(a, EnumMember) and isinstance(b, EnumMember):
        return a.cls.name == b.cls.name and a.cls.path == b.cls.path and a.name == b.name
    if isinstance(a, Module) and isinstance(b, Module):
        return a.path == b.path
    if isinstance(a, Func) and isinstance(b, Func) and a.frame is None and b.frame is None:
        return a.key is not None and a.key == b.key
    if isinstance(a, Class) and isinstance(b, Class):
        return a.node is None and b.node is None and (a.path, a.name) == (b.path, b.name)
    return False


def to_python(value: Any) -> Any:
    """The value as plain Python data. Raises NotKnown."""
    if is_primitive(value):
        return value
    if isinstance(value, tuple):
        return tuple(map(to_python, value))
    if isinstance(value, Container):
        items = value.items
        if isinstance(items, Unknown):
            raise NotKnown(items.reason)
        if isinstance(value, ADict):
            return {to_python(k): to_python(v) for k, v in items.items()}
        plain = [to_python(v) for v in items]
        return plain if isinstance(value, AList) else set(plain)
    if isinstance(value, Unknown):
        raise NotKnown(value.reason)
    raise NotKnown(f"not plain data: {describe(value)}")


def describe(value: Any) -> str:
    if isinstance(value, External):
        return value.name
    if isinstance(value, (Func, Class)):
        return value.name
    if isinstance(value, EnumMember):
        return f"{value.cls.path}:{value.cls.name}.{value.name}"
    if isinstance(value, Unknown):
        return value.reason
    if isinstance(value, Obj):
        return f"an object of {describe(value.cls)}" if value.cls is not None else "an object"
    return type(value).__name__
