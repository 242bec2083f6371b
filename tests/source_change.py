"""One real commit between two states of some files, as the differ sees it."""

from __future__ import annotations

import textwrap

from bisect_recompute.differ.evidence import CommitChanges, recompute_changes
from bisect_recompute.history.repository import Repository

BLOCK = "megatron/core/transformer/transformer_block.py"
CONFIG = "megatron/core/transformer/transformer_config.py"


def dedent(files: dict) -> dict:
    return {path: textwrap.dedent(text) if isinstance(text, str) else text for path, text in files.items()}


def changes_between(repo, before: dict, after: dict) -> CommitChanges:
    """What the commit that turns ``before`` into ``after`` changes; files that ``after`` leaves out are deleted."""
    repo.commit("before", dedent(before))
    gone = {path: None for path in before if path not in after}
    sha = repo.commit("after", {**gone, **dedent(after)})
    repository = Repository(repo.path)
    return recompute_changes(repository, [repository.commit(sha)])[0]


def details(changes: CommitChanges, kind: str) -> list[str]:
    return [c.detail for c in changes.source if c.kind == kind]
