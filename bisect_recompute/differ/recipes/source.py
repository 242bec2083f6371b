"""One file's source, split into top-level chunks that are parsed once each, however many revisions repeat them."""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Optional

# A line that may begin a top-level statement. `else`, `except` and the like continue one.
_BOUNDARY = re.compile(r"^(?!(?:else|elif|except|finally)\b)[A-Za-z_@\"'\[({*]", re.MULTILINE)
_INIT_NAMES = (
    "__init__", "__new__", "__post_init__", "__setattr__", "__getattr__", "__getattribute__", "__init_subclass__",
    "__call__", "__bool__", "__len__", "__eq__", "__delattr__",
)
STAND_INS = frozenset(("parse_cli_args", "create_omegaconf_dict_config", "apply_overrides"))
"""Functions that are never entered, see ``launcher``."""
_CHANGING = ("append", "extend", "insert", "update", "setdefault", "add", "pop", "remove", "clear")
_MAY_CHANGE = re.compile(rf"\]\s*[-+*/|&]?=[^=]|\bdel\b|\.(?:{'|'.join(_CHANGING)})\(")
_MERGES = 8
_FLAGS = ast.PyCF_ONLY_AST


def digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


@dataclass(frozen=True)
class Binding:
    """That statement ``index`` of chunk ``chunk`` binds a name, and a fingerprint of what it binds it to."""

    chunk: str
    index: int
    kind: str
    """class, def, import, star, value"""
    fingerprint: str


