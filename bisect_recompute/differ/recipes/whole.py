"""The whole configuration that one recipe function leaves: every section a training step depends on, field by field."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from bisect_recompute.differ.recipes.fields import UNSET, FieldState
from bisect_recompute.differ.recipes.interpreter import Failed, Interpreter
from bisect_recompute.differ.recipes.recipes import cells_of_file, class_default, plain
from bisect_recompute.differ.recipes.state import Raised
from bisect_recompute.differ.recipes.values import (
    MISSING, PUBLISHED, TAINT, Class, External, NotKnown, Obj, Unknown, describe, is_primitive,
)
from bisect_recompute.differ.recipes.world import World
from bisect_recompute.errors import UsageError

Published = Callable[[str], Mapping[str, Any]]
_MIXED_PRECISION = "src/megatron/bridge/training/mixed_precision.py"
_PROVIDERS = ("src/megatron/bridge/models/gpt_provider.py", "GPTModelProvider")
_WHERE = ("src/{0}.py", "src/{0}/__init__.py", "scripts/performance/{0}.py", "{0}.py", "{0}/__init__.py")


@dataclass(frozen=True)
class WholeConfig:
    """Section (``model``, ``train``, ``ddp``, ...; ``""`` is the configuration itself) -> field -> state. A field that is set has
    (path, line) in ``places``."""

    model: str
    """The published model's name, or the name of the provider class."""
    sections: Mapping[str, Mapping[str, FieldState]]
    places: Mapping[tuple[str, str], tuple[str, int]] = field(default_factory=dict)


class _World(World):
    """Knows which files were consulted."""

    def __init__(self, read_blob: Callable[[str], Optional[bytes]], tree: Mapping[str, str]):
        super().__init__(read_blob, tree)
        self.consulted: set[str] = set()

    def file(self, path: str):
        self.consulted.add(path)
        return super().file(path)

    def text(self, path: str):
        self.consulted.add(path)
        return super().text(path)

    def go_to(self, tree: Mapping[str, str]) -> bool:
        """Whether what was consulted may be different there: files came or went, or one of these has changed."""
        moved = self.move(self.differences(tree))
        return bool(moved) and (self.modules_at == self.epoch or not self.consulted.isdisjoint(moved))


