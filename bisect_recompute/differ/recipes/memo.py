"""Results that are kept from revision to revision, and how it is known that they still hold.

Every result remembers what it read: names, class members, modules, and other results with their versions. After a move
to another revision those that read a changed file are in doubt, with all that build on them. One in doubt is looked at
when it is needed: where all it read is the same it holds; else it is computed again, and where that gives the same value
its version stays, so that what builds on it holds too.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Callable, Iterable

from bisect_recompute.differ.recipes.values import (
    MISSING, Bound, Class, Container, EnumMember, External, Func, Method, Module, Obj, Partial, Unknown, is_primitive,
)


_OWN_PLACE = frozenset(("memo", "module"))
_DEEP = 200
"""Results that build on themselves are taken as they were beyond this depth."""


class Memo:
    __slots__ = ("value", "reads", "places", "version", "compute", "epoch")

    def __init__(self, value: Any, dependencies: dict, places: set, version: int, compute: Callable, epoch: int):
        self.value = value
        self.reads = Reads(dependencies)
        self.places = places
        self.version = version
        self.compute = compute
        self.epoch = epoch
        """The world's, when the value was last known to be right."""


class Reads:
    """Dependencies of one result, sorted by how they are looked at again: files mostly have not been touched since."""

    __slots__ = ("dependencies", "paths", "memos", "modules")

    def __init__(self, dependencies: dict):
        self.dependencies = dependencies
        self.paths = {d[1] for d in dependencies if d[0] not in ("memo", "module")}
        self.memos = [(d[1], version) for d, version in dependencies.items() if d[0] == "memo"]
        self.modules = any(d[0] == "module" for d in dependencies)


class Memos:
    """Part of the interpreter. Needs ``world`` and the state."""

    def start_memos(self) -> None:
        self.deps: dict = {}
        """Dependency -> fingerprint, of what is evaluated now."""
        self.memos: dict[tuple, Memo] = {}
        self.readers: dict[tuple, set] = defaultdict(set)
        """Dependency's place -> keys of results that read it."""
        self.doubtful: set = set()
        self.looking: set = set()
        """Results that are being looked at: where one is needed on the way, it is computed for that use alone."""
        self.versions = 0
        self.found_modules: dict = {}

    def depend(self, *dependency) -> Any:
        found = self.deps.get(dependency, MISSING)
        if found is MISSING:
            found = self.deps[dependency] = self.world.fingerprint(dependency)
        return found

    def memoised(self, key: tuple, compute: Callable) -> Any:
        """``compute()``, or its result from before where what it read is the same."""
        memo = self.memos.get(key)
        if key in self.looking and key in self.doubtful and len(self.looking) < _DEEP:
            return compute()
        if memo is None or not self.holds(key):
            memo = self._compute(key, compute)
        self.deps["memo", key] = memo.version
        return memo.value

    def _compute(self, key: tuple, compute: Callable) -> Memo:
        outer, self.deps = self.deps, {}
        try:
            return self.keep(key, compute(), compute)
        except BaseException:
            outer.update(self.deps)
            raise
        finally:
            self.deps = outer

    def keep(self, key: tuple, value: Any, compute: Callable) -> Memo:
        """Stores a result that read ``deps``."""
        old = self.memos.get(key)
        if old is not None and alike(old.value, value, {}):
            version = old.version
        else:
            self.versions += 1
            version = self.versions
        places = self.link(key, self.deps, old.places if old is not None else set())
        memo = self.memos[key] = Memo(value, self.deps, places, version, compute, self.world.epoch)
        self.doubtful.discard(key)
        return memo

    def holds(self, key: tuple) -> bool:
        """Whether a result is right for this revision, computing again what it builds on where needed."""
        if key not in self.doubtful or key in self.looking:
            return True
        self.looking.add(key)
        memo = self.memos[key]
        try:
            if not self.still_right(memo.reads, memo.epoch):
                return False
        finally:
            self.looking.discard(key)
        memo.epoch = self.world.epoch
        self.doubtful.discard(key)
        return True

    def current(self, dependency: tuple) -> Any:
        """Fingerprint of a dependency, or version of a result, at this revision."""
        if dependency[0] != "memo":
            return self.world.fingerprint(dependency)
        key = dependency[1]
        memo = self.memos.get(key)
        if memo is None:
            return None
        if self.holds(key):
            return memo.version
        compute = memo.compute
        try:
            return self.in_fresh_context(lambda: self._compute(key, compute)).version
        except Exception:
            # It does not come to a result any more: what builds on it is computed again and meets the reason.
            self.forget(key)
            return None

    def still_right(self, reads: Reads, since: int) -> bool:
        """Whether all dependencies, right when the world's epoch was ``since``, are so now."""
        world, touched = self.world, self.world.touched
        if reads.modules and world.modules_at > since or any(touched.get(path, 0) > since for path in reads.paths):
            for dependency, fingerprint in reads.dependencies.items():
                kind = dependency[0]
                if kind != "memo" and (world.modules_at if kind == "module" else touched.get(dependency[1], 0)) > since:
                    if world.fingerprint(dependency) != fingerprint:
                        return False
        memos, doubtful = self.memos, self.doubtful
        for key, version in reads.memos:
            memo = memos.get(key)
            if memo is None or memo.version != version:
                return False
            if key in doubtful and self.current(("memo", key)) != version:
                return False
        return True

    def in_fresh_context(self, run: Callable) -> Any:
        names = ("trail", "deps", "shared", "may_raise", "lowest_write", "depth", "one_off", "globals_changed", "steps",
                 "in_progress", "partial", "command_line", "recording")
        saved = {name: getattr(self, name) for name in names}
        self.trail, self.deps, self.in_progress, self.partial = [], {}, set(), {}
        self.shared = self.may_raise = self.one_off = self.globals_changed = False
        self.lowest_write, self.depth, self.steps, self.command_line = 1 << 60, 0, 0, None
        self.recording = None
        try:
            return run()
        finally:
            self.undo(0)
            for name, value in saved.items():
                setattr(self, name, value)

    # What reads what

    def link(self, key: tuple, dependencies: Iterable[tuple], before: set = frozenset()) -> set:
        """Registers what a result reads; ``before``: what this returned for it last time."""
        places = {d if d[0] in _OWN_PLACE else ("path", d[1]) for d in dependencies}
        for place in places - before:
            self.readers[place].add(key)
            if place[0] == "module" and place[1] not in self.found_modules:
                self.found_modules[place[1]] = self.world.find_module(place[1])
        self.unlink(key, before - places)
        return places

    def unlink(self, key: tuple, places: Iterable[tuple]) -> None:
        for place in places:
            readers = self.readers.get(place)
            if readers is not None:
                readers.discard(key)

    def forget(self, key: tuple) -> None:
        memo = self.memos.pop(key, None)
        if memo is not None:
            self.unlink(key, memo.places)
        self.doubtful.discard(key)

    def doubt(self, paths: Iterable[str], modules: bool) -> set:
        """Marks all that builds on changed files; returns the keys that are no memos (of recipes)."""
        todo = [key for path in paths for key in self.readers.get(("path", path), ())]
        if modules:
            for dotted, old in list(self.found_modules.items()):
                new = self.found_modules[dotted] = self.world.find_module(dotted)
                if new != old:
                    todo += self.readers.get(("module", dotted), ())
        seen: set = set()
        while todo:
            key = todo.pop()
            if key not in seen:
                seen.add(key)
                todo += self.readers.get(("memo", key), ())
        memos = seen & self.memos.keys()
        self.doubtful |= memos
        return seen - memos

    def sweep(self) -> None:
        """Drops results that nothing builds on any more."""
        todo = [key for key in self.memos if not self.readers.get(("memo", key))]
        while todo:
            key = todo.pop()
            memo = self.memos.get(key)
            if memo is None or self.readers.get(("memo", key)):
                continue
            self.forget(key)
            self.readers.pop(("memo", key), None)
            todo += [d[1] for d in memo.reads.dependencies if d[0] == "memo"]

    def read_through(self, dependencies: Iterable[tuple]) -> Iterable[tuple]:
        """All names, members and modules that were read, also by the results that were used."""
        seen: set = set()
        todo = list(dependencies)
        while todo:
            dependency = todo.pop()
            if dependency in seen:
                continue
            seen.add(dependency)
            if dependency[0] == "memo":
                memo = self.memos.get(dependency[1])
                todo += memo.reads.dependencies if memo is not None else ()
            else:
                yield dependency


