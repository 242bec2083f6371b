"""The evaluated program's changing state: a trail of writes that can be undone, and joins of alternative outcomes."""

from __future__ import annotations

from typing import Any, Callable, Optional

from bisect_recompute.differ.recipes.values import (
    HEAP, ITEMS, MISSING, TAINT, ADict, AList, Class, Container, EnumMember, External, Func, Module, Obj, Partial,
    Unknown, same,
)

_ATOMS = frozenset((type(None), bool, int, float, str, External, Class, Module, EnumMember))
MAX_PATHS = 24
View = dict
"""id of a dict that was written to -> (that dict, {key: its value in one alternative}, serial of its object)."""


class Raised(Exception):
    """The evaluated program raises. ``kind`` is the exception's class: a built-in one or a name."""

    def __init__(self, kind: Any, text: str = ""):
        super().__init__(text)
        self.kind = kind
        self.text = text

    def bare(self) -> Raised:
        """Without what it was raised through, which would keep all of that alive in a circle."""
        self.__context__ = None
        return self.with_traceback(None)


class Imprecise(Exception):
    """The innermost call cannot be followed; its effects are unknown."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


class Ambiguous(Exception):
    """Alternatives disagree about which object something is; each has to be followed on its own."""


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

    def put(self, where: dict, key: Any, value: Any, serial: int = -1) -> None:
        """Writes and remembers what was there. ``serial``: of the object written to; -1 for local names."""
        # dict.get: a write is no read for ``replay``.
        self.trail.append((where, key, dict.get(where, key, MISSING), serial))
        if value is MISSING:
            where.pop(key, None)
        else:
            where[key] = value

    def put_heap(self, thing: Any, where: dict, key: Any, value: Any) -> None:
        if thing.serial < self.lowest_write:
            self.lowest_write = thing.serial
            if thing.serial == 0 and not self.shared:
                self.globals_changed = True
        self.put(where, key, value, thing.serial)

    def undo_heap(self) -> None:
        """Undoes writes to objects and keeps those to local names, which closures may still need."""
        for where, key, old, serial in reversed(self.trail):
            if serial >= 0:
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

    def effects(self, mark: int) -> View:
        """What was written since the mark, as it is now."""
        view: View = {}
        for where, key, _, serial in self.trail[mark:]:
            view.setdefault(id(where), (where, {}, serial))[1][key] = dict.get(where, key, MISSING)
        return view

    def new_list(self, items) -> AList:
        return AList(items, self.next_serial())

    def new_dict(self, items) -> ADict:
        return ADict(items, self.next_serial())

    # Alternatives

    def alternatives(self, frame: Frame, options: list[Callable], reason: str):
        """Takes every option from the same state and goes on with what they agree on."""
        outcomes = []
        since = self.serial
        for option in options:
            mark = len(self.trail)
            try:
                signal, raised = option(), None
            except Raised as error:
                signal, raised = None, error.bare()
            outcomes.append((signal, raised, self.effects(mark)))
            self.undo(mark)
        done = [o for o in outcomes if o[1] is None]
        if not done:
            error = outcomes[0][1]
            outcomes = []
            try:
                raise error
            finally:
                error = None
        if len(done) < len(outcomes):
            self.may_raise = True
        signals, views = [o[0] for o in done], [o[2] for o in done]
        if len({signal and signal[0] for signal in signals}) == 1:
            mark = len(self.trail)
            try:
                value = self.agree([s and s[1] if s and s[0] == "return" else None for s in signals], views, reason, since)
                return ("return", value) if signals[0] is not None and signals[0][0] == "return" else signals[0]
            except Ambiguous:
                self.undo(mark)
        return options[self.choose(frame, len(options), reason)]()

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
        since = self.serial
        while True:
            frame.decisions, frame.position = decisions, 0
            mark = len(self.trail)
            try:
                value, raised = run(), None
            except Raised as error:
                value, raised = None, error.bare()
            if not frame.decisions:
                if raised is not None:
                    try:
                        raise raised
                    finally:
                        # This frame is in the traceback: holding the exception here would close a circle.
                        raised = None
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
            error = outcomes[0][1]
            outcomes = []
            try:
                raise error
            finally:
                error = None
        if len(done) < len(outcomes):
            self.may_raise = True
        try:
            return self.agree([o[0] for o in done], [o[2] for o in done], "depends on a condition that is not known", since)
        except Ambiguous:
            raise Imprecise("which object it works on depends on a condition that is not known") from None

    def apply(self, view: View) -> None:
        for where, entries, serial in view.values():
            for key, value in entries.items():
                self.put(where, key, value, serial)

    def agree(self, values: list, views: list[View], reason: str, since: int):
        """Writes what the views agree on and returns what the values agree on. Raises Ambiguous."""
        join = Join(self, views, reason, since)
        joined = join.values(values)
        for where, key, value, serial in join.places():
            self.put(where, key, value, serial)
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
        if isinstance(value, Unknown):
            for alias in value.aliases:
                self.havoc(alias, reason, seen)
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
        kind = value.__class__
        if kind in _ATOMS:
            return value
        if kind is Obj or kind is Unknown:
            return self._clone_object(value, memo)
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
        if not isinstance(value, Container):
            return value
        if id(value) in memo:
            return memo[id(value)][0]
        copy = kind(value.items, self.next_serial())
        memo[id(value)] = copy, value
        items = value.items
        if isinstance(items, dict):
            copy.state[ITEMS] = {k: v if v.__class__ in _ATOMS else self.clone(v, memo) for k, v in items.items()}
        elif not isinstance(items, Unknown):
            copy.state[ITEMS] = type(items)(v if v.__class__ in _ATOMS else self.clone(v, memo) for v in items)
        return copy

    def _clone_object(self, value: Obj, memo: dict) -> Obj:
        known = memo.get(id(value))
        if known is not None:
            return known[0]
        serial = self.next_serial()
        if value.__class__ is Unknown:
            copy = Unknown(value.why_open, value.fresh, serial)
        else:
            copy = Obj(value.cls, serial, value.why_open, value.fresh, value.truth)
        memo[id(value)] = copy, value
        attrs = copy.attrs
        attrs.update(value.attrs)
        for key, slot in value.attrs.items():
            inner = slot[0]
            if inner.__class__ not in _ATOMS:
                attrs[key] = (self.clone(inner, memo), slot[1], slot[2])
        return copy


class Join:
    """What alternatives agree on. Each alternative's values are read through its own view of the objects."""

    def __init__(self, state: State, views: list[View], reason: str, since: int):
        self.state = state
        self.views = views
        self.reason = reason
        self.since = since
        self.pairs: dict[tuple[int, ...], tuple] = {}
        """ids of the objects that are joined -> (the joined one, they themselves)."""
        self.partner: dict[tuple[int, int], tuple[int, ...]] = {}

    def places(self) -> list[tuple]:
        """(dict, key, value, serial) to write."""
        written = []
        for index, view in enumerate(self.views):
            for identity, (where, entries, serial) in view.items():
                if serial > self.since:
                    # Made in this alternative: nobody else knows it.
                    written.extend((where, key, value, serial) for key, value in entries.items())
                    continue
                for key in entries:
                    if not any(identity in v and key in v[identity][1] for v in self.views[:index]):
                        values = [v[identity][1].get(key, MISSING) if identity in v and key in v[identity][1]
                                  else where.get(key, MISSING) for v in self.views]
                        written.append((where, key, self.place(key, values), serial))
        return written

    def place(self, key, values: list):
        first = values[0]
        if all(v is first for v in values):
            return first
        if key == ITEMS:
            return self.items(values)
        present = [(i, v) for i, v in enumerate(values) if v is not MISSING]
        if len(present) < len(values):
            if all(v[2] for _, v in present) or key == TAINT:
                return present[0][1]
            olds = tuple(v[0] for _, v in present if self._old(v[0]))
            return (Unknown(self.reason, aliases=olds), present[0][1][1], False)
        if key == TAINT:
            return present[0][1]
        joined = self.values([v[0] for _, v in present])
        return (joined, present[-1][1][1], all(v[2] for _, v in present))

    def values(self, values: list):
        first = values[0]
        if all(same(first, v) for v in values[1:]):
            return first
        if all(isinstance(v, tuple) and len(v) == len(first) for v in values if isinstance(first, tuple)) and isinstance(first, tuple):
            return tuple(self.values(list(column)) for column in zip(*values))
        if any(self._old(v) for v in values):
            raise Ambiguous
        unknown = next((v for v in values if isinstance(v, Unknown) and not v.fresh), None)
        kinds = {type(v) for v in values}
        if unknown is not None or len(kinds) > 1 or not isinstance(first, HEAP):
            aliases = tuple(a for v in values if isinstance(v, Unknown) for a in v.aliases)
            return Unknown(unknown.reason if unknown is not None else self.reason, aliases=aliases)
        return self._objects(values)

    def _old(self, value: Any) -> bool:
        """Whether others know the object: what is written to it later shows there too."""
        if isinstance(value, Unknown):
            return False
        return isinstance(value, HEAP) and value.serial <= self.since

    def _objects(self, values: list):
        key = tuple(map(id, values))
        if key in self.pairs:
            return self.pairs[key][0]
        for index, value in enumerate(values):
            if self.partner.setdefault((index, id(value)), key) != key:
                raise Ambiguous
        first = values[0]
        if isinstance(first, Container):
            joined = type(first)(None, self.state.next_serial())
            self.pairs[key] = joined, values
            joined.state[ITEMS] = self.items([self._read(i, v.state).get(ITEMS) for i, v in enumerate(values)])
            return joined
        if any(not (same(v.cls, first.cls) or v.cls is first.cls is None) for v in values[1:]):
            return Unknown(self.reason)
        joined = Unknown(first.why_open, True) if isinstance(first, Unknown) else Obj(first.cls, 0, first.why_open)
        joined.serial = self.state.next_serial()
        joined.fresh = all(v.fresh for v in values)
        joined.truth = first.truth if all(v.truth == first.truth for v in values) else None
        self.pairs[key] = joined, values
        attrs = [self._read(i, v.attrs) for i, v in enumerate(values)]
        for name in dict.fromkeys(n for each in attrs for n in each):
            joined.attrs[name] = self.place(name, [each.get(name, MISSING) for each in attrs])
        return joined

    def _read(self, index: int, where: dict) -> dict:
        entry = self.views[index].get(id(where))
        if entry is None:
            return where
        return {k: v for k, v in {**where, **entry[1]}.items() if v is not MISSING}

    def items(self, values: list):
        unknown = next((v for v in values if isinstance(v, Unknown)), None)
        first = values[0]
        if unknown is None and isinstance(first, dict) and all(isinstance(v, dict) and list(v) == list(first) for v in values):
            return {k: self.values([v[k] for v in values]) for k in first}
        if unknown is None and isinstance(first, list) and all(isinstance(v, list) and len(v) == len(first) for v in values):
            return [self.values(list(column)) for column in zip(*values)]
        if unknown is None and all(type(v) is type(first) and v == first for v in values):
            return first
        olds = []
        for each in values:
            if isinstance(each, (dict, list)):
                olds += [x for x in (each.values() if isinstance(each, dict) else each) if self._old(x)]
        return Unknown(unknown.reason if unknown is not None else self.reason, aliases=tuple(olds))
