"""Calls: of functions of the repository, of things outside it, and of the little of Python's library that matters."""

from __future__ import annotations

import ast
import inspect
from typing import Any, Optional

from bisect_recompute.differ.recipes.classes import BOUNDARY
from bisect_recompute.differ.recipes.source import last_word
from bisect_recompute.differ.recipes.state import Exhausted, Frame, Imprecise, Raised
from bisect_recompute.differ.recipes.values import (
    MISSING, PUBLISHED, ADict, Bound, Class, External, Func, Method, Obj, Partial,
    Super, Unknown, describe, is_primitive,
)

MAX_DEPTH = 50
_HOOKED = frozenset(("parse_cli_args", "pretrain", "finetune", "create_omegaconf_dict_config", "parse_hydra_overrides", "apply_overrides"))
_FRAMED = frozenset(f"builtins.{name}" for name in ("super", "locals", "globals", "eval", "exec"))
_SAFE_DECORATORS = frozenset(
    "setter getter override lru_cache cache wraps abstractmethod overload final no_grad inference_mode".split()
)
# Outside code that does not change the objects it is given.
_HARMLESS = (
    "logging", "warnings", "os", "re", "math", "json", "pathlib", "typing", "torch", "transformers", "builtins", "sys",
    "time", "datetime", "random", "inspect", "functools", "itertools", "collections", "string", "textwrap", "copy",
    "dataclasses", "enum", "abc", "importlib", "huggingface_hub", "packaging", "numpy", "yaml", "argparse", "socket",
    "omegaconf", "modelopt",
)
_LOADERS = ("from_hf_pretrained", "from_pretrained", "from_hf_config", "import_ckpt")


