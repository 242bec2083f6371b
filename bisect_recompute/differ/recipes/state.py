"""The evaluated program's changing state: a trail of writes that can be undone, and joins of alternative outcomes."""

from __future__ import annotations

from typing import Any, Callable, Optional

from bisect_recompute.differ.recipes.values import (
    HEAP, ITEMS, MISSING, TAINT, ADict, AList, Class, Container, EnumMember, External, Func, Module, Obj, Partial,
    Unknown, same,
)

_ATOMS = frozenset((type(None), bool, int, float, str, External, Class, Module, EnumMember))
MAX_PATHS = 24


class Raised(Exception):
    """The evaluated program raises. ``kind`` is the exception's class: a built-in one or a name."""

    def __init__(self, kind: Any, text: str = ""):
        super().__init__(text)
        self.kind = kind
        self.text = text


class Imprecise(Exception):
    """The innermost call cannot be followed; its effects are unknown."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


class Exhausted(Exception):
    """The evaluation as a whole went past its limit of steps."""


class Frame:
    """Local names of a function call, a class body or a module's statement. A slot is (value, origin, is_default)."""

    __slots__ = ("locals", "path", "chunk", "outer", "func", "names", "limit", "decisions", "position", "owner", "skips")

    def __init__(self, path, chunk, outer=None, func=None, names=None, limit=None, owner=None):
        self.locals: dict[str, tuple] = {}
        self.path = path
        self.chunk = chunk
        self.outer = outer
        self.func = func
        self.names = names
        """Names local to the function; None at module level."""
        self.limit = limit
        """At module level: only what is bound by statements before this place exists."""
        self.decisions: list[list[int]] = []
        self.position = 0
        self.owner = owner
        """The class whose body or method this is."""
        self.skips: frozenset = frozenset()
        """Names declared global or nonlocal."""


