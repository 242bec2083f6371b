"""What each commit of a range changes in the settings of recipes."""

from __future__ import annotations

import gc
from fnmatch import fnmatchcase
from typing import Iterable, Optional, Sequence

from bisect_recompute.differ.source.change import SettingChange
from bisect_recompute.differ.recipes import fields as names
from bisect_recompute.differ.recipes.changes import RecipeChanges
from bisect_recompute.differ.recipes.fields import UNSET, FieldState
from bisect_recompute.differ.recipes.moves import body_of, pair
from bisect_recompute.differ.recipes.recipes import RecipeState
from bisect_recompute.differ.recipes.revision import Revision
from bisect_recompute.differ.recipes.scripts import script_changes
from bisect_recompute.differ.recipes.source import SourceFile
from bisect_recompute.differ.recipes.world import World
from bisect_recompute.errors import UsageError
from bisect_recompute.history.commit import Commit
from bisect_recompute.history.repository import Repository


_COLLECT = 2000
"""Commits between two searches for garbage: there is hardly any."""
_LOOK_BACK = (10, 40, 120)
"""Commits; the longest stretch on which the launcher did not start took 90."""


def walk(repository: Repository, commits: Sequence[Commit]) -> Iterable[RecipeChanges]:
    """The changes of consecutive commits, oldest first; each commit is compared with its first parent."""
    if not commits:
        return
    changed = repository.changes_in(commits)
    was_on = gc.isenabled()
    # Syntax trees are many small objects that live long: looking through them for garbage takes most of the time.
    gc.disable()
    at = commits[0].parents[0] if commits[0].parents else None
    revision = _at(repository, at)
    try:
        for number, commit in enumerate(commits, 1):
            if number % _COLLECT == 0:
                gc.collect()
            parent = commit.parents[0] if commit.parents else None
            if parent != at:
                # Not the next commit of one line: go to its first parent first.
                _jump(repository, revision, parent)
            found = step(revision, [(c.path, c.new_blob) for c in changed[commit.sha]])
            yield found.plus(script_changes(repository.read_blob, changed[commit.sha]))
            at = commit.sha
    finally:
        revision.close()
        if was_on:
            gc.enable()


def _at(repository: Repository, sha: Optional[str]) -> Revision:
    """The revision; where its launcher is broken, with the states of a little earlier, when it was not."""
    revision = Revision(repository.read_blob, repository.tree(sha) if sha else {})
    if sha is not None and revision.launcher_is_broken():
        for back in _LOOK_BACK:
            try:
                before = repository.commit(f"{sha}~{back}").sha
            except UsageError:
                break
            earlier = Revision(repository.read_blob, repository.tree(before))
            if not earlier.launcher_is_broken():
                revision.close()
                _jump(repository, earlier, sha)
                return earlier
            earlier.close()
    return revision


def _jump(repository: Repository, revision: Revision, sha: Optional[str]) -> None:
    revision.move(revision.world.differences(repository.tree(sha) if sha else {}))


def step(revision: Revision, changed: Sequence[tuple[str, Optional[str]]]) -> RecipeChanges:
    """Goes to the next commit and says what it changes."""
    world = revision.world
    before = {**revision.recipes, **revision.last_known}
    old_lines = _OldLines(world, [path for path, _ in changed])
    stale = revision.move(changed)
    gone = {k: before[k] for k in stale if k in before and k not in revision.recipes and before[k].has_model}
    come = {k: revision.recipes[k] for k in stale if k in revision.recipes and k not in before and revision.recipes[k].has_model}
    kept = [k for k in stale if k in before and k in revision.recipes]
    moved: dict[str, str] = {}
    if gone and come:
        bodies = {k: body_of(old_lines.file(s.cell.path), world.chunks, s.cell) for k, s in gone.items()}
        moved = pair(revision, {k: s.cell for k, s in gone.items()}, bodies, {k: s.cell for k, s in come.items()})
    moved.update(_from_limbo(revision, before, come.keys() - set(moved.values()), come))
    revision.limbo.update((k, s) for k, s in gone.items() if k not in moved and s.cell.command_line is not None)
    changes: list[SettingChange] = []
    effective: list[bool] = []
    states: list[tuple[str, str, str]] = []
    for old_key, new_key in sorted([*((k, k) for k in kept), *moved.items()], key=lambda p: p[1]):
        old, new = before[old_key], revision.recipes[new_key]
        if old.failed or new.failed or not (old.has_model and new.has_model):
            continue
        matters = names.effective_changes(old.fields, new.fields)
        if matters:
            states.append((new_key, names.describe_state(old.fields), names.describe_state(new.fields)))
        for name in names.ALL:
            a, b = old.fields.get(name, UNSET), new.fields.get(name, UNSET)
            if a.same_value(b) or "unknown" in (a.state, b.state):
                continue
            file, line = _place(revision, old_lines, old, new, a, b)
            changes.append(SettingChange(new_key, name, a.shown(), b.shown(), file, line))
            effective.append(name in matters)
    renamed = {old: new for old, new in moved.items() if old != new}
    added = tuple(sorted(come.keys() - set(moved.values())))
    removed = tuple(sorted(gone.keys() - moved.keys()))
    kinds = [kind for kind, there in (("recipe-value", any(effective)), ("recipe-added", added), ("recipe-removed", removed),
                                      ("recipe-moved", renamed)) if there]
    return RecipeChanges(tuple(kinds), tuple(changes), tuple(effective), tuple(states), tuple(sorted(renamed.items())), added, removed)


