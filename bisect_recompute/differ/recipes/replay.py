"""Calls that change objects, done again without evaluating them where all they read is the same.

A launcher's stage reads little of a configuration and writes the same few fields of hundreds of them. While such a call
is evaluated for the first time, what it reads of its arguments is noted in order, with its effects. A later call is
followed through these notes: as long as it reads the same values, the effects are the same.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

from bisect_recompute.differ.recipes.memo import Reads
from bisect_recompute.differ.recipes.state import Imprecise
from bisect_recompute.differ.recipes.values import (
    HEAP, ITEMS, MISSING, Class, Container, EnumMember, External, Func, Module, Obj, Unknown, is_primitive,
)

_MOST = 600
"""Recordings that are kept of one function."""
_TRIAL = 100
"""Recordings of a function before their use is looked at."""
_TEMPLATE = -1
"""Serial of recorded objects, of which every use makes a copy; those of modules stay themselves."""
_TRIES = 4
"""Recordings of a function that may fail before it is left alone."""


class _Undescribable(Exception):
    pass


class Place:
    """In recorded effects: the object that a path from the arguments leads to."""

    __slots__ = ("path",)

    def __init__(self, path: tuple):
        self.path = path


class Footprint:
    """The objects of one call's arguments by the paths on which they were met, and what is seen of them."""

    def __init__(self) -> None:
        self.objects: dict[tuple, Any] = {}
        self.paths: dict[int, tuple] = {}

    def arguments(self, args: list, kwargs: dict) -> tuple:
        found = []
        for name, (value, origin) in [*enumerate(args), *kwargs.items()]:
            found.append((name, self.value((name,), value), None if isinstance(value, Obj) else origin))
        return tuple(found)

    def see(self, note: tuple) -> Any:
        """What a note's place looks like now; hashable."""
        path, kind, key = note
        thing = self.objects[path]
        content = thing.state if isinstance(thing, Container) else thing.attrs
        if kind == "names":
            return tuple(dict.keys(content))
        slot = dict.get(content, key, MISSING)
        if slot is MISSING:
            return None
        if kind == "origin":
            return slot[1]
        if key == ITEMS:
            return self.items(path, slot)
        return (slot[2], self.value((*path, key), slot[0]))

    def items(self, path: tuple, items: Any) -> tuple:
        if isinstance(items, Unknown):
            return ("unknown", items.reason, self._no_aliases(items))
        if isinstance(items, dict):
            return ("dict", *((self.value((*path, ITEMS, i, 0), k), self.value((*path, ITEMS, i, 1), v))
                              for i, (k, v) in enumerate(items.items())))
        if isinstance(items, list):
            return ("list", *(self.value((*path, ITEMS, i), v) for i, v in enumerate(items)))
        return ("set", *sorted(map(repr, items)))

    def value(self, path: tuple, value: Any) -> tuple:
        if is_primitive(value):
            return (type(value).__name__, value)
        if isinstance(value, HEAP):
            known = self.paths.get(id(value))
            if known is not None:
                return ("same", known)
            self.paths[id(value)] = path
            self.objects[path] = value
            if isinstance(value, Container):
                return ("container", value.kind.__name__)
            if isinstance(value, Unknown):
                self._no_aliases(value)
            return (type(value).__name__, self.value(path, value.cls) if value.cls is not None else None, value.why_open,
                    value.fresh, value.truth)
        if isinstance(value, tuple):
            return ("tuple", *(self.value((*path, i), v) for i, v in enumerate(value)))
        if isinstance(value, External):
            return ("external", value.name)
        if isinstance(value, EnumMember):
            return ("member", value.cls.path, value.cls.name, value.name)
        if isinstance(value, Class) and value.node is None:
            return ("class", value.path, value.name)
        if isinstance(value, Func) and value.frame is None:
            if value.key is None:
                raise _Undescribable
            return ("function", value.key)
        if isinstance(value, Module):
            return ("module", value.path)
        raise _Undescribable

    @staticmethod
    def _no_aliases(value: Unknown) -> None:
        if value.aliases:
            raise _Undescribable