@dataclass
class Chunk:
    """What a piece of source binds, without its syntax tree (that is parsed again when it is evaluated)."""

    text: str
    bindings: list[tuple[str, Binding]] = field(default_factory=list)
    members: dict[str, dict[str, str]] = field(default_factory=dict)
    """Class name -> member name -> fingerprint; "" is the class's head and what decides how instances are made."""
    member_lines: dict[tuple[str, str], int] = field(default_factory=dict)
    """(class, member) -> line in the chunk on which the member starts."""
    entries: dict[str, bool] = field(default_factory=dict)
    """Functions that can be called without arguments -> whether they say that they return a ConfigContainer."""
    parameters: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Function name -> names of its parameters."""
    changers: dict[str, set[str]] = field(default_factory=dict)
    """Function name -> names of the module whose objects it changes: a registry and its decorator."""
    callers: list[tuple[Binding, set[str]]] = field(default_factory=list)
    """Statements that call functions when the module is imported, and the names of those."""


@dataclass
class SourceFile:
    """The top-level statements of one blob, in order."""

    blob: str
    places: list[tuple[str, int]]
    """(chunk id, line of the file on which the chunk starts, 1-based), in source order."""
    bindings: dict[str, list[tuple[int, Binding]]]
    """Name -> (place, binding) in order; "*" for star imports."""
    members: dict[str, dict[str, str]]
    entries: dict[str, bool]
    parameters: dict[str, tuple[str, ...]]
    member_lines: dict[tuple[str, str], int]
    broken: str | None = None
    """Why the file does not parse."""
    _place_of: dict[tuple[str, int], int] = field(default_factory=dict)

    def nth(self, place: int) -> int:
        """How many chunks before the place are the same as the one there."""
        return sum(identity == self.places[place][0] for identity, _ in self.places[:place])

    def place_of(self, chunk: str, nth: int = 0) -> int | None:
        """Place of a chunk, also where the file around it has changed; None where it is not in the file."""
        if not self._place_of and self.places:
            seen: Counter = Counter()
            for place, (identity, _) in enumerate(self.places):
                self._place_of[identity, seen[identity]] = place
                seen[identity] += 1
        return self._place_of.get((chunk, nth))

    def before(self, name: str, limit: tuple | None) -> list[tuple[int, Binding]]:
        """What binds a name before a statement (chunk, which of the equal chunks, index in it), a class ("class X",); None: ever."""
        bindings = self.bindings.get(name, [])
        if limit is None or not bindings:
            return bindings
        if len(limit) == 1:
            places = [(p, b.index) for p, b in self.bindings.get(limit[0][6:], ()) if b.kind == "class"]
        else:
            places = [(place, limit[2]) for place in (self.place_of(*limit[:2]),) if place is not None]
        return [(p, b) for p, b in bindings if (p, b.index) < places[-1]] if places else []

    def line(self, chunk: str, line: int) -> int:
        """Line of the file for line ``line`` of a chunk; 0 where the chunk is not in this version of the file.

        A member of a class is a chunk of its own, see ``member_chunk``: the rest of the class may change around it.
        """
        if chunk.startswith("@"):
            owner, name, start, fingerprint = chunk[1:].split(" ")
            if self.members.get(owner, {}).get(name) != fingerprint:
                return 0
            return self.member_lines[owner, name] + line - int(start)
        place = self.place_of(chunk)
        return 0 if place is None else self.places[place][1] + line - 1

    def fingerprint(self, name: str) -> str:
        """Changes whenever the meaning of the name in this file may change, imported modules aside."""
        if self.broken:
            return f"broken:{self.blob}"
        found = self.bindings.get(name)
        if not found:
            return "star:" + ",".join(b.fingerprint for _, b in self.bindings.get("*", ()))
        if len(found) == 1:
            return found[0][1].fingerprint
        return digest(",".join(b.fingerprint for _, b in found))

    def fingerprint_before(self, name: str, limit: tuple) -> str:
        """``fingerprint`` of what the statements before one (see ``before``) make of the name."""
        if self.broken:
            return f"broken:{self.blob}"
        return ",".join(b.fingerprint for n in (name, "*") for _, b in self.before(n, limit))

    def member(self, owner: str, name: str) -> str:
        return f"broken:{self.blob}" if self.broken else self.members.get(owner, {}).get(name, "")


class Chunks:
    """All chunks seen so far, by content."""

    def __init__(self, tree_budget: int = 5_000_000):
        self._chunks: dict[str, Chunk] = {}
        self._trees: dict[str, list[ast.stmt]] = {}
        self._kept = 0
        self._budget = tree_budget

    def split(self, blob: str, content: bytes | None) -> SourceFile:
        if content is None:
            return SourceFile(blob, [], {}, {}, {}, {}, {}, "the clone lacks this file")
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            return SourceFile(blob, [], {}, {}, {}, {}, {}, "the file is not UTF-8")
        text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", " ")
        try:
            places = self._split(text)
        except _Unparsable as error:
            return SourceFile(blob, [], {}, {}, {}, {}, {}, f"the file does not parse: {error}")
        bindings: dict[str, list[tuple[int, Binding]]] = {}
        members: dict[str, dict[str, str]] = {}
        entries: dict[str, bool] = {}
        parameters: dict[str, tuple[str, ...]] = {}
        member_lines: dict[tuple[str, str], int] = {}
        for place, (identity, start) in enumerate(places):
            chunk = self._chunks[identity]
            member_lines.update((key, start + line - 1) for key, line in chunk.member_lines.items())
            for name, binding in chunk.bindings:
                bindings.setdefault(name, []).append((place, binding))
            members.update(chunk.members)
            entries.update(chunk.entries)
            parameters.update(chunk.parameters)
        self._add_registrations(places, bindings)
        return SourceFile(blob, places, bindings, members, entries, parameters, member_lines)

    def _add_registrations(self, places, bindings) -> None:
        """Binds a name also where a function that changes its object is called at module level."""
        chunks = [self._chunks[identity] for identity, _ in places]
        changers = {name: names for chunk in chunks for name, names in chunk.changers.items()}
        if not changers:
            return
        for place, chunk in enumerate(chunks):
            for binding, called in chunk.callers:
                for name in set().union(*(changers.get(function, ()) for function in called)) & bindings.keys():
                    bindings[name].append((place, binding))
                    bindings[name].sort(key=lambda entry: (entry[0], entry[1].index))

    def text(self, chunk: str) -> str:
        return self._chunks[chunk].text

    def statement(self, chunk: str, index: int) -> ast.stmt:
        return self.tree(chunk)[index]

    def tree(self, chunk: str) -> list[ast.stmt]:
        tree = self._trees.pop(chunk, None)
        if tree is not None:
            # To the end: the front is dropped first.
            self._trees[chunk] = tree
        else:
            text = self._chunks[chunk].text
            tree = self._trees[chunk] = _parse(text)
            self._kept += len(text)
            while self._kept > self._budget and len(self._trees) > 1:
                oldest = next(iter(self._trees))
                del self._trees[oldest]
                self._kept -= len(self._chunks[oldest].text)
        return tree

    def _split(self, text: str) -> list[tuple[str, int]]:
        starts = [m.start() for m in _BOUNDARY.finditer(text)]
        ends = starts[1:] + [len(text)]
        places: list[tuple[str, int]] = []
        line, counted, i = 1, 0, 0
        while i < len(starts):
            for j in range(i, min(i + _MERGES, len(ends))):
                piece = text[starts[i] : ends[j]].rstrip() + "\n"
                if self._add(piece):
                    break
            else:
                return self._split_by_tree(text)
            line += text.count("\n", counted, starts[i])
            counted = starts[i]
            places.append((digest(piece), line))
            i = j + 1
        return places

    def _split_by_tree(self, text: str) -> list[tuple[str, int]]:
        """The slow way, for files with code-like text at the left margin of strings."""
        lines = text.split("\n")
        places = []
        for node in _parse(text):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            piece = "\n".join(lines[first - 1 : node.end_lineno]) + "\n"
            if not self._add(piece):
                # Two statements on one line: keep the whole file as one chunk.
                if not self._add(text + "\n"):
                    raise _Unparsable("cannot be split into statements")
                return [(digest(text + "\n"), 1)]
            places.append((digest(piece), first))
        return places

    def _add(self, piece: str) -> bool:
        identity = digest(piece)
        if identity not in self._chunks:
            try:
                tree = _parse(piece)
            except _Unparsable:
                return False
            self._chunks[identity] = _describe(identity, piece, tree)
        return True


class _Unparsable(Exception):
    pass


def _parse(text: str) -> list[ast.stmt]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compile(text, "<recipe>", "exec", _FLAGS, dont_inherit=True).body
    except SyntaxError as error:
        raise _Unparsable(f"{error.msg} (line {error.lineno})") from None
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise _Unparsable(type(error).__name__) from None


def _describe(identity: str, text: str, tree: list[ast.stmt]) -> Chunk:
    chunk = Chunk(text)
    lines = text.split("\n")

    def source(node: ast.AST) -> str:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        return "\n".join(lines[first - 1 : node.end_lineno])

    for index, node in enumerate(tree):
        for name, kind, fingerprint in _bound(node, source):
            chunk.bindings.append((name, Binding(identity, index, kind, fingerprint)))
        if isinstance(node, ast.ClassDef):
            chunk.members[node.name] = _members(node, source)
            for statement in node.body:
                for name in [statement.name] if hasattr(statement, "name") else touched_names(statement):
                    chunk.member_lines[node.name, name] = statement.lineno
        if isinstance(node, ast.FunctionDef):
            spec = node.args
            chunk.parameters[node.name] = tuple(a.arg for a in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs))
            if len(spec.defaults) >= len(spec.posonlyargs) + len(spec.args) and None not in spec.kw_defaults:
                chunk.entries[node.name] = mentions(node.returns, "ConfigContainer")
            changed = _changed_globals(node, text)
            if changed:
                chunk.changers[node.name] = changed
        alias = _alias(node)
        if alias:
            chunk.entries[alias] = False
        called = _called_on_import(node)
        if called:
            chunk.callers.append((Binding(identity, index, "effect", digest(source(node))), called))
    return chunk


def _alias(node: ast.stmt) -> str:
    """``name_config = other_config``: a recipe function under a second name, if the other is one."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return ""
    names = [each.id if isinstance(each, ast.Name) else "" for each in (node.targets[0], node.value)]
    return names[0] if all(name.endswith("_config") and name.islower() for name in names) else ""


