"""Whether a measurement holds for another commit because the code that ran is the same there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from bisect_recompute.probe.result import ProbeResult, digest

@dataclass(frozen=True)
class Footprint:
    """What a probe looked at in a commit: commits that agree in all of it have the same code."""

    files: tuple[str, ...]
    """Modules loaded and files opened, sorted."""
    absent: tuple[str, ...]
    """As in Provenance."""
    listed: tuple[str, ...]

    @classmethod
    def of(cls, result: ProbeResult) -> Footprint | None:
        """Only of measurements: of a probe that failed it is not known which files it would have loaded."""
        proof = result.provenance
        if result.status not in ("ok", "oom") or proof is None or not proof.modules:
            return None
        return cls(tuple(sorted(proof.modules)), tuple(sorted(proof.absent)), tuple(sorted(proof.listed)))

    def fingerprint(self, code: Code) -> str | None:
        """Equal where the code is the same; None where the commit has a file that the probe looked for in vain."""
        if any(path[:-1] in code.tops if path.endswith("/") else path in code.tree for path in self.absent):
            return None
        return _hash([code.tree.get(path, "none") for path in self.files], [code.digest(folder) for folder in self.listed])


class Code:
    """The files of a commit: path -> blob id."""

    def __init__(self, tree: Mapping[str, str]):
        self.tree = tree

    @cached_property
    def tops(self) -> set[str]:
        """Names at the root and under src/."""
        below = {path[: path.find("/", 4)] for path in self.tree if path.startswith("src/")}
        return below | {path.partition("/")[0] for path in self.tree}

    def digest(self, folder: str) -> str:
        return digest(self.tree, folder)


def own_fingerprint(result: ProbeResult) -> str:
    """The fingerprint of the commit that was measured, with the result's footprint."""
    files, listed = result.provenance.modules, result.provenance.listed
    return _hash([files[path] for path in sorted(files)], [listed[folder] for folder in sorted(listed)])


def same_code(result: ProbeResult, tree: Mapping[str, str]) -> bool:
    """``tree`` holds every file that the probe loaded, opened or listed, unchanged, and none that it missed."""
    footprint = Footprint.of(result)
    return footprint is not None and footprint.fingerprint(Code(tree)) == own_fingerprint(result)


class SameCode:
    """Finds, among many measurements, one that holds for a commit. Not thread-safe."""

    def __init__(self, tree: Callable[[str], Mapping[str, str]]):
        """``tree``: of a commit id."""
        self._tree = tree
        self._entries: list[tuple[int, str, Callable[[], ProbeResult | None]]] = []
        self._footprints: dict[Footprint, int] = {}
        self._codes: dict[str, Code] = {}
        self._fingerprints: dict[tuple[str, int], str | None] = {}
        self._asked: dict[str, int] = {}

    def add(self, result: ProbeResult) -> None:
        footprint = Footprint.of(result)
        if footprint is not None:
            self.add_entry(footprint, own_fingerprint(result), lambda: result)

    def add_entry(self, footprint: Footprint, fingerprint: str, read: Callable[[], ProbeResult | None]) -> None:
        """Of a measurement that is read when it is needed; None: it is gone by then."""
        number = self._footprints.setdefault(footprint, len(self._footprints))
        self._entries.append((number, fingerprint, read))

    def find(self, sha: str) -> ProbeResult | None:
        """Asked again about the same commit, it looks only at what was added since."""
        first, self._asked[sha] = self._asked.get(sha, 0), len(self._entries)
        known = list(self._footprints)
        for number, fingerprint, read in self._entries[first:]:
            key = (sha, number)
            if key not in self._fingerprints:
                if sha not in self._codes:
                    self._codes[sha] = Code(self._tree(sha))
                self._fingerprints[key] = known[number].fingerprint(self._codes[sha])
            if self._fingerprints[key] == fingerprint and (result := read()) is not None:
                self._asked[sha] = 0  # it will be found again
                return result
        return None


def _hash(files: list[str], listed: list[str]) -> str:
    return hashlib.sha256("\n".join([*files, "", *listed]).encode()).hexdigest()