def _from_limbo(revision: Revision, before: dict, free: set, come: dict) -> dict[str, str]:
    """Pairs recipes that appear with those that vanished in an earlier commit; their states go into ``before``."""
    if not revision.limbo or not free:
        return {}
    limbo = {k: s.cell for k, s in revision.limbo.items()}
    pairs = pair(revision, limbo, {}, {k: come[k].cell for k in free if come[k].cell.command_line is not None})
    for old in pairs:
        before[old] = revision.limbo.pop(old)
    return pairs


class _OldLines:
    """The changed files before the commit, read when a line of the code that it removes is asked for."""

    def __init__(self, world: World, changed: Sequence[str]):
        self._world = world
        self._blobs = {path: world.tree[path] for path in changed if path in world.tree}
        self.added = frozenset(changed) - self._blobs.keys()

    def file(self, path: str) -> Optional[SourceFile]:
        """None where the commit does not change the file, or adds it."""
        blob = self._blobs.get(path)
        return None if blob is None else self._world.file_of(blob)

    def line(self, origin: Optional[tuple]) -> tuple[str, int]:
        file = self.file(origin[0]) if origin is not None else None
        return ("", 0) if file is None or origin[1] is None else (origin[0], file.line(origin[1], origin[2]))


def _place(revision: Revision, old_lines: _OldLines, old: RecipeState, new: RecipeState, a: FieldState, b: FieldState):
    """(file, line) to blame: where the new value is written if the commit wrote it, else the code that it changed."""
    world = revision.world
    if b.origin is not None and _is_new(old_lines, b.origin):
        return world.line(b.origin)
    for dependency in revision.interpreter.read_through(new.dependencies):
        if dependency[0] != "name":
            continue
        before = old_lines.file(dependency[1])
        if before is not None and before.fingerprint(dependency[2]) != world.fingerprint(dependency):
            place = _changed_line(revision, old_lines, dependency[1], dependency[2])
            if place[1]:
                return place
    file, line = old_lines.line(a.origin)
    if line:
        return file, line
    file, line = world.line(b.origin)
    if line:
        return file, line
    found = world.file(new.cell.path)
    return new.cell.path, found.line(found.bindings[new.cell.name][-1][1].chunk, 1) if found else 0


def _is_new(old_lines: _OldLines, origin: tuple) -> bool:
    file = old_lines.file(origin[0])
    if file is None or origin[1] is None:
        return origin[0] in old_lines.added
    return not file.line(origin[1], origin[2])


def _changed_line(revision: Revision, old_lines: _OldLines, path: str, name: str) -> tuple[str, int]:
    """First line that differs in the definition of a name, in the new file; in the old one where it is gone."""
    file, old = revision.world.file(path), old_lines.file(path)
    new_binding = file.bindings[name][-1][1] if file and name in file.bindings else None
    old_binding = old.bindings[name][-1][1] if old and name in old.bindings else None
    if new_binding is None:
        return (path, old.line(old_binding.chunk, 1)) if old_binding is not None else ("", 0)
    offset = 1
    if old_binding is not None:
        texts = [revision.world.chunks.text(b.chunk).split("\n") for b in (old_binding, new_binding)]
        offset = next((i for i, (x, y) in enumerate(zip(*texts), 1) if x != y), 1)
    return path, file.line(new_binding.chunk, offset)


def selected(changes: RecipeChanges, recipes: Sequence[str], wanted: Sequence[str]) -> list[SettingChange]:
    """The changes to show: effective ones, or those of the fields asked for; of recipes that match a glob."""
    found = []
    for change, matters in zip(changes.changes, changes.effective):
        if recipes and not matches(change.recipe, recipes):
            continue
        if any(fnmatchcase(change.field, pattern) for pattern in wanted) if wanted else matters:
            found.append(change)
    return found


def matches(key: str, patterns: Sequence[str]) -> bool:
    """Whether a recipe's key, its function name or its module matches one of the globs."""
    module, _, name = key.partition(":")
    return any(fnmatchcase(part, p) for p in patterns for part in (key, name, module))
