"""Whether a measurement holds for another commit because the code that ran is the same there."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bisect_recompute.probe.result import ProbeResult, Provenance, digest

Tree = Mapping[str, str]
"""Path -> blob id of every file of a commit."""


def same_code(result: ProbeResult, tree: Tree) -> bool:
    """``tree`` holds every file that the probe loaded, opened or listed, unchanged, and none that it missed."""
    proof = proof_of(result)
    return proof is not None and _difference(proof, tree) is None


def proof_of(result: ProbeResult) -> Provenance | None:
    """Only of measurements: of a probe that failed it is not known which files it would have loaded."""
    measured = result.status in ("ok", "oom") and result.provenance is not None and result.provenance.modules
    return result.provenance if measured else None


def _difference(proof: Provenance, tree: Tree) -> str | None:
    """The first path in which the code is another; None: it is the same."""
    for path, blob in proof.modules.items():
        if tree.get(path) != blob:
            return path
    roots = {path.partition("/")[0] for path in tree}
    tops = roots | {path[: path.find("/", 4)] for path in tree if path.startswith("src/")}
    for path in proof.absent:
        if path[:-1] in tops if path.endswith("/") else path in tree:
            return path
    return next((folder for folder, known in proof.listed.items() if digest(tree, folder) != known), None)


class SameCode:
    """Finds, among many measurements, one that holds for a commit. Not thread-safe."""

    def __init__(self, tree: Callable[[str], Tree]):
        """``tree``: of a commit id."""
        self._tree = tree
        self._entries: list[tuple[Provenance, Callable[[], ProbeResult | None]]] = []
        # Where a measurement did not hold for the last commit asked about, it mostly does not for the next.
        self._differs: list[str | None] = []
        self._asked: dict[str, int] = {}
        self._trees: dict[str, Tree] = {}

    def add(self, result: ProbeResult) -> None:
        proof = proof_of(result)
        if proof is not None:
            self.add_entry(proof, lambda: result)

    def add_entry(self, proof: Provenance, read: Callable[[], ProbeResult | None]) -> None:
        """Of a measurement that is read when it is needed; None: it is gone by then."""
        self._entries.append((proof, read))
        self._differs.append(None)

    def find(self, sha: str) -> ProbeResult | None:
        """Asked again about the same commit, it looks only at what was added since."""
        first, self._asked[sha] = self._asked.get(sha, 0), len(self._entries)
        if sha not in self._trees and self._entries:
            self._trees[sha] = self._tree(sha)  # neighbouring commits mostly have the very same mapping
        tree = self._trees.get(sha, {})
        for number in range(first, len(self._entries)):
            (proof, read), path = self._entries[number], self._differs[number]
            if path in proof.modules and tree.get(path) != proof.modules[path]:
                continue
            self._differs[number] = _difference(proof, tree)
            if self._differs[number] is None and (result := read()) is not None:
                self._asked[sha] = 0  # it will be found again
                return result
        return None