class Calls:
    def call_node(self, frame: Frame, node: ast.Call) -> Any:
        func = self.eval(frame, node.func)
        args: list = []
        kwargs: dict = {}
        unknown = None
        for each in node.args:
            if each.__class__ is ast.Starred:
                more = self.iterate(self.eval(frame, each.value))
                if more is None:
                    unknown = "unknown positional arguments"
                else:
                    args.extend((v, self.origin(frame, each)) for v in more)
            else:
                args.append((self.eval(frame, each), self.origin_of(frame, each)))
        for keyword in node.keywords:
            value = self.eval(frame, keyword.value)
            if keyword.arg is not None:
                kwargs[keyword.arg] = (value, self.origin_of(frame, keyword.value))
            elif isinstance(value, ADict) and not isinstance(value.items, Unknown):
                for key, inner in value.items.items():
                    kwargs[key] = (inner, self.origin_of(frame, keyword.value))
            else:
                unknown = "unknown keyword arguments"
        if func.__class__ is External and func.name in _FRAMED:
            if func.name != "builtins.super":
                raise Imprecise(func.name)
            if not args:
                return self._super(frame)
        if unknown is not None:
            return self.opaque_call(func, args, kwargs, unknown)
        return self.call(func, args, kwargs)

    def _super(self, frame: Frame) -> Any:
        scope: Optional[Frame] = frame
        while scope is not None and not (scope.func is not None and scope.func.owner is not None):
            scope = scope.outer
        if scope is None:
            return Unknown("super() outside a class")
        first = next(iter(_parameters(scope.func.node)), None)
        slot = scope.locals.get(first)
        return Super(scope.func.owner, slot[0]) if slot else Unknown("super() without self")

    def call(self, func: Any, args: list, kwargs: dict) -> Any:
        if func.__class__ is Func:
            return self.call_function(func, args, kwargs)
        if isinstance(func, Bound):
            return self.call_function(func.func, [(func.self, None), *args], kwargs)
        if isinstance(func, Partial):
            return self.call(func.func, [*func.args, *args], {**func.kwargs, **kwargs})
        if isinstance(func, Method):
            return self.call_method(func, args, kwargs)
        if isinstance(func, External):
            known = self.library.get(func.name)
            if known is not None:
                return known(args, kwargs)
            return self.opaque_call(func, args, kwargs)
        if isinstance(func, Class):
            return self._guarded(lambda: self.instantiate(func, args, kwargs), func, args, kwargs)
        if isinstance(func, Unknown):
            return self.opaque_call(func, args, kwargs)
        if isinstance(func, Obj):
            slot = self.class_slot(func.cls, "__call__") if isinstance(func.cls, Class) else MISSING
            if slot is not MISSING and isinstance(slot[0], Func):
                return self.call_function(slot[0], [(func, None), *args], kwargs)
            return self.opaque_call(func, args, kwargs)
        raise Raised(TypeError, f"{describe(func)} is not callable")

    def opaque_call(self, func: Any, args: list, kwargs: dict, why: str = "") -> Any:
        """A call of something that cannot be followed: what it can reach may have changed."""
        name = describe(func) if not isinstance(func, Unknown) else func.reason
        self.may_raise = True
        values = [v for v, _ in args] + [v for v, _ in kwargs.values()]
        if isinstance(func, External) and not why:
            if _is_class_name(func.name):
                made = Obj(func, self.next_serial(), f"made by {func.name}", True, True)
                for key, (value, origin) in kwargs.items():
                    made.attrs[key] = (value, origin, False)
                return made
            if func.name.split(".")[0] in _HARMLESS:
                return Unknown(f"the result of {func.name}()", not any(isinstance(v, Obj) for v in values), self.next_serial())
        reason = f"{why + ': ' if why else ''}was passed to {name}, which is not followed"
        for value in values:
            self.havoc(value, reason)
        if isinstance(func, Bound):
            self.havoc(func.self, reason)
        fresh = not any(isinstance(v, (Obj, Class)) for v in values) and (
            isinstance(func, External) or (isinstance(func, Unknown) and func.fresh) or isinstance(func, (Func, Bound, Class))
        )
        made = Unknown(f"the result of {name}" if not isinstance(func, Unknown) else name, fresh, self.next_serial())
        self._published(made, func, args)
        return made

    def _published(self, made: Unknown, func: Any, args: list) -> None:
        """What comes from a published model, and from what comes from it, has that model's facts as its defaults."""
        if self.published is None:
            return
        if isinstance(func, Unknown):
            name = func.attrs.get(PUBLISHED, (None,))[0]
        else:
            loads = isinstance(func, External) and func.name.replace(":", ".").rpartition(".")[2] in _LOADERS
            name = args[0][0] if loads and args else None
        if isinstance(name, str):
            made.attrs[PUBLISHED] = (name, None, True)
            made.attrs.update((field, (value, None, True)) for field, value in self.published(name).items())

    # Functions of the repository

    def make_function(self, frame: Frame, node) -> Any:
        at_module = frame.names is None and frame.owner is None and frame.outer is None
        scope = None if at_module else frame
        if frame.owner is not None and frame.names is None:
            scope = frame.outer
        defaults = (
            [(self.eval(frame, d), self.origin_of(frame, d)) for d in node.args.defaults],
            [None if d is None else (self.eval(frame, d), self.origin_of(frame, d)) for d in node.args.kw_defaults],
        )
        made = Func(getattr(node, "name", "<lambda>"), frame.path, frame.chunk, node, scope, defaults)
        if frame.owner is not None and frame.names is None:
            made.owner = frame.owner
        value: Any = made
        for decorator in reversed(getattr(node, "decorator_list", [])):
            value = self._decorate(frame, decorator, made, value)
        return value

    def _decorate(self, frame: Frame, decorator: ast.expr, made: Func, value: Any) -> Any:
        name = last_word(decorator)
        if name in ("property", "staticmethod", "classmethod", "cached_property"):
            made.decorated = "property" if name == "cached_property" else name
            return value
        if name in _SAFE_DECORATORS:
            return value
        applied = self.eval(frame, decorator)
        if isinstance(applied, (External, Unknown)):
            return Unknown(f"{made.name} has decorator {name}, which is not followed")
        return self.call(applied, [(value, None)], {})

    def call_function(self, func: Func, args: list, kwargs: dict) -> Any:
        if func.name in _HOOKED:
            found = self.hook(func, args, kwargs)
            if found is not MISSING:
                return found
        key = self._memo_key(func, args, kwargs)
        if key is None:
            def run():
                return self._guarded(lambda: self._enter(func, args, kwargs), func, args, kwargs)

            return self.replayed(func, args, kwargs, run) if self.is_replayable(func, args, kwargs) else run()
        memo = self.memos.get(key)
        if memo is not None and not self.globals_changed and self.holds(key):
            self.deps["memo", key] = memo.version
            value, may_raise, raised = memo.value
            self.may_raise |= may_raise
            if raised is not None:
                raise Raised(*raised)
            return self.clone(value)
        return self._remember(key, func, args, kwargs)

    def _memo_key(self, func: Func, args: list, kwargs: dict) -> Optional[tuple]:
        if func.frame is not None or func.owner is not None or self.shared or func.key is None:
            return None
        parts: list = ["call", func.key]
        for name, (value, origin) in [*enumerate(args), *kwargs.items()]:
            if not is_primitive(value) and value.__class__ is not External:
                return None
            parts.append((name, type(value).__name__, value.name if isinstance(value, External) else value, origin))
        return tuple(parts)

    def _remember(self, key, func: Func, args: list, kwargs: dict) -> Any:
        """A call with plain arguments that writes to nothing it did not make: a copy of its result is kept."""
        outer, self.deps = self.deps, {}
        outer_raise, self.may_raise = self.may_raise, False
        outer_lowest, self.lowest_write = self.lowest_write, 1 << 60
        start = self.next_serial()
        one_off, self.one_off = self.one_off, False
        kept = None

        def keep(value: Any, raised: Optional[tuple] = None) -> None:
            nonlocal kept
            if self.lowest_write > start and not self.globals_changed and not self.one_off:
                try:
                    outcome = (self.clone(value), self.may_raise, raised)
                    kept = self.keep(key, outcome, lambda: self._again(key, func, args, kwargs))
                except Imprecise:
                    pass

        try:
            value = self._guarded(lambda: self._enter(func, args, kwargs), func, args, kwargs)
            keep(value)
            return value
        except Raised as error:
            keep(None, (error.kind, error.text))
            raise
        finally:
            if kept is None:
                outer.update(self.deps)
            else:
                outer["memo", key] = kept.version
            self.deps = outer
            self.may_raise |= outer_raise
            self.lowest_write = min(self.lowest_write, outer_lowest)
            self.one_off |= one_off

    def _again(self, key, func: Func, args: list, kwargs: dict) -> tuple:
        """What ``_remember`` keeps, computed at another revision. Raises Imprecise where nothing can be kept."""
        slot = self.symbol(func.path, func.name)
        if slot is MISSING or not isinstance(slot[0], Func) or slot[0].key != func.key:
            raise Imprecise("the function is another one now")
        start = self.next_serial()
        value, raised = None, None
        try:
            value = self._guarded(lambda: self._enter(slot[0], args, kwargs), slot[0], args, kwargs)
        except Raised as error:
            raised = (error.kind, error.text)
        if self.lowest_write <= start or self.globals_changed or self.one_off:
            raise Imprecise("the call has effects")
        return (self.clone(value), self.may_raise, raised)

    def _guarded(self, run, func, args: list, kwargs: dict) -> Any:
        """Runs a call; where it cannot be followed its effects are unknown instead."""
        mark = len(self.trail)
        depth = self.depth
        self.depth += 1
        try:
            if self.depth > MAX_DEPTH:
                raise Exhausted("its calls are nested too deeply")
            return run()
        except Imprecise as error:
            self.undo(mark)
            return self.opaque_call(func, args, kwargs, error.reason)
        finally:
            self.depth = depth

    def _enter(self, func: Func, args: list, kwargs: dict) -> Any:
        node = func.node
        if func.path.startswith(BOUNDARY) or func.name in _LOADERS:
            return self.opaque_call(External(f"{func.path}:{func.name}"), [a for a in args if not isinstance(a[0], Class)], kwargs)
        names, generator = self.shape(node, func)
        frame = Frame(func.path, func.chunk, outer=func.frame, func=func, names=names)
        if func.owner is not None:
            frame.owner = func.owner
        if isinstance(node, ast.Lambda):
            self._bind_arguments(frame, node.args, func, args, kwargs)
            return self.eval(frame, node.body)
        if isinstance(node, ast.AsyncFunctionDef) or generator:
            raise Imprecise("a generator")

        def run():
            self._bind_arguments(frame, node.args, func, args, kwargs)
            signal = self.block(frame, node.body)
            return signal[1] if signal is not None and signal[0] == "return" else None

        return self.run_paths(frame, run)

    def shape(self, node, func: Func) -> tuple[frozenset, bool]:
        """(names local to the function, whether it is a generator)."""
        key = (func.chunk, node.lineno, node.col_offset)
        found = self.shapes.get(key)
        if found is None:
            if len(self.shapes) > 20_000:
                self.shapes.clear()
            found = self.shapes[key] = _shape(node)
        return found

    def _bind_arguments(self, frame: Frame, spec: ast.arguments, func: Func, args: list, kwargs: dict) -> None:
        positional = [*spec.posonlyargs, *spec.args]
        defaults, keyword_defaults = func.defaults
        given = dict(kwargs)
        extra = args[len(positional) :]
        if extra and spec.vararg is None:
            raise Raised(TypeError, f"{func.name}() got too many arguments")
        for parameter, slot in zip(positional, args):
            if parameter.arg in given and parameter not in spec.posonlyargs:
                raise Raised(TypeError, f"{func.name}() got {parameter.arg} twice")
            self.put(frame.locals, parameter.arg, (slot[0], slot[1], False))
        offset = len(positional) - len(defaults)
        for index, parameter in enumerate(positional[len(args) :], len(args)):
            self._bind_one(frame, parameter.arg, given, defaults[index - offset] if index >= offset else None, func)
        for parameter, default in zip(spec.kwonlyargs, keyword_defaults):
            self._bind_one(frame, parameter.arg, given, default, func)
        if spec.vararg is not None:
            self.put(frame.locals, spec.vararg.arg, (tuple(v for v, _ in extra), None, False))
        if spec.kwarg is not None:
            rest = self.new_dict({k: v for k, (v, _) in given.items()})
            self.put(frame.locals, spec.kwarg.arg, (rest, None, False))
        elif given:
            raise Raised(TypeError, f"{func.name}() got an unexpected argument {next(iter(given))}")

    def _bind_one(self, frame, name, given, default, func) -> None:
        slot = given.pop(name, default)
        if slot is None:
            raise Raised(TypeError, f"{func.name}() misses argument {name}")
        self.put(frame.locals, name, (slot[0], slot[1], False))