def _changed_globals(node: ast.FunctionDef, text: str) -> set[str]:
    """Names that are not the function's own and whose objects it changes in place."""
    if not _MAY_CHANGE.search(text):
        return set()
    own = {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
    changed: set[str] = set()
    for child in ast.walk(node):
        if isinstance(child, ast.Name) and not isinstance(child.ctx, ast.Load):
            own.add(child.id)
        elif isinstance(child, ast.Subscript) and not isinstance(child.ctx, ast.Load):
            changed |= _root(child)
        elif isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute) and child.func.attr in _CHANGING:
            changed |= _root(child.func)
    return changed - own


def _called_on_import(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return set()
    decorators = getattr(node, "decorator_list", [])
    names = {d.func.id if isinstance(d, ast.Call) else d.id for d in decorators
             if isinstance(d.func if isinstance(d, ast.Call) else d, ast.Name)}
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        names |= {c.func.id for c in _walk(node) if isinstance(c, ast.Call) and isinstance(c.func, ast.Name)}
    return names


def _bound(node: ast.stmt, source) -> list[tuple[str, str, str]]:
    """(name, kind, fingerprint) of what a top-level statement binds or changes."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        # The stand-in's own text is never read: what it stands for is a dependency of its own.
        return [(node.name, "def", "stand-in" if node.name in STAND_INS else digest(source(node)))]
    if isinstance(node, ast.ClassDef):
        # Only the head: what an evaluation reads of the members is recorded member by member.
        return [(node.name, "class", "class:" + _head(node))]
    if isinstance(node, ast.Import):
        return [
            (a.asname or a.name.split(".")[0], "import", digest(f"import {a.name} as {a.asname}")) for a in node.names
        ]
    if isinstance(node, ast.ImportFrom):
        origin = "." * node.level + (node.module or "")
        return [
            ("*", "star", digest(f"star {origin}"))
            if a.name == "*"
            else (a.asname or a.name, "import", digest(f"from {origin} import {a.name}"))
            for a in node.names
        ]
    text = digest(source(node))
    return [(name, "value", text) for name in sorted(touched_names(node))]


def _head(node: ast.ClassDef) -> str:
    parts = [*node.decorator_list, *node.bases, *(k.value for k in node.keywords)]
    return digest("\n".join(ast.dump(part) for part in parts))


def _members(node: ast.ClassDef, source) -> dict[str, str]:
    """Member name -> fingerprint. "": what decides how instances are made; "*": all fields in order; "**": everything."""
    members: dict[str, str] = {}
    shape = [_head(node)]
    fields = []
    for statement in node.body:
        names = [statement.name] if hasattr(statement, "name") else sorted(touched_names(statement))
        text = source(statement)
        for name in names:
            members[name] = digest(members.get(name, "") + text)
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            fields.append(text)
            marks = [m for m in ("ClassVar", "InitVar", "KW_ONLY") if mentions(statement.annotation, m)]
            if statement.value is None or marks:
                shape.append(f"{statement.target.id} {marks}")
        elif names and names[0] in _INIT_NAMES:
            shape.append(text)
        elif isinstance(statement, ast.FunctionDef) and statement.decorator_list:
            if any(mentions(d, "setter", "property") for d in statement.decorator_list):
                shape.append(f"property {statement.name}")
    members[""] = digest("\n".join(shape))
    members["*"] = digest("\n".join(fields))
    members["**"] = digest(source(node))
    return members


def last_word(node: ast.expr) -> str:
    """``b`` of ``b``, ``a.b`` and ``a.b(...)``."""
    if isinstance(node, ast.Call):
        node = node.func
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def mentions(node: Optional[ast.AST], *words: str) -> bool:
    """Whether a name, attribute or text below the node contains one of the words."""
    for child in ast.walk(node) if node is not None else ():
        text = child.id if isinstance(child, ast.Name) else child.attr if isinstance(child, ast.Attribute) else (
            child.value if isinstance(child, ast.Constant) and isinstance(child.value, str) else "")
        if any(word in text for word in words):
            return True
    return False


def member_chunk(owner: str, name: str, start: int, fingerprint: str) -> str:
    """Chunk id of a class's member that starts on line ``start`` of the class's own chunk."""
    return f"@{owner} {name} {start} {fingerprint}"


def touched_names(node: ast.AST) -> set[str]:
    """Names that a statement binds, deletes, or whose object it may change in place."""
    names: set[str] = set()
    for child in _walk(node):
        if isinstance(child, ast.Name) and not isinstance(child.ctx, ast.Load):
            names.add(child.id)
        elif isinstance(child, (ast.Attribute, ast.Subscript)) and not isinstance(child.ctx, ast.Load):
            names.update(_root(child))
        elif isinstance(child, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            names.add(child.name)
        elif isinstance(child, ast.alias):
            names.add("*" if child.name == "*" else child.asname or child.name.split(".")[0])
        elif isinstance(child, ast.Expr) and isinstance(child.value, ast.Call):
            call = child.value
            if isinstance(call.func, ast.Attribute):
                names.update(_root(call.func))
            for argument in call.args:
                names.update(_root(argument))
        elif isinstance(child, ast.ExceptHandler) and child.name:
            names.add(child.name)
    return names


def _root(node: ast.AST) -> set[str]:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
        node = node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def _walk(node: ast.AST):
    """Like ast.walk, without entering the bodies of functions and classes (their names are not the module's)."""
    todo = [node]
    while todo:
        child = todo.pop()
        yield child
        if child is not node and isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if child is node and isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        todo.extend(ast.iter_child_nodes(child))
