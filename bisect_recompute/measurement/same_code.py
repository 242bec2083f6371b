"""Whether a measurement holds for another commit because the code that ran is the same there."""

from __future__ import annotations

from collections.abc import Mapping

from bisect_recompute.probe.result import ProbeResult


def same_code(result: ProbeResult, tree: Mapping[str, str]) -> bool:
    """``tree`` (path -> blob id) holds every module that the probe loaded, unchanged, and none that it missed.

    Only for measurements: of a probe that failed it is not known which files it would have loaded.
    """
    proof = result.provenance
    if result.status not in ("ok", "oom") or proof is None or not proof.modules:
        return False
    return all(tree.get(path) == blob for path, blob in proof.modules.items()) and not any(
        path in tree for path in proof.absent
    )