class State:
    """Trail and joins; the parts of the interpreter that know nothing about Python's syntax."""

    def __init__(self):
        self.trail: list[tuple] = []
        self.serial = 1
        self.lowest_write = 1 << 60
        self.shared = False
        """Objects made now belong to a module and outlive the evaluation."""
        self.may_raise = False
        """Something was evaluated that may raise in reality."""
        self.globals_changed = False

    def next_serial(self) -> int:
        if self.shared:
            return 0
        self.serial += 1
        return self.serial

    def put(self, where: dict, key: Any, value: Any, heap: bool = False) -> None:
        self.trail.append((where, key, where.get(key, MISSING), heap))
        if value is MISSING:
            where.pop(key, None)
        else:
            where[key] = value

    def put_heap(self, thing: Any, where: dict, key: Any, value: Any) -> None:
        if thing.serial < self.lowest_write:
            self.lowest_write = thing.serial
            if thing.serial == 0 and not self.shared:
                self.globals_changed = True
        self.put(where, key, value, True)

    def undo_heap(self) -> None:
        """Undoes writes to objects and keeps those to local names, which closures may still need."""
        for where, key, old, heap in reversed(self.trail):
            if heap:
                if old is MISSING:
                    where.pop(key, None)
                else:
                    where[key] = old

    def set_items(self, thing: Container, items: Any) -> None:
        self.put_heap(thing, thing.state, ITEMS, items)

    def undo(self, mark: int) -> None:
        trail = self.trail
        while len(trail) > mark:
            where, key, old, _ = trail.pop()
            if old is MISSING:
                where.pop(key, None)
            else:
                where[key] = old

    def effects(self, mark: int) -> dict:
        found = {}
        for where, key, _, _ in self.trail[mark:]:
            found[id(where), key] = (where, key, where.get(key, MISSING))
        return found

    def new_list(self, items) -> AList:
        return AList(items, self.next_serial())

    def new_dict(self, items) -> ADict:
        return ADict(items, self.next_serial())

    # Alternatives

    def alternatives(self, frame: Frame, options: list[Callable], reason: str):
        """Takes every option from the same state and goes on with what they agree on."""
        outcomes = []
        for option in options:
            mark = len(self.trail)
            try:
                signal, raised = option(), None
            except Raised as error:
                signal, raised = None, error
            outcomes.append((signal, raised, self.effects(mark)))
            self.undo(mark)
        done = [o for o in outcomes if o[1] is None]
        if not done:
            raise outcomes[0][1]
        if len(done) < len(outcomes):
            self.may_raise = True
        if len({signal and signal[0] for signal, _, _ in done}) > 1:
            return options[self.choose(frame, len(options), reason)]()
        self.merge([o[2] for o in done], reason)
        signals = [o[0] for o in done]
        if signals[0] is None or signals[0][0] != "return":
            return signals[0]
        return ("return", self.join([s[1] for s in signals], reason))

    def choose(self, frame: Frame, count: int, reason: str) -> int:
        """Which way this pass through the function takes; ``run_paths`` takes the others in later passes."""
        while frame is not None and frame.names is None:
            frame = frame.outer
        if frame is None:
            raise Imprecise(reason)
        if frame.position == len(frame.decisions):
            frame.decisions.append([0, count])
        frame.position += 1
        return frame.decisions[frame.position - 1][0]

    def run_paths(self, frame: Frame, run: Callable):
        """Runs a function's body once per way through it and joins the outcomes."""
        outcomes: list[tuple] = []
        decisions: list[list[int]] = []
        while True:
            frame.decisions, frame.position = decisions, 0
            mark = len(self.trail)
            try:
                value, raised = run(), None
            except Raised as error:
                value, raised = None, error
            if not frame.decisions:
                if raised:
                    raise raised
                return value
            outcomes.append((value, raised, self.effects(mark)))
            self.undo(mark)
            while decisions and decisions[-1][0] == decisions[-1][1] - 1:
                decisions.pop()
            if not decisions:
                break
            decisions[-1][0] += 1
            if len(outcomes) >= MAX_PATHS:
                raise Imprecise("too many ways through the function")
        done = [o for o in outcomes if o[1] is None]
        if not done:
            raise outcomes[0][1]
        if len(done) < len(outcomes):
            self.may_raise = True
        reason = "depends on a condition that is not known"
        # One memory of joined pairs, so that a returned object and the same object in the heap stay one.
        pairs: dict = {}
        self.merge([o[2] for o in done], reason, pairs)
        return self.join([o[0] for o in done], reason, pairs)

    def merge(self, effects: list[dict], reason: str, pairs: Optional[dict] = None) -> None:
        pairs = {} if pairs is None else pairs
        places = {place: entry for each in effects for place, entry in each.items()}
        for place, (where, key, _) in places.items():
            now = where.get(key, MISSING)
            values = [each[place][2] if place in each else now for each in effects]
            self.put(where, key, self._join_place(key, values, reason, pairs))

    def _join_place(self, key, values: list, reason: str, pairs: dict):
        first = values[0]
        if all(v is first for v in values):
            return first
        present = [v for v in values if v is not MISSING]
        if key != ITEMS:
            if len(present) < len(values) and all(v[2] for v in present):
                return present[0]
            if len(present) < len(values):
                if key == TAINT:
                    return present[0]
                return (Unknown(reason), present[0][1], False)
            joined = self.join([v[0] for v in present], reason, pairs)
            return (joined, present[-1][1], all(v[2] for v in present))
        return self._join_items(values, reason, pairs)

    def _join_items(self, values: list, reason: str, pairs: dict):
        for v in values:
            if isinstance(v, Unknown):
                return v
        first = values[0]
        if isinstance(first, dict):
            if all(isinstance(v, dict) and list(v) == list(first) for v in values):
                return {k: self.join([v[k] for v in values], reason, pairs) for k in first}
        elif isinstance(first, list):
            if all(isinstance(v, list) and len(v) == len(first) for v in values):
                return [self.join(list(column), reason, pairs) for column in zip(*values)]
        elif all(type(v) is type(first) and v == first for v in values):
            return first
        return Unknown(reason)

    def join(self, values: list, reason: str, pairs: Optional[dict] = None):
        pairs = {} if pairs is None else pairs
        joined = values[0]
        for value in values[1:]:
            joined = self._join_two(joined, value, reason, pairs)
        return joined

    def _join_two(self, a, b, reason: str, pairs: dict):
        if same(a, b):
            return a
        if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
            return tuple(self._join_two(x, y, reason, pairs) for x, y in zip(a, b))
        if isinstance(a, Unknown) and not (a.fresh and isinstance(b, Unknown) and b.fresh):
            return a
        if isinstance(b, Unknown) and not (b.fresh and isinstance(a, Unknown)):
            return b
        if not isinstance(a, HEAP) or type(a) is not type(b):
            return Unknown(reason)
        if (id(a), id(b)) in pairs:
            return pairs[id(a), id(b)][0]
        if isinstance(a, Container):
            joined = type(a)(None, self.next_serial())
            pairs[id(a), id(b)] = joined, a, b
            joined.state[ITEMS] = self._join_items([a.items, b.items], reason, pairs)
            return joined
        if not (same(a.cls, b.cls) or a.cls is b.cls is None):
            return Unknown(reason)
        joined = Unknown(a.why_open, True) if isinstance(a, Unknown) else Obj(a.cls, 0, a.why_open, True)
        joined.serial = self.next_serial()
        joined.fresh = a.fresh and b.fresh
        joined.truth = a.truth if a.truth == b.truth else None
        pairs[id(a), id(b)] = joined, a, b
        for key in list(dict.fromkeys([*a.attrs, *b.attrs])):
            slots = [a.attrs.get(key, MISSING), b.attrs.get(key, MISSING)]
            joined.attrs[key] = self._join_place(key, slots, reason, pairs)
        return joined

    # Objects as a whole

    def havoc(self, value: Any, reason: str, seen: Optional[set] = None) -> None:
        """Something unknown had its hands on the value: whatever is reachable from it may have changed."""
        seen = set() if seen is None else seen
        if isinstance(value, tuple):
            for each in value:
                self.havoc(each, reason, seen)
        if isinstance(value, Partial):
            self.havoc(tuple(v for v, _ in (*value.args, *value.kwargs.values())), reason, seen)
        if not isinstance(value, HEAP) or id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, Container):
            items = value.items
            if not isinstance(items, Unknown):
                for each in items.values() if isinstance(items, dict) else items:
                    self.havoc(each, reason, seen)
            self.set_items(value, Unknown(reason))
            return
        for key, slot in list(value.attrs.items()):
            if key != TAINT:
                self.havoc(slot[0], reason, seen)
                self.put_heap(value, value.attrs, key, MISSING)
        self.put_heap(value, value.attrs, TAINT, (reason, None, True))

    def clone(self, value: Any, memo: Optional[dict] = None, deep: bool = True) -> Any:
        """copy.deepcopy. Raises Imprecise for closures."""
        memo = {} if memo is None else memo
        if value.__class__ in _ATOMS:
            return value
        if isinstance(value, tuple):
            return tuple(self.clone(v, memo) for v in value)
        if isinstance(value, Func) and value.frame is not None:
            raise Imprecise("a closure is copied")
        if isinstance(value, Partial):
            return Partial(
                self.clone(value.func, memo),
                [(self.clone(v, memo), o) for v, o in value.args],
                {k: (self.clone(v, memo), o) for k, (v, o) in value.kwargs.items()},
            )
        if not isinstance(value, HEAP):
            return value
        if id(value) in memo:
            return memo[id(value)][0]
        if isinstance(value, Container):
            copy = type(value)(value.items, self.next_serial())
            memo[id(value)] = copy, value
            items = value.items
            if isinstance(items, dict):
                copy.state[ITEMS] = {k: self.clone(v, memo) for k, v in items.items()}
            elif not isinstance(items, Unknown):
                copy.state[ITEMS] = type(items)(self.clone(v, memo) for v in items)
            return copy
        copy = Unknown(value.why_open, value.fresh) if isinstance(value, Unknown) else Obj(
            value.cls, 0, value.why_open, value.fresh, value.truth
        )
        copy.serial = self.next_serial()
        memo[id(value)] = copy, value
        attrs = copy.attrs
        attrs.update(value.attrs)
        for key, slot in value.attrs.items():
            inner = slot[0]
            if inner.__class__ not in _ATOMS:
                attrs[key] = (self.clone(inner, memo), slot[1], slot[2])
        return copy