class Watched(dict):
    """The attributes or content of an object while reads of it are noted; writes go through ``State.put``."""

    __slots__ = ("initial", "recording", "thing")

    def __init__(self, initial: dict, recording: Recording, thing: Any):
        super().__init__(initial)
        self.initial = initial
        self.recording = recording
        self.thing = thing

    def _note(self, key: Any, kind: str = "slot") -> None:
        # What the call itself wrote is no input of it.
        if dict.get(self, key, MISSING) is self.initial.get(key, MISSING):
            self.recording.note(self.thing, kind, key)

    def note_origin(self, key: Any) -> None:
        self._note(key, "origin")

    def _note_all(self) -> None:
        self.recording.note(self.thing, "names", None)
        for key in self.initial:
            self._note(key)
            if key != ITEMS:
                self._note(key, "origin")

    def get(self, key, default=None):
        self._note(key)
        return dict.get(self, key, default)

    def __getitem__(self, key):
        self._note(key)
        return dict.__getitem__(self, key)

    def __contains__(self, key):
        self._note(key)
        return dict.__contains__(self, key)

    def __iter__(self):
        self._note_all()
        return dict.__iter__(self)

    def keys(self):
        self._note_all()
        return dict.keys(self)

    def values(self):
        self._note_all()
        return dict.values(self)

    def items(self):
        self._note_all()
        return dict.items(self)


class Recording:
    """Notes of one call: (path, kind, key) with what was seen there, in order."""

    def __init__(self, footprint: Footprint):
        self.footprint = footprint
        self.notes: list[tuple[tuple, Any]] = []
        self.noted: set = set()
        self.failed = False
        self.watched: list[tuple[Any, dict, Watched]] = []

    def note(self, thing: Any, kind: str, key: Any) -> None:
        path = self.footprint.paths.get(id(thing))
        note = (path, kind, key)
        if note in self.noted or self.failed:
            return
        self.noted.add(note)
        try:
            if path is None:
                raise _Undescribable
            self.notes.append((note, self._initially(thing, note)))
        except (_Undescribable, TypeError):
            self.failed = True

    def _initially(self, thing: Any, note: tuple) -> Any:
        initial = (thing.state if isinstance(thing, Container) else thing.attrs).initial
        if note[1] == "names":
            return tuple(initial)
        seen = self.footprint.see(note)
        # Whatever the call can reach but by a module's name, it reaches through what it reads.
        value = initial.get(note[2])
        self.watch(value if note[2] == ITEMS or value is None else value[0])
        return seen

    def watch(self, value: Any) -> None:
        """Watches an object, or those in a tuple or in a container's content."""
        if isinstance(value, HEAP):
            content = value.state if isinstance(value, Container) else value.attrs
            if content.__class__ is not Watched:
                watched = Watched(content, self, value)
                self.watched.append((value, content, watched))
                _set_content(value, watched)
        elif isinstance(value, (tuple, list)):
            for each in value:
                self.watch(each)
        elif isinstance(value, dict):
            self.watch([*value, *value.values()])

    def unwatch(self) -> dict[int, tuple[Any, dict]]:
        """Puts the plain dicts back. id of the watched one -> (object, plain dict)."""
        for thing, content, _ in self.watched:
            _set_content(thing, content)
        return {id(watched): (thing, content) for thing, content, watched in self.watched}


class Replay:
    """The effects of one call on the objects of its arguments."""

    __slots__ = ("writes", "result", "reads", "may_raise", "steps", "epoch")

    def __init__(self, writes, result, dependencies, may_raise, steps, epoch):
        self.writes = writes
        """[(path, key, slot or content)], new objects in them are copied at every use."""
        self.result = result
        self.reads = Reads(dependencies)
        self.may_raise = may_raise
        self.steps = steps
        self.epoch = epoch


