"""Whether a measurement holds for another commit because the code that ran is the same there."""

from __future__ import annotations

from collections.abc import Mapping

from bisect_recompute.probe.result import ProbeResult, digest


def same_code(result: ProbeResult, tree: Mapping[str, str]) -> bool:
    """``tree`` (path -> blob id) holds every file that the probe loaded, opened or listed, unchanged, and none that it missed.

    Only for measurements: of a probe that failed it is not known which files it would have loaded.
    """
    proof = result.provenance
    if result.status not in ("ok", "oom") or proof is None or not proof.modules:
        return False
    if any(tree.get(path) != blob for path, blob in proof.modules.items()):
        return False
    tops = {path.partition("/")[0] for path in tree} | {path[: path.find("/", 4)] for path in tree if path.startswith("src/")}
    if any((path[:-1] in tops) if path.endswith("/") else (path in tree) for path in proof.absent):
        return False
    return all(digest(tree, folder) == known for folder, known in proof.listed.items())
