"""Names of modules: what a top-level name means, across imports, re-exports and star imports."""

from __future__ import annotations

import ast
import builtins
import sys
from typing import Any, Optional

from bisect_recompute.differ.recipes.state import Frame, Imprecise, Raised
from bisect_recompute.differ.recipes.values import MISSING, Class, External, Module, Unknown
from bisect_recompute.differ.recipes.world import module_name


class Modules:
    """Part of the interpreter."""

    def isolated(self, compute) -> Any:
        """Runs code of a module: its effects are the module's, not those of the evaluation that needed it."""
        saved = (self.trail, self.shared, self.may_raise, self.lowest_write, self.depth)
        self.trail, self.shared = [], True
        try:
            return compute()
        finally:
            self.trail, self.shared, self.may_raise, self.lowest_write, self.depth = saved

    # Modules

    def import_module(self, dotted: str) -> Any:
        """Module or External. Raises the evaluated program's ModuleNotFoundError."""
        path = self.depend("module", dotted)
        if path is not None:
            return Module(dotted, path)
        parent, _, _ = dotted.rpartition(".")
        if parent:
            above = self.depend("module", parent)
            if above is not None and not above.endswith("/"):
                raise Raised(ModuleNotFoundError, f"no module named {dotted}")
        return External(dotted)

    def absolute(self, frame: Frame, level: int, name: str) -> str:
        if not level:
            return name
        package = module_name(frame.path).split(".")
        if not frame.path.endswith("/__init__.py"):
            package = package[:-1]
        package = package[: len(package) - level + 1]
        return ".".join([*package, name] if name else package)

    def import_from(self, module: Any, name: str) -> Any:
        if isinstance(module, External):
            self.note_external(module.name)
            return External(f"{module.name}.{name}")
        value = self.module_attribute(module, name)
        if value is MISSING:
            raise Raised(ImportError, f"cannot import {name} from {module.dotted}")
        return value

    def note_external(self, dotted: str) -> None:
        if dotted.split(".")[0] not in sys.stdlib_module_names:
            self.may_raise = True

    def module_attribute(self, module: Module, name: str) -> Any:
        if not module.path.endswith("/"):
            value = self.symbol(module.path, name)
            if value is not MISSING:
                return value[0]
        if module.path.endswith(("/", "/__init__.py")):
            path = self.depend("module", f"{module.dotted}.{name}")
            if path is not None:
                return Module(f"{module.dotted}.{name}", path)
            if module.path.endswith("/"):
                return External(f"{module.dotted}.{name}")
        return MISSING

    # Symbols

    def symbol(self, path: str, name: str, limit: Optional[tuple] = None) -> Any:
        """Slot of a top-level name after the module's statements before ``limit`` (all), see ``SourceFile.before``."""
        if (path, name) in self.partial:
            return self.partial[path, name]
        return self.memoised(("symbol", path, name, limit), lambda: self._symbol(path, name, limit))

    def _symbol(self, path: str, name: str, limit: Optional[tuple]) -> Any:
        if limit is None:
            self.depend("name", path, name)
        else:
            self.depend("before", path, name, limit)
        file = self.world.file(path)
        if file is None:
            return MISSING
        if file.broken:
            return (Unknown(f"{path}: {file.broken}"), None, False)
        if name in ("__name__", "__file__"):
            return (module_name(path) if name == "__name__" else f"/{path}", None, False)
        bindings = file.before(name, limit)
        if not bindings:
            return self._from_star(file, path, name, limit)
        key = (path, name)
        if key in self.in_progress:
            return (Unknown(f"{name} is defined in terms of itself"), None, False)
        self.in_progress.add(key)
        try:
            return self.isolated(lambda: self._bind(file, path, name, bindings))
        finally:
            self.in_progress.discard(key)

    def _bind(self, file, path: str, name: str, bindings: list) -> Any:
        first = len(bindings) - 1
        while first > 0 and not self._replaces(bindings[first][1], name):
            first -= 1
        slot = MISSING
        for place, binding in bindings[first:]:
            chunk = binding.chunk
            if binding.kind == "class":
                slot = (Class(name, path, None, None, None, 0), None, False)
                node = self.world.chunks.statement(chunk, binding.index)
                slot = (self.decorate_class(slot[0], node, None), (path, chunk, node.lineno), False)
                continue
            node = self.world.chunks.statement(chunk, binding.index)
            frame = Frame(path, chunk, limit=(chunk, file.nth(place), binding.index))
            if slot is not MISSING:
                frame.locals[name] = slot
                if binding.kind == "effect":
                    self.partial[path, name] = slot
            try:
                self.module_statement(frame, node, name)
                if binding.kind != "effect":
                    slot = frame.locals.get(name, slot)
                if binding.kind == "def":
                    # What a decorator does to other names is evaluated with those names.
                    self.undo_heap()
            except Raised as error:
                slot = (Unknown(f"{path}: importing it raises {_kind(error)}"), None, False)
            except Imprecise as error:
                slot = (Unknown(f"{path}: {error.reason}"), None, False)
            except RecursionError:
                slot = (Unknown(f"{path}: nested too deeply"), None, False)
            finally:
                self.partial.pop((path, name), None)
        return slot

    def module_statement(self, frame: Frame, node: ast.stmt, name: str) -> None:
        if isinstance(node, ast.ImportFrom):
            # Only the name that is asked for: the others may be missing without harm to it.
            for alias in node.names:
                if alias.name != "*" and (alias.asname or alias.name) == name:
                    self.import_name(frame, node, alias)
            return
        self.execute(frame, node)

    def _replaces(self, binding, name: str) -> bool:
        if binding.kind in ("class", "def", "import"):
            return True
        node = self.world.chunks.statement(binding.chunk, binding.index)
        if isinstance(node, ast.AnnAssign):
            return node.value is not None and isinstance(node.target, ast.Name)
        return isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets)

    def _from_star(self, file, path: str, name: str, limit) -> Any:
        outside = None
        for _, binding in reversed(file.before("*", limit)):
            node = self.world.chunks.statement(binding.chunk, binding.index)
            if not isinstance(node, ast.ImportFrom):
                continue
            dotted = self.absolute(Frame(path, binding.chunk), node.level, node.module or "")
            try:
                module = self.import_module(dotted)
            except Raised:
                continue
            if isinstance(module, External):
                outside = outside or External(f"{module.name}.{name}")
            elif not module.path.endswith("/") and (path, "*", module.path) not in self.in_progress:
                self.in_progress.add((path, "*", module.path))
                try:
                    if self._exports(module.path, name):
                        slot = self.symbol(module.path, name)
                        if slot is not MISSING:
                            return slot
                finally:
                    self.in_progress.discard((path, "*", module.path))
        if outside is not None and not hasattr(builtins, name):
            return (Unknown(f"{name} may come from {outside.name.rpartition('.')[0]}, which is outside the repository"), None, False)
        return MISSING

    def _exports(self, path: str, name: str) -> bool:
        listed = self.symbol(path, "__all__")
        if listed is MISSING:
            return not name.startswith("_")
        items = getattr(listed[0], "items", None)
        if callable(items) or not isinstance(items, (list, tuple)):
            items = listed[0] if isinstance(listed[0], tuple) else None
        return items is None or name in items

    # Import statements

    def import_name(self, frame: Frame, node: ast.ImportFrom, alias: ast.alias) -> None:
        module = self.import_module(self.absolute(frame, node.level, node.module or ""))
        value = self.import_from(module, alias.name)
        self.bind(frame, alias.asname or alias.name, value, self._import_origin(module, alias.name, frame, node))

    def _import_origin(self, module: Any, name: str, frame: Frame, node: ast.AST) -> tuple:
        if isinstance(module, Module) and not module.path.endswith("/"):
            slot = self.symbol(module.path, name)
            if slot is not MISSING and slot[1] is not None:
                return slot[1]
        return (frame.path, frame.chunk, node.lineno)

    def do_ImportFrom(self, frame: Frame, node: ast.ImportFrom) -> None:
        for alias in node.names:
            if alias.name == "*":
                if frame.names is not None:
                    raise Imprecise("import * inside a function")
                continue
            if node.module == "__future__":
                continue
            self.import_name(frame, node, alias)

    def do_Import(self, frame: Frame, node: ast.Import) -> None:
        for alias in node.names:
            module = self.import_module(alias.name)
            if isinstance(module, External):
                self.note_external(module.name)
            if not alias.asname:
                module = self.import_module(alias.name.split(".")[0])
            self.bind(frame, alias.asname or alias.name.split(".")[0], module, (frame.path, frame.chunk, node.lineno))


def _kind(error: Raised) -> str:
    return getattr(error.kind, "__name__", str(error.kind))