class Replays:
    """Part of the interpreter."""

    def start_replays(self) -> None:
        self.recording: Optional[Recording] = None
        self.replays: dict[tuple, dict] = {}
        """Function -> arguments as seen -> [note, {what is seen there: ...}, epoch] down to a Replay."""
        self.hopeless: dict[tuple, int] = {}
        self.uses: dict[tuple, list[int]] = {}
        """Function -> [recordings made, times that one was used]: where most are used less than once they cost time."""

    def sweep_replays(self) -> None:
        """Drops recordings of functions that are other ones now."""
        for place in list(self.replays):
            file = self.world.file(place[0])
            if file is None or all(b.chunk != place[2] for _, b in file.bindings.get(place[1], ())):
                del self.replays[place]
                self.uses.pop(place, None)

    def is_replayable(self, func: Func, args: list, kwargs: dict) -> bool:
        if self.recording is not None or self.shared or self.globals_changed or func.key is None:
            return False
        if func.frame is not None or func.owner is not None:
            return False
        if self.hopeless.get(func.key, 0) >= _TRIES:
            return False
        return any(isinstance(v, Obj) for v, _ in args) or any(isinstance(v, Obj) for v, _ in kwargs.values())

    def replayed(self, func: Func, args: list, kwargs: dict, evaluate: Callable) -> Any:
        """What ``evaluate()`` returns, with its effects."""
        place = func.key
        footprint = Footprint()
        try:
            node = self.replays.get(place, {}).get(footprint.arguments(args, kwargs))
            while isinstance(node, list):
                node = node[1].get(footprint.see(node[0]))
        except (_Undescribable, TypeError):
            node = None
        uses = self.uses.setdefault(place, [0, 0])
        if node is not None and self._is_right(node):
            uses[1] += 1
            return self._apply(node, footprint)
        if uses[0] > max(_TRIAL, uses[1]):
            return evaluate()
        uses[0] += 1
        return self._record(place, args, kwargs, evaluate)

    def _is_right(self, replay: Replay) -> bool:
        if replay.epoch != self.world.epoch:
            if not self.still_right(replay.reads, replay.epoch):
                return False
            replay.epoch = self.world.epoch
        return True

    def _apply(self, replay: Replay, footprint: Footprint) -> Any:
        self.deps.update(replay.reads.dependencies)
        self.may_raise |= replay.may_raise
        self.steps += replay.steps
        made: dict = {}
        for path, key, value in replay.writes:
            thing = footprint.objects[path]
            content = thing.state if isinstance(thing, Container) else thing.attrs
            self.put_heap(thing, content, key, self._placed_slot(value, footprint, made))
        return self._placed(replay.result, footprint, made)

    def _placed(self, value: Any, footprint: Footprint, made: dict) -> Any:
        """A copy of recorded values, with this call's objects in their places."""
        if is_primitive(value):
            return value
        if value.__class__ is Place:
            return footprint.objects[value.path]
        if isinstance(value, tuple):
            return tuple(self._placed(v, footprint, made) for v in value)
        if isinstance(value, list):
            return [self._placed(v, footprint, made) for v in value]
        if isinstance(value, dict):
            return {k: self._placed(v, footprint, made) for k, v in value.items()}
        if not isinstance(value, HEAP) or value.serial != _TEMPLATE:
            return value
        if id(value) in made:
            return made[id(value)]
        if isinstance(value, Container):
            copy: Any = type(value)(None, self.next_serial())
            made[id(value)] = copy
            copy.state[ITEMS] = self._placed(value.state[ITEMS], footprint, made)
            return copy
        if isinstance(value, Unknown):
            copy = Unknown(value.why_open, value.fresh, self.next_serial())
        else:
            copy = Obj(value.cls, self.next_serial(), value.why_open, value.fresh, value.truth)
        made[id(value)] = copy
        for name, slot in value.attrs.items():
            copy.attrs[name] = self._placed_slot(slot, footprint, made)
        return copy

    def _placed_slot(self, slot: Any, footprint: Footprint, made: dict) -> Any:
        if slot.__class__ is not tuple:
            return self._placed(slot, footprint, made)
        value = slot[0]
        return slot if is_primitive(value) else (self._placed(value, footprint, made), slot[1], slot[2])

    def _record(self, place: tuple, args: list, kwargs: dict, evaluate: Callable) -> Any:
        footprint = Footprint()
        try:
            seen = footprint.arguments(args, kwargs)
        except _Undescribable:
            return evaluate()
        recording = self.recording = Recording(footprint)
        for value, _ in (*args, *kwargs.values()):
            recording.watch(value)
        outer = (self.deps, self.may_raise, self.one_off, self.steps)
        self.deps, self.may_raise, self.one_off = {}, False, False
        mark = len(self.trail)
        result, ended = None, False
        try:
            result = evaluate()
            ended = True
        finally:
            self.recording = None
            view = self.effects(mark)
            self.undo(mark)
            plain = recording.unwatch()
            writes = self._write_again(view, plain)
            dependencies, may_raise, one_off = self.deps, self.may_raise, self.one_off
            outer[0].update(dependencies)
            self.deps, self.may_raise, self.one_off = outer[0], outer[1] or may_raise, outer[2] or one_off
            if ended and not one_off and not self.globals_changed:
                steps = self.steps - outer[3]
                self._keep(place, seen, recording, writes, result, dependencies, may_raise, steps)
        return result

    def _write_again(self, view: dict, plain: dict) -> list[tuple]:
        """Does the recorded writes on the plain dicts. [(object, key, value)] of the arguments' objects."""
        writes = []
        for identity, (where, entries, serial) in view.items():
            thing, content = plain.get(identity, (None, where))
            for key, value in entries.items():
                self.put(content, key, value, serial if thing is None else thing.serial)
                if thing is not None:
                    writes.append((thing, key, value))
        return writes

    def _keep(self, place, seen, recording, writes, result, dependencies, may_raise, steps) -> None:
        paths = recording.footprint.paths
        try:
            if recording.failed:
                raise _Undescribable
            memo: dict = {id(thing): (Place(path), thing) for path, thing in recording.footprint.objects.items()}
            kept = []
            for thing, key, value in writes:
                if id(thing) not in paths:
                    raise _Undescribable
                kept.append((paths[id(thing)], key, self._template(value, memo)))
            replay = Replay(kept, self._template(result, memo), dependencies, may_raise, steps, self.world.epoch)
        except (_Undescribable, Imprecise):
            self.hopeless[place] = self.hopeless.get(place, 0) + 1
            return
        table = self.replays.setdefault(place, {})
        if len(table) >= _MOST:
            table.clear()
        if not recording.notes:
            table[seen] = replay
            return
        node = table.get(seen)
        if not isinstance(node, list):
            node = table[seen] = [recording.notes[0][0], {}, self.world.epoch]
        for (note, what), following in zip(recording.notes, [n for n, _ in recording.notes[1:]] + [None]):
            if node[0] != note:
                if node[2] == self.world.epoch:
                    # The same reads led elsewhere: what decides is not in the notes.
                    self.hopeless[place] = _TRIES
                    return
                # What it calls has changed since.
                node[:] = [note, {}, self.world.epoch]
            if following is None:
                node[1][what] = replay
            else:
                inner = node[1].get(what)
                if not isinstance(inner, list):
                    inner = node[1][what] = [following, {}, self.world.epoch]
                node = inner

    def _template(self, value: Any, memo: dict) -> Any:
        """A copy of a value as it is now, the arguments' objects replaced by their places."""
        if value is MISSING or is_primitive(value):
            return value
        if isinstance(value, HEAP):
            if id(value) in memo:
                return memo[id(value)][0]
            if value.serial == 0:
                return value
            if isinstance(value, Container):
                copy: Any = type(value)(None, _TEMPLATE)
                memo[id(value)] = copy, value
                copy.state[ITEMS] = self._template(value.state[ITEMS], memo)
                return copy
            if isinstance(value, Unknown):
                if value.aliases:
                    raise _Undescribable
                copy = Unknown(value.why_open, value.fresh, _TEMPLATE)
            else:
                copy = Obj(value.cls, _TEMPLATE, value.why_open, value.fresh, value.truth)
            memo[id(value)] = copy, value
            for name, slot in value.attrs.items():
                copy.attrs[name] = (self._template(slot[0], memo), slot[1], slot[2])
            return copy
        if isinstance(value, tuple):
            return tuple(self._template(v, memo) for v in value)
        if isinstance(value, list):
            return [self._template(v, memo) for v in value]
        if isinstance(value, dict):
            return {k: self._template(v, memo) for k, v in value.items()}
        if isinstance(value, (External, EnumMember, Module)):
            return value
        if isinstance(value, Class) and value.node is None or isinstance(value, Func) and value.frame is None:
            return value
        raise _Undescribable


def _set_content(thing: Any, content: dict) -> None:
    if isinstance(thing, Container):
        thing.state = content
    else:
        thing.attrs = content
