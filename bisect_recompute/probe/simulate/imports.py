"""Imports the commit's own modules, from its worktree only, and keeps the proof of it.

The classic failure of a bisect made by hand is to measure the Megatron that the image ships. Here a package that the
worktree has can come from nowhere else; each file loaded and each file looked for in vain is recorded.
"""

from __future__ import annotations

import _imp
import hashlib
import importlib.machinery
import importlib.metadata
import marshal
import os
import sys
from pathlib import Path

from bisect_recompute.probe.result import Provenance, digest


class ForeignModule(ImportError):
    """A module of the commit's packages would be loaded from outside its worktree."""


class CommitFinder:
    """First entry of ``sys.meta_path``: answers for every top-level name that the worktree has."""

    def __init__(self, tree: Path, bytecode: Path):
        self.tree = str(tree)
        self.bytecode = bytecode
        self.absent: set[str] = set()
        self.loaded: set[str] = set()
        self.listed: set[str] = set()
        self.roots = {
            entry.name.removesuffix(".py")
            for entry in os.scandir(tree)
            if (entry.is_dir() and entry.name.isidentifier()) or entry.name.endswith(".py")
        }
        if os.path.isdir(os.path.join(self.tree, "src")):
            self.roots |= {entry.name for entry in os.scandir(os.path.join(self.tree, "src")) if entry.is_dir()}

    def find_spec(self, name, path=None, target=None):
        root = name.partition(".")[0]
        if root not in self.roots:
            if "." not in name:  # a later commit may add a module of this name, which would come first
                self.absent.update((f"{name}.py", f"{name}/", f"src/{name}/"))
            return None
        if path is None:
            path = [self.tree, os.path.join(self.tree, "src")]
        else:
            path = [entry for entry in path if self._inside(entry)]
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None:
            relative = name.replace(".", "/")
            for base in path:
                relative = os.path.relpath(os.path.join(base, name.rpartition(".")[2]), self.tree)
                self.absent.update((f"{relative}.py", f"{relative}/__init__.py"))
            if root in sys.modules or "." in name:
                raise ModuleNotFoundError(f"No module named {name!r} in this commit", name=name)
            return None
        if spec.origin is None:  # a namespace package: keep other distributions of that name out
            spec.submodule_search_locations = [p for p in spec.submodule_search_locations if self._inside(p)]
            return spec
        if not self._inside(spec.origin):
            raise ForeignModule(f"{name} would be loaded from {spec.origin}, outside the commit")
        self.loaded.add(spec.origin)
        if isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _CachedLoader(name, spec.origin, self.bytecode)
            spec.cached = None
        return spec

    def _inside(self, path: str) -> bool:
        return os.path.realpath(path).startswith(os.path.realpath(self.tree) + os.sep)

    def install(self):
        sys.meta_path.insert(0, self)
        self._watch_files()
        sys.path.insert(0, self.tree)
        if os.path.isdir(os.path.join(self.tree, "src")):
            sys.path.insert(0, os.path.join(self.tree, "src"))

    def _watch_files(self):
        """What the commit's code opens, lists or asks for decides what it does, like what it imports."""
        real = os.path.realpath(self.tree)
        prefixes = (self.tree + os.sep, real + os.sep)

        def look(path):
            if isinstance(path, int):
                return
            try:
                full = os.path.join(os.getcwd(), os.fsdecode(path))
            except (TypeError, ValueError, OSError):
                return
            if not os.path.normpath(full).startswith(prefixes):
                return
            if os.path.isfile(full):
                self.loaded.add(os.path.normpath(full))
            elif not os.path.lexists(full):
                self.absent.add(self._relative(full))

        def hook(event, arguments):
            if event == "open":
                look(arguments[0])
            elif event in ("os.listdir", "os.scandir") and not _asked_by_import():
                path = os.path.realpath(os.fsdecode(arguments[0] or ".")) if not isinstance(arguments[0], int) else ""
                if (path + os.sep).startswith(real + os.sep):
                    self.listed.add(os.path.relpath(path, real))

        sys.addaudithook(hook)
        real_stat = os.stat

        def stat(path, *args, **kwargs):
            if not _inside_look():
                look(path)
            return real_stat(path, *args, **kwargs)

        def _inside_look():
            return sys._getframe(2).f_code.co_filename == _GENERIC_PATH and sys._getframe(3).f_code is look.__code__

        os.stat = stat

    def _relative(self, path: str) -> str:
        return os.path.relpath(os.path.normpath(path), self.tree)

    def _files(self) -> set[str]:
        """Repository paths of what was loaded or opened; a link and what it leads to both count."""
        files = set()
        for path in self.loaded:
            files.add(self._relative(path))
            real = os.path.realpath(path)
            if self._inside(real):
                files.add(os.path.relpath(real, os.path.realpath(self.tree)))
        return files

    def provenance(self, blobs, packages: dict[str, str], attention_backend: str) -> Provenance:
        """Raises ForeignModule when a ``megatron`` module came from elsewhere although the commit has Megatron Core."""
        own = os.path.isdir(os.path.join(self.tree, "megatron", "core"))
        for name, module in list(sys.modules.items()):
            origin = getattr(module, "__file__", None)
            if name.partition(".")[0] in self.roots and origin and not self._inside(origin):
                raise ForeignModule(f"{name} was loaded from {origin}, outside the commit")
        if not own:
            self._refuse_other_core()
        return Provenance(
            modules={path: blobs.get(path, "") for path in sorted(self._files())},
            absent=tuple(sorted(self.absent)),
            listed={folder: digest(blobs, folder) for folder in sorted(self.listed)},
            packages=packages,
            megatron_source="worktree" if own else f"package megatron-core=={packages.get('megatron-core', '?')}",
            attention_backend=attention_backend,
        )


    def _refuse_other_core(self):
        """A recipe repository is measured on the installed Megatron Core; PYTHONPATH may hold another."""
        found = os.path.realpath(sys.modules["megatron.core"].__file__)
        installed = os.path.realpath(importlib.metadata.distribution("megatron-core").locate_file("megatron/core/__init__.py"))
        if found != installed:
            raise ForeignModule(f"megatron.core would be loaded from {found}, not from the installed megatron-core package")


_GENERIC_PATH = os.path.isfile.__code__.co_filename


def _asked_by_import() -> bool:
    """The import system and its metadata list every folder on the path; what they look for in vain is recorded by name."""
    name = sys._getframe(2).f_code.co_filename
    return name.startswith("<frozen importlib") or f"{os.sep}importlib{os.sep}" in name


class _CachedLoader(importlib.machinery.SourceFileLoader):
    """Keeps compiled code by the content of the source, so neighbouring commits compile only what differs and a
    checkout within one second of the last can never be served stale code."""

    def __init__(self, name, path, bytecode: Path):
        super().__init__(name, path)
        self._bytecode = bytecode

    def get_code(self, fullname):
        source = self.get_data(self.path)
        key = hashlib.sha256(f"{sys.version}\0".encode() + source).hexdigest()
        cached = self._bytecode / key[:2] / key
        try:
            code = marshal.loads(cached.read_bytes())
            _imp._fix_co_filename(code, self.path)  # another worktree may have compiled it
            return code
        except (OSError, ValueError, EOFError, TypeError):
            pass
        code = self.source_to_code(source, self.path)
        try:
            cached.parent.mkdir(parents=True, exist_ok=True)
            partial = cached.with_name(f"{key}.{os.getpid()}")
            partial.write_bytes(marshal.dumps(code))
            partial.replace(cached)
        except OSError:
            pass  # only a cache: the disk may be full
        return code
