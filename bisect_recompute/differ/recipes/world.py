"""The files of one revision as an importing interpreter would see them, and what an evaluation read of them."""

from __future__ import annotations

import re
from collections import Counter
from typing import Callable, Iterable, Mapping, Optional

from bisect_recompute.differ.recipes.arguments import parser_defaults
from bisect_recompute.differ.recipes.source import Chunks, SourceFile

ROOTS = ("src", "scripts/performance", "")
"""Directories that are on sys.path when recipes run."""

Dependency = tuple
"""("module", dotted) | ("name", path, name) | ("before", path, name, statement) | ("member", path, class, member) | ("argument", path, name) | ("file", path)"""


class World:
    """One revision at a time; ``move`` goes to a neighbour by its changed paths."""

    def __init__(self, read_blob: Callable[[str], Optional[bytes]], tree: Mapping[str, str]):
        self._read = read_blob
        self.chunks = Chunks()
        self._files: dict[str, SourceFile] = {}
        self._used: Counter = Counter()
        self._parsers: dict = {}
        self.epoch = 0
        self.touched: dict[str, int] = {}
        """Path -> epoch of its last change."""
        self.modules_at = 0
        """Epoch of the last added or removed file: names of modules may lead elsewhere."""
        self._load(tree)

    def _load(self, tree: Mapping[str, str]) -> None:
        self.tree = {path: blob for path, blob in tree.items() if relevant(path)}
        self._directories: Counter = Counter()
        for path in self.tree:
            self._count(path, 1)
        self._modules: dict[str, Optional[str]] = {}

    def move(self, changed: Iterable[tuple[str, Optional[str]]]) -> list[str]:
        """Applies (path, new blob or None) and returns the relevant paths that really changed."""
        self.epoch += 1
        paths = []
        for path, blob in changed:
            old = self.tree.get(path)
            if not relevant(path) or old == blob:
                continue
            paths.append(path)
            self.touched[path] = self.epoch
            if blob is None:
                del self.tree[path]
                self._count(path, -1)
            else:
                if old is None:
                    self._count(path, 1)
                self.tree[path] = blob
            if old is None or blob is None:
                self._modules.clear()
                self.modules_at = self.epoch
        return paths

    def differences(self, tree: Mapping[str, str]) -> list[tuple[str, Optional[str]]]:
        """(path, blob or None) of all that ``move`` has to be given to get to a tree."""
        here = self.tree
        return [(path, tree.get(path)) for path in here.keys() | tree.keys() if here.get(path) != tree.get(path)]

    def _count(self, path: str, step: int) -> None:
        parts = path.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            self._directories["/".join(parts[:depth])] += step

    def file(self, path: str) -> Optional[SourceFile]:
        """The file at a path; None where the revision has none."""
        blob = self.tree.get(path)
        return None if blob is None else self.file_of(blob)

    def text(self, path: str) -> Optional[bytes]:
        blob = self.tree.get(path)
        return None if blob is None else self._read(blob)

    def file_of(self, blob: str) -> SourceFile:
        found = self._files.get(blob)
        if found is None:
            if len(self._files) > 3000:
                live = set(self.tree.values())
                self._files = {b: f for b, f in self._files.items() if b in live}
            found = self._files[blob] = self.chunks.split(blob, self._read(blob))
        return found

    def find_module(self, dotted: str) -> Optional[str]:
        """Path of a module's file, "dir/" for a package without ``__init__.py``, None where it is not in the tree."""
        if dotted not in self._modules:
            self._modules[dotted] = self._search(dotted)
        return self._modules[dotted]

    def _search(self, dotted: str) -> Optional[str]:
        inner = dotted.replace(".", "/")
        directory = None
        for root in ROOTS:
            path = f"{root}/{inner}" if root else inner
            if root == "" and not inner.startswith("src/") and not _OWN_PACKAGE.match(f"{inner}/"):
                continue
            for candidate in (f"{path}/__init__.py", f"{path}.py"):
                if candidate in self.tree:
                    return candidate
            if directory is None and self._directories.get(path, 0) > 0:
                directory = f"{path}/"
        return directory

    def fingerprint(self, dependency: Dependency) -> Optional[str]:
        """What the dependency looks like at this revision; equal fingerprints mean an equal evaluation."""
        kind = dependency[0]
        if kind == "module":
            return self.find_module(dependency[1])
        if kind == "file":
            return self.tree.get(dependency[1])
        if kind == "argument":
            return self.parser_defaults(dependency[1]).get(dependency[2])
        file = self.file(dependency[1])
        if file is None:
            return None
        if kind == "name":
            return file.fingerprint(dependency[2])
        if kind == "before":
            return file.fingerprint_before(dependency[2], dependency[3])
        return file.member(dependency[2], dependency[3])

    def parser_defaults(self, path: str) -> dict[str, str]:
        """Argument -> its default as source ("?" where that is no literal); "" -> what the parsing function returns."""
        blob = self.tree.get(path)
        if blob not in self._parsers:
            self._parsers[blob] = parser_defaults(self.text(path))
        return self._parsers[blob]

    def line(self, origin: Optional[tuple]) -> tuple[str, int]:
        """(path, line) of an origin (path, chunk, line in the chunk), as of this revision."""
        if origin is None:
            return "", 0
        path, chunk, line = origin
        if chunk is None:
            return path, line
        file = self.file(path)
        return path, file.line(chunk, line) if file else 0


_OWN_PACKAGE = re.compile(r"[^/]*recipes[^/]*/")
"""A repository of recipes alone, its package at the root."""


def relevant(path: str) -> bool:
    if path.endswith(".py"):
        return path.startswith(("src/", "scripts/performance/")) or _OWN_PACKAGE.match(path) is not None
    return path.startswith("scripts/performance/") and path.endswith((".yaml", ".yml"))


def module_name(path: str) -> str:
    """Dotted name of a file's module."""
    for root in ROOTS:
        if root and path.startswith(f"{root}/"):
            path = path[len(root) + 1 :]
            break
    path = path.removesuffix(".py").removesuffix("/__init__")
    return path.replace("/", ".")
