"""Changes as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SettingChange:
    recipe: str
    """``module:function`` of the recipe; for a default, the class or command line that holds it."""
    field: str
    old: object
    new: object
    file: str
    line: int


@dataclass(frozen=True)
class SourceChange:
    file: str
    symbol: str
    """Class and function, dotted; empty at module level."""
    kind: str
    """One of the contract's kinds: default, validation, checkpoint-site, plumbing, submodule."""
    line: int
    """Line of the new code, of the old code where it was removed; 0 when the file as a whole is meant."""
    detail: str
    """One sentence: what it means for someone whose own settings did not change."""
