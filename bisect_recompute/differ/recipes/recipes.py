"""Which functions of a revision are recipes, and the settings that each leaves on its configuration."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Optional

from bisect_recompute.differ.recipes import fields as names
from bisect_recompute.differ.recipes.fields import UNSET, FieldState
from bisect_recompute.differ.recipes.interpreter import Failed, Interpreter
from bisect_recompute.differ.recipes.launcher import is_config_file, launched_cells
from bisect_recompute.differ.recipes.values import (
    MISSING, TAINT, AList, Class, EnumMember, External, Func, NotKnown, Obj, Unknown, describe, is_primitive, to_python,
)
from bisect_recompute.differ.recipes.world import World, module_name

_RECIPE_FILE = re.compile(r"^src/megatron/(?:[^/]+/)*(?:perf_)?recipes/.*\.py$|^[^/]*recipes[^/]*/.*\.py$")


@dataclass(frozen=True)
class Cell:
    """One thing to evaluate: a recipe function with its default arguments, or with those of a launcher."""

    key: str
    path: str
    name: str
    command_line: tuple | None = None
    """((argument, value), ...) where a launcher makes the configuration."""


@dataclass
class RecipeState:
    """The settings of one recipe at one revision."""

    cell: Cell
    fields: dict[str, FieldState]
    has_model: bool = True
    """False for a configuration that is no training recipe (a data set's)."""
    failed: str = ""
    """Why nothing is known, where running the function fails or cannot be followed."""
    dependencies: Mapping = None  # type: ignore[assignment]


def is_recipe_file(path: str) -> bool:
    return _RECIPE_FILE.match(path) is not None or is_config_file(path)


def cells_of_file(world: World, path: str) -> Iterator[Cell]:
    """Recipe functions of a file: public, callable without arguments, named or annotated as a configuration.

    Of a launcher's configuration file: what its command line can choose.
    """
    if is_config_file(path):
        if path in world.tree:
            for key, name, command_line in launched_cells(world, path):
                yield Cell(key, path, name, command_line)
        return
    file = world.file(path)
    if file is None or file.broken:
        return
    for name, annotated in file.entries.items():
        if name.startswith("_") or not (annotated or "config" in name):
            continue
        if file.bindings[name][-1][1].kind in ("def", "effect", "value"):
            yield Cell(f"{module_name(path)}:{name}", path, name)


def read_recipe(interpreter: Interpreter, cell: Cell) -> Optional[RecipeState]:
    """The recipe's settings; None where the function returns no configuration or the launcher has no such cell."""

    def run():
        if _is_second_name(interpreter, cell) and not interpreter.is_function(cell.path, cell.name):
            return None
        if cell.command_line is None:
            return read_config(interpreter, cell, interpreter.call_recipe(cell.path, cell.name, {}))
        return read_config(interpreter, cell, interpreter.launch(cell.path, cell.name, cell.command_line))

    try:
        state, dependencies = interpreter.evaluate(run)
    except Failed as error:
        if cell.command_line is not None:
            return None
        annotated = interpreter.world.file(cell.path).entries.get(cell.name)
        state, dependencies = None, interpreter.deps
        if annotated or cell.name.endswith("_config"):
            state = failed_state(cell, str(error))
    if state is not None:
        state.dependencies = dependencies
    return state


def _is_second_name(interpreter: Interpreter, cell: Cell) -> bool:
    """Whether the cell's name is assigned, which may be anything, not only a function's."""
    return cell.command_line is None and interpreter.world.file(cell.path).bindings[cell.name][-1][1].kind == "value"


def failed_state(cell: Cell, reason: str) -> RecipeState:
    unknown = FieldState("unknown", reason=reason)
    return RecipeState(cell, {name: unknown for name in names.ALL}, failed=reason)


def read_config(interpreter: Interpreter, cell: Cell, config: Any) -> Optional[RecipeState]:
    if isinstance(config, Unknown):
        return failed_state(cell, config.reason) if cell.name.endswith("_config") or cell.command_line else None
    if not isinstance(config, Obj):
        return None
    slot = config.attrs.get("model")
    if TAINT in config.attrs and slot is None:
        return failed_state(cell, config.attrs[TAINT][0])
    if slot is None:
        # A data set's configuration, or a model's; the second has such fields itself and is no recipe.
        if not cell.name.endswith("_config") or any(n in config.attrs for n in names.MODEL if n != "seq_length"):
            return None
        return RecipeState(cell, {name: UNSET for name in names.ALL}, has_model=False)
    model = slot[0]
    found = {name: _field(interpreter, model, name) for name in names.MODEL}
    train, overlap = (config.attrs.get(n, (None,))[0] for n in ("train", "comm_overlap"))
    found.update((name, _field(interpreter, train, name)) for name in names.TRAIN)
    for name in names.OVERLAP:
        on_model = _field(interpreter, model, name)
        found[name] = on_model if on_model.state == "set" else _field(interpreter, overlap, name)
    found[names.PRECISION] = _precision(interpreter, config)
    return RecipeState(cell, found)


def _field(interpreter: Interpreter, owner: Any, name: str) -> FieldState:
    if owner is None:
        return UNSET
    if not isinstance(owner, Obj):
        return FieldState("unknown", reason=f"it is on {describe(owner)}")
    slot = owner.attrs.get(name)
    if slot is None:
        if TAINT in owner.attrs:
            return FieldState("unknown", reason=owner.attrs[TAINT][0])
        if not owner.fresh:
            return FieldState("unknown", reason=owner.why_open or "an object that is not known")
        return FieldState("unset", default=_class_default(interpreter, owner, name))
    value, origin, is_default = slot
    if is_default:
        return FieldState("unset", default=_class_default(interpreter, owner, name))
    try:
        return FieldState("set", plain(value), origin=origin)
    except NotKnown as error:
        return FieldState("unknown", reason=error.reason, origin=origin)


def _class_default(interpreter: Interpreter, owner: Obj, name: str) -> Any:
    if not isinstance(owner.cls, Class) or name not in names.EFFECTIVE:
        return None
    try:
        return plain(class_default(interpreter, owner.cls, name))
    except NotKnown:
        return None


def class_default(interpreter: Interpreter, cls: Class, name: str) -> Any:
    """The evaluated program's value that a new instance has; None where the class says nothing of the kind."""
    slot = interpreter.class_slot(cls, name)
    if slot is MISSING or isinstance(slot[0], (Unknown, Func)):
        return None
    value = slot[0]
    factory = getattr(value, "factory", MISSING)
    if factory is not MISSING:
        return interpreter.call(factory, [], {})
    value = getattr(value, "default", value)
    return None if value is MISSING else value


def plain(value: Any) -> Any:
    """Plain data for a report; members of enums by their name. Raises NotKnown."""
    if isinstance(value, EnumMember):
        return value.name
    if isinstance(value, tuple):
        return [plain(v) for v in value]
    if isinstance(value, AList) and not isinstance(value.items, Unknown):
        return [plain(v) for v in value.items]
    if isinstance(value, External):
        raise NotKnown(f"{value.name} is outside the repository")
    found = to_python(value)
    return sorted(found) if isinstance(found, set) else found


def _precision(interpreter: Interpreter, config: Obj) -> FieldState:
    slot = config.attrs.get(names.PRECISION)
    if slot is None or slot[2]:
        return UNSET
    value, origin, _ = slot
    if value is None or is_primitive(value):
        return FieldState("set", value, origin=origin)
    if not isinstance(value, Obj) or not value.fresh or TAINT in value.attrs:
        return FieldState("unknown", reason=describe(value), origin=origin)
    parts = []
    for name in ("bf16", "fp16", "fp8", "fp8_recipe", "fp4"):
        inner = value.attrs.get(name)
        if inner is None or inner[2]:
            continue
        if not is_primitive(inner[0]):
            return FieldState("unknown", reason=describe(inner[0]), origin=origin)
        if inner[0]:
            parts.append(name if inner[0] is True else f"{name}:{inner[0]}")
    return FieldState("set", "+".join(parts) or "fp32", origin=origin)
