"""What one commit does to the settings of recipes."""

from __future__ import annotations

from dataclasses import dataclass

from bisect_recompute.differ.source.change import SettingChange

_ORDER = ("recipe-value", "recipe-added", "recipe-removed", "recipe-moved")


@dataclass(frozen=True)
class RecipeChanges:
    """What one commit does to recipes. All fields that differ are in ``changes``, effective ones in ``effective``."""

    kinds: tuple[str, ...] = ()
    """Of recipe-value, recipe-added, recipe-removed, recipe-moved."""
    changes: tuple[SettingChange, ...] = ()
    effective: tuple[bool, ...] = ()
    """For each change: whether it is part of a change of the recipe's effective recompute or offload state."""
    states: tuple[tuple[str, str, str], ...] = ()
    """(recipe, old state, new state) of recipes whose effective state changes."""
    moved: tuple[tuple[str, str], ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def plus(self, other: RecipeChanges) -> RecipeChanges:
        """Both together."""
        if other == NOTHING:
            return self
        return RecipeChanges(
            tuple(kind for kind in _ORDER if kind in self.kinds + other.kinds), self.changes + other.changes,
            self.effective + other.effective, self.states + other.states, self.moved + other.moved, self.added + other.added,
            self.removed + other.removed,
        )


NOTHING = RecipeChanges()
