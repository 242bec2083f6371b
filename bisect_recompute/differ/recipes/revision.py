"""All recipes of one revision, kept up to date from commit to commit by what each evaluation has read."""

from __future__ import annotations

from typing import Callable, Iterable, Mapping, Optional

from bisect_recompute.differ.recipes.fields import EFFECTIVE
from bisect_recompute.differ.recipes.interpreter import Interpreter
from bisect_recompute.differ.recipes.memo import Reads
from bisect_recompute.differ.recipes.recipes import (
    Cell, RecipeState, cells_of_file, failed_state, is_recipe_file, read_recipe,
)
from bisect_recompute.differ.recipes.world import World

_RECIPE = "recipe"
_SWEEP = 40


class Revision:
    """The recipes of a revision. ``recipes``: key -> RecipeState."""

    def __init__(self, read_blob: Callable[[str], Optional[bytes]], tree: Mapping[str, str]):
        self.world = World(read_blob, tree)
        self.interpreter = Interpreter(self.world)
        self.recipes: dict[str, RecipeState] = {}
        self.last_known: dict[str, RecipeState] = {}
        """Key -> the state at the last revision where evaluating it did not fail; of recipes that still exist."""
        self.limbo: dict[str, RecipeState] = {}
        """Launched recipes that vanished without a successor: a launcher that is broken for a while may bring it later."""
        self._cells: dict[str, dict[str, Cell]] = {}
        self._cell: dict[str, Cell] = {}
        self._reads: dict[str, Reads] = {}
        self._places: dict[str, set] = {}
        self._moves = 0
        self._update(path for path in self.world.tree)

    def close(self) -> None:
        """Frees the memory now: the interpreter refers to itself, which only a search for garbage would find."""
        vars(self.interpreter).clear()

    def launcher_is_broken(self) -> bool:
        """Whether there is what a launcher could start and hardly any of it comes to a known configuration."""
        launched = [key for key, cell in self._cell.items() if cell.command_line is not None]
        return len(launched) > 8 * sum(key in self.last_known for key in launched)

    def move(self, changed: Iterable[tuple[str, Optional[str]]]) -> set[str]:
        """Goes to a neighbour by its changed (path, new blob or None). Returns keys whose result may differ."""
        paths = self.world.move(changed)
        return self._update(paths) if paths else set()

    def _update(self, paths: Iterable[str]) -> set[str]:
        paths = list(paths)
        touched: set[str] = set()
        for path in paths:
            if is_recipe_file(path):
                touched |= self._discover(path)
        stale = set(touched)
        interpreter, before = self.interpreter, self.world.epoch - 1
        for _, key in interpreter.doubt(paths, self.world.modules_at == self.world.epoch):
            reads = self._reads.get(key)
            if reads is not None and key not in stale and not interpreter.still_right(reads, before):
                stale.add(key)
        for key in stale:
            self._evaluate(key)
        self._moves += 1
        if self._moves % _SWEEP == 0:
            interpreter.sweep()
            interpreter.sweep_replays()
        return stale

    def _discover(self, path: str) -> set[str]:
        """Cells that appear in or vanish from a file."""
        before = self._cells.get(path, {})
        after = {cell.key: cell for cell in cells_of_file(self.world, path)}
        self._cells[path] = after
        self._cell.update(after)
        for key in before.keys() - after.keys():
            self._forget(key)
            self.recipes.pop(key, None)
            self.last_known.pop(key, None)
            del self._cell[key]
        return (before.keys() ^ after.keys()) & after.keys() | (before.keys() - after.keys())

    def _evaluate(self, key: str) -> None:
        cell = self._cell.get(key)
        if cell is None:
            self._forget(key)
            return
        state = read_recipe(self.interpreter, cell)
        dependencies = dict(state.dependencies if state is not None else self.interpreter.deps)
        dependencies.setdefault(("name", cell.path, cell.name), self.world.fingerprint(("name", cell.path, cell.name)))
        self._reads[key] = Reads(dependencies)
        self._places[key] = self.interpreter.link((_RECIPE, key), dependencies, self._places.get(key, set()))
        if state is None and key in self.last_known and cell.command_line is not None:
            # The launcher fails on what it could start before: broken, not gone.
            state = failed_state(cell, "the launcher fails before training starts")
            state.dependencies = dependencies
        if state is None:
            self.recipes.pop(key, None)
            self.last_known.pop(key, None)
            return
        self.recipes[key] = state
        if not state.failed and any(state.fields[name].state != "unknown" for name in EFFECTIVE):
            self.last_known[key] = state

    def _forget(self, key: str) -> None:
        self._reads.pop(key, None)
        self.interpreter.unlink((_RECIPE, key), self._places.pop(key, ()))
