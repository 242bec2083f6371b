"""The evaluator: runs a recipe's source over values that may be unknown. Nothing of the repository is executed."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping
from typing import Any

from bisect_recompute.differ.recipes.attributes import Attributes
from bisect_recompute.differ.recipes.calls import Calls
from bisect_recompute.differ.recipes.classes import Classes
from bisect_recompute.differ.recipes.expressions import Expressions
from bisect_recompute.differ.recipes.launcher import Launcher
from bisect_recompute.differ.recipes.library import Library
from bisect_recompute.differ.recipes.memo import Memos
from bisect_recompute.differ.recipes.modules import Modules
from bisect_recompute.differ.recipes.replay import Replays
from bisect_recompute.differ.recipes.state import Exhausted, Imprecise, Raised, State
from bisect_recompute.differ.recipes.statements import Statements
from bisect_recompute.differ.recipes.values import MISSING, Func
from bisect_recompute.differ.recipes.world import World


DEFECT = "a defect of this tool"
_RECURSION = 12_000


class _Handlers(dict):
    def __missing__(self, kind):
        def refuse(frame, node):
            raise Imprecise(f"{kind.__name__} expression")

        return refuse


class Failed(Exception):
    """The function could not be evaluated. The message says why."""


class Interpreter(Statements, Expressions, Calls, Classes, Attributes, Library, Launcher, Modules, Memos, Replays, State):
    def __init__(self, world: World):
        super().__init__()
        self.world = world
        self.start_memos()
        self.start_replays()
        self.in_progress: set = set()
        self.partial: dict = {}
        """(path, name) -> slot of a registry while the statements that fill it are evaluated."""
        self.shapes: dict = {}
        self.class_sources: dict = {}
        self.steps = 0
        self.depth = 0
        self.one_off = False
        """What is evaluated now depends on more than arguments and source: its result is not kept."""
        self.command_line: Any = None
        self.launched: dict = {}
        self.yaml_nodes: dict = {}
        self.yaml_origins: dict = {}
        self.kept_alive: list = []
        self.published: Callable[[str], Mapping[str, Any]] | None = None
        """Name of a published model -> fields of its configuration, as plain immutable values; {}: nothing is known."""
        self.statements = {getattr(ast, n[3:]): getattr(self, n) for n in dir(self) if n.startswith("do_") and hasattr(ast, n[3:])}
        self.statements[ast.Nonlocal] = self.do_Global
        self.expressions = _Handlers(
            {getattr(ast, n[3:]): getattr(self, n) for n in dir(self) if n.startswith("ev_") and hasattr(ast, n[3:])}
        )
        self.library = self.make_library()

    def evaluate(self, run) -> tuple[Any, dict]:
        """(what ``run`` makes of the evaluation, its dependencies). Effects are undone. Raises Failed."""
        self.deps, self.steps, self.depth, self.trail = {}, 0, 0, []
        self.shared = self.may_raise = self.globals_changed = self.one_off = False
        self.recording = None
        self.in_progress.clear()
        self.partial.clear()
        self.yaml_origins.clear()
        self.kept_alive.clear()
        self.serial += 1
        self.lowest_write = 1 << 60
        # Deeply nested calls of the evaluated program are nested calls here, several per level.
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(max(limit, _RECURSION))
        try:
            return run(), self.deps
        except Raised as error:
            kind = getattr(error.kind, "__name__", str(error.kind))
            raise Failed(f"running it raises {kind}{': ' + error.text if error.text else ''}") from None
        except Imprecise as error:
            raise Failed(error.reason) from None
        except Exhausted as error:
            raise Failed(str(error)) from None
        except RecursionError:
            raise Failed("it is nested too deeply") from None
        except Exception as error:
            # Source of any shape comes in here, and one recipe must not end the report on all others.
            raise Failed(f"{DEFECT}: {type(error).__name__}: {error}") from error
        finally:
            sys.setrecursionlimit(limit)
            self.undo(0)

    def call_recipe(self, path: str, name: str, kwargs: dict) -> Any:
        slot = self.symbol(path, name)
        if slot is MISSING:
            raise Raised(NameError, name)
        return self.call(slot[0], [], kwargs)

    def is_function(self, path: str, name: str) -> bool:
        slot = self.symbol(path, name)
        return slot is not MISSING and isinstance(slot[0], Func)
