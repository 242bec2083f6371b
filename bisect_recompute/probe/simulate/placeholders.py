"""Modules that must import and whose work touches no memory of ours: Triton (a kernel launch only writes into tensors
that its caller has allocated), Transformer Engine's ONNX export (never called in training), the profiler's marks, old packaging helpers."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import sys
import types


class _Anything:
    """Stands for any object of a placeholder module: attributes, calls, items and decorations lead to more of it."""

    def __init__(self, name="placeholder"):
        self.__name__ = name

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return _Anything(f"{self.__name__}.{name}")

    def __call__(self, *args, **kwargs):
        if len(args) == 1 and not kwargs and isinstance(args[0], types.FunctionType):
            return _Kernel(args[0])
        return _Anything(f"{self.__name__}()")

    def __getitem__(self, key):
        return self

    def __mro_entries__(self, bases):
        return (object,)

    def __or__(self, other):
        return self

    __ror__ = __or__


class _Kernel(_Anything):
    """A decorated function: launching it (``kernel[grid](...)``) allocates nothing."""

    def __init__(self, function):
        super().__init__(getattr(function, "__name__", "kernel"))
        self.fn = function

    def __call__(self, *args, **kwargs):
        return None

    def __getitem__(self, grid):
        return self


class _Unmarked(contextlib.ContextDecorator):
    """A profiler's range that nobody records, around a block or a function."""

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return None


class PlaceholderModule(types.ModuleType):
    def __init__(self, name, **values):
        super().__init__(name)
        self.__path__ = []
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        self.__dict__.update(values)

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return _Anything(f"{self.__name__}.{name}")


def register(modules: dict[str, dict]):
    """Module name -> what it has, and nothing else: a kernel that nobody has described must be missed."""
    for name, content in modules.items():
        sys.modules[name] = module = importlib.util.module_from_spec(
            importlib.machinery.ModuleSpec(name, None, is_package=True)
        )
        module.__dict__.update(content)


class PlaceholderFinder:
    """Answers for submodules of the placeholder packages."""

    def __init__(self, roots):
        self.roots = tuple(roots)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.roots:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return PlaceholderModule(spec.name)

    def exec_module(self, module):
        pass


def install():
    triton = PlaceholderModule(
        "triton",
        __version__="3.6.0",
        cdiv=lambda a, b: -(-a // b),
        next_power_of_2=lambda n: 1 << max(n - 1, 0).bit_length(),
    )
    sys.modules["triton"] = triton
    sys.meta_path.insert(0, PlaceholderFinder(["triton"]))
    if importlib.util.find_spec("pkg_resources") is None:  # left setuptools in 2026; Megatron Core of 2024 imports it
        import packaging.version

        sys.modules["pkg_resources"] = PlaceholderModule("pkg_resources", packaging=packaging)
    sys.modules["nvtx"] = PlaceholderModule("nvtx", annotate=lambda *args, **kwargs: _Unmarked())
    sys.modules["transformer_engine.pytorch.onnx_extensions"] = PlaceholderModule(
        "transformer_engine.pytorch.onnx_extensions"
    )
