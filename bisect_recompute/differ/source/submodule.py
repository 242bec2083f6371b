"""Submodule bumps: which commits they bring and what those change."""

from __future__ import annotations

from typing import Iterable

from bisect_recompute.differ.source.change import SourceChange
from bisect_recompute.differ.source.words import is_tested_or_documented
from bisect_recompute.history.commit import ChangedPath


def submodule_changes(paths: Iterable[ChangedPath]) -> list[SourceChange]:
    """One change per submodule that the commit moves, adds or removes."""
    out = []
    for path in paths:
        if (path.old_commit or path.new_commit) and not is_tested_or_documented(path.path):
            if path.old_commit and path.new_commit:
                detail = f"moves from {path.old_commit} to {path.new_commit}: its own commits decide what changes"
            else:
                detail = f"added at {path.new_commit}" if path.new_commit else f"removed (was at {path.old_commit})"
            out.append(SourceChange(path.path, "", "submodule", 0, detail))
    return out