def alike(a: Any, b: Any, pairs: dict) -> bool:
    """Whether two results are the same for all that builds on them, the places where values were written included."""
    if a is b:
        return True
    kind = type(a)
    if kind is not type(b):
        return False
    if is_primitive(a):
        return a == b
    if kind in (tuple, list):
        return len(a) == len(b) and all(alike(x, y, pairs) for x, y in zip(a, b))
    if kind is dict:
        return list(a) == list(b) and all(alike(x, b[k], pairs) for k, x in a.items())
    if kind in (set, frozenset):
        return a == b
    if kind is External:
        return a.name == b.name
    if kind is Module:
        return a.path == b.path
    if kind is EnumMember:
        return a.name == b.name and alike(a.cls, b.cls, pairs) and alike(a.value, b.value, pairs)
    if kind is Class:
        return a.node is None and b.node is None and (a.path, a.name) == (b.path, b.name)
    if kind is Func:
        return a.frame is b.frame is None and a.place == b.place and a.decorated == b.decorated and alike(
            a.defaults, b.defaults, pairs)
    if pairs.get(id(a)) == id(b):
        return True
    pairs[id(a)] = id(b)
    if issubclass(kind, Container):
        return alike(a.items, b.items, pairs)
    if issubclass(kind, Obj):
        if (a.why_open, a.fresh, a.truth) != (b.why_open, b.fresh, b.truth) or a.attrs.keys() != b.attrs.keys():
            return False
        if isinstance(a, Unknown) and (a.aliases or b.aliases):
            return False
        return alike(a.cls, b.cls, pairs) and all(_alike_slots(slot, b.attrs[name], pairs) for name, slot in a.attrs.items())
    if kind in (Partial, Bound, Method) or hasattr(kind, "__slots__"):
        return all(alike(getattr(a, s), getattr(b, s), pairs) for s in kind.__slots__)
    return False


def _alike_slots(a: tuple, b: tuple, pairs: dict) -> bool:
    return a is b or (a[1] == b[1] and a[2] == b[2] and alike(a[0], b[0], pairs))