class WholeConfigs:
    """Reads a recipe's configuration at one revision after the other. Reads source only, nothing is executed."""

    def __init__(self, read_blob: Callable[[str], Optional[bytes]], published: Published,
                 wanted: Mapping[str, Sequence[str]]):
        """``wanted``: section -> fields. ``published``: fields of a published model, or of a provider class by its name."""
        self._read, self._published, self._wanted = read_blob, published, wanted
        self._world: _World | None = None
        self._last: tuple[str, str, WholeConfig] | None = None

    def at(self, tree: Mapping[str, str], module: str, function: str, gpu: str, capability: tuple[int, int]) -> WholeConfig:
        """``tree``: path -> blob id of the revision. ``gpu``, ``capability``: what recipes that ask for the device are told.

        Raises UsageError where the function cannot be evaluated.
        """
        if self._world is None:
            self._world = _World(self._read, tree)
        elif not self._world.go_to(tree) and self._last and self._last[:2] == (module, function):
            return self._last[2]
        self._last = None
        self._world.consulted.clear()
        found = self._evaluate(module, function, gpu, capability)
        self._last = (module, function, found)
        return found

    def _evaluate(self, module: str, function: str, gpu: str, capability: tuple[int, int]) -> WholeConfig:
        world, interpreter = self._world, Interpreter(self._world)
        path = next((p for w in _WHERE if (p := w.format(module.replace(".", "/"))) in world.tree), None)
        if path is None:
            raise UsageError(f"there is no module {module}")
        run = self._starter(interpreter, path, f"{module}:{function}")
        interpreter.published = self._published
        interpreter.library.update(_device(interpreter, gpu, capability))
        try:
            found, _ = interpreter.evaluate(lambda: self._read_config(interpreter, run()))
        except Failed as error:
            raise UsageError(f"{module}:{function} cannot be evaluated: {error}") from None
        finally:
            vars(interpreter).clear()
        if found is None:
            raise UsageError(f"{module}:{function} returns no configuration with a model")
        return found

    def _starter(self, interpreter: Interpreter, path: str, key: str) -> Callable[[], Any]:
        """What makes the configuration: the function without arguments, or the launcher with a cell's command line."""
        function = key.partition(":")[2]
        if "[" in function:
            cell = next((cell for cell in cells_of_file(self._world, path) if cell.key == key), None)
            if cell is None:
                raise UsageError(f"the launcher has no configuration {key}; `bisect-recompute show` lists those it has")
            return lambda: interpreter.launch(cell.path, cell.name, cell.command_line)
        if not interpreter.evaluate(lambda: interpreter.is_function(path, function))[0]:
            raise UsageError(f"{path} has no function {function}")
        return lambda: interpreter.call_recipe(path, function, {})

    def _read_config(self, interpreter: Interpreter, config: Any) -> WholeConfig | None:
        slot = config.attrs.get("model") if isinstance(config, Obj) else None
        if slot is None or not isinstance(slot[0], Obj):
            return None
        model = slot[0]
        name = model.attrs.get(PUBLISHED, (None,))[0]
        cls = model.cls if isinstance(model.cls, Class) else None
        sections, places = {}, {}
        for section, names in self._wanted.items():
            owner = {"model": model, "": config}.get(section) or config.attrs.get(section, (None,))[0]
            if section == "mixed_precision" and isinstance(owner, str):
                owner = self._mixed_precision(interpreter, owner)
            fallback = self._class_of_published(interpreter) if section == "model" and name else None
            states = {field: _field(interpreter, owner, field, fallback) for field in names}
            sections[section] = states
            for field_, state in states.items():
                if state.state == "set" and state.origin is not None:
                    places[section, field_] = self._world.line(state.origin)
        if cls is not None and not name:
            known = self._published(cls.name)
            sections["model"] = {
                field: FieldState("unset", default=known[field]) if field in known and _is_open(state) else state
                for field, state in sections["model"].items()
            }
        return WholeConfig(name or (cls.name if cls else describe(model)), sections, places)

    def _mixed_precision(self, interpreter: Interpreter, name: str) -> Any:
        """The function of that name in the framework's own list, as it would be called."""
        return interpreter.call_recipe(_MIXED_PRECISION, name, {})

    def _class_of_published(self, interpreter: Interpreter) -> Class | None:
        """What the framework makes of a published model is of this class or one below it: its defaults hold."""
        if _PROVIDERS[0] not in self._world.tree:
            return None
        slot = interpreter.symbol(*_PROVIDERS)
        return slot[0] if slot is not MISSING and isinstance(slot[0], Class) else None


def _device(interpreter: Interpreter, gpu: str, capability: tuple[int, int]) -> dict:
    """PyTorch's functions that tell about the device."""
    def properties(args, kwargs):
        found = Obj(External("torch.cuda.Properties"), interpreter.next_serial())
        values = {"name": f"NVIDIA {gpu.upper()}", "major": capability[0], "minor": capability[1]}
        found.attrs.update((name, (value, None, False)) for name, value in values.items())
        return found

    return {
        "torch.cuda.is_available": lambda args, kwargs: True,
        "torch.cuda.get_device_properties": properties,
        "torch.cuda.get_device_capability": lambda args, kwargs: capability,
    }


def _is_open(state: FieldState) -> bool:
    return state.state == "unset" and state.default is None


def _field(interpreter: Interpreter, owner: Any, name: str, fallback: Class | None) -> FieldState:
    """``unset`` with a default: what the class, or the published model, says."""
    if owner is None or is_primitive(owner):
        return UNSET
    if not isinstance(owner, Obj):
        return FieldState("unknown", reason=f"it is on {describe(owner)}")
    slot = owner.attrs.get(name)
    if slot is not None and not slot[2]:
        try:
            return FieldState("set", _value(slot[0]), origin=slot[1])
        except NotKnown as error:
            return FieldState("unknown", reason=error.reason, origin=slot[1])
    if slot is None and TAINT in owner.attrs:
        return FieldState("unknown", reason=owner.attrs[TAINT][0])
    if slot is None and not owner.fresh:
        return FieldState("unknown", reason=owner.why_open or "an object that is not known")
    cls = owner.cls if isinstance(owner.cls, Class) else fallback
    return FieldState("unset", default=_default(interpreter, slot, cls, name))


def _default(interpreter: Interpreter, slot: Any, cls: Class | None, name: str) -> Any:
    try:
        if slot is not None and not isinstance(slot[0], Unknown):
            return _value(slot[0])
        return _value(class_default(interpreter, cls, name)) if cls is not None else None
    except (NotKnown, Raised):
        return None


def _value(value: Any) -> Any:
    """Plain data; what comes from other packages by its name: ``torch.bfloat16``."""
    if isinstance(value, External):
        return value.name
    return plain(value)