def _shape(node) -> tuple[frozenset, bool]:
    """Asks Python's own compiler, which knows scoping; the code it makes is never run."""
    bare = node
    if not isinstance(node, ast.Lambda):
        bare = type(node)(**{f: getattr(node, f) for f in node._fields})
        bare.decorator_list, bare.returns = [], None
        ast.copy_location(bare, node)
    statement = ast.copy_location(ast.Expr(bare), node) if isinstance(node, ast.Lambda) else bare
    try:
        outer = compile(ast.Module([statement], []), "<recipe>", "exec", dont_inherit=True)
        code = [c for c in outer.co_consts if hasattr(c, "co_varnames")][-1]
        return frozenset((*code.co_varnames, *code.co_cellvars)), bool(code.co_flags & inspect.CO_GENERATOR)
    except (SyntaxError, ValueError, IndexError):
        # A nonlocal name of an outer function: the names are found the slow way.
        stored = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
        yields = any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in ast.walk(node))
        return frozenset(stored.union(_parameters(node))), yields


def _parameters(node) -> list[str]:
    spec = node.args
    found = [a.arg for a in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)]
    return found + [a.arg for a in (spec.vararg, spec.kwarg) if a is not None]


def _is_class_name(dotted: str) -> bool:
    last = dotted.rpartition(".")[2]
    return last[:1].isupper() and not last.isupper() and "." in dotted
