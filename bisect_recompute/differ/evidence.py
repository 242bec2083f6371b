"""What each commit of a range changes in recompute settings and recompute source, and how much that makes it a suspect."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Iterator, Optional, Sequence

from bisect_recompute.differ.source.paths import GITLINK, PathChange, changed_paths
from bisect_recompute.history.commit import Commit


@dataclass(frozen=True)
class SettingChange:
    recipe: str
    field: str
    old: object
    new: object
    file: str
    line: int


@dataclass(frozen=True)
class SourceChange:
    file: str
    symbol: str
    """Class and function, dotted; empty at module level."""
    kind: str
    """One of the contract's kinds."""
    line: int
    """Line of the new code, of the old code where it was removed; 0 when the file as a whole is meant."""
    detail: str
    """One sentence: what it means for someone whose own settings did not change."""


@dataclass(frozen=True)
class CommitChanges:
    commit: Commit
    kinds: tuple[str, ...]
    """Contract kinds; ("none",) when nothing about recompute changes."""
    changes: tuple[SettingChange, ...] = ()
    source: tuple[SourceChange, ...] = ()


_FIELD = re.compile(
    rb"recompute[_-](?:granularity|method|num[_-]layers|modules|activations)|distribute[_-]saved[_-]activations"
    rb"|cpu[_-]offloading|fine[_-]grained[_-]activation[_-]offload|offload[_-]modules|moe[_-]layer[_-]recompute"
)
_SITE = re.compile(
    rb"tensor_parallel\.checkpoint|te_checkpoint|CheckpointWithoutOutput|_?checkpointed_forward|CheckpointFunction"
    rb"|save_original_input|checkpoint\.checkpoint\(|discard_output_and_register_recompute"
)
_COMMENT = re.compile(rb"\s*#.*$")


def recompute_changes(repository, commits: Sequence[Commit]) -> list[CommitChanges]:
    """One entry per commit, in order. Reads git objects only; memoised by blob."""
    lines_of = lru_cache(maxsize=None)(lambda blob: _lines(repository.read_blob(blob) if blob else None))
    by_commit = changed_paths(repository.git_dir, commits)
    return [_changes_of(commit, by_commit[commit.sha], lines_of) for commit in commits]


def weight(changes: CommitChanges) -> float:
    """Prior that the commit is the first bad one, relative to the others: an order for the search, never a filter."""
    return 1.0 if changes.kinds == ("none",) else 10.0


def _changes_of(commit: Commit, paths: list[PathChange], lines_of) -> CommitChanges:
    found: list[SourceChange] = []
    old_lines: Counter = Counter()
    new_lines: Counter = Counter()
    places: dict[bytes, tuple[str, int]] = {}
    for change in paths:
        if GITLINK in (change.old_mode, change.new_mode):
            found.append(SourceChange(change.path, "", "submodule", 0, f"submodule moves {change.old} -> {change.new}"))
        elif _is_source(change.path):
            for text, line in lines_of(change.old):
                old_lines[text] += 1
                places.setdefault(text, (change.path, line))
            for text, line in lines_of(change.new):
                new_lines[text] += 1
                places[text] = (change.path, line)
    for text in sorted(old_lines.keys() | new_lines.keys(), key=lambda t: places[t]):
        if old_lines[text] != new_lines[text]:
            file, line = places[text]
            sign = "added" if new_lines[text] > old_lines[text] else "removed"
            found.append(SourceChange(file, "", _kind(text), line, f"{sign}: {text.decode('utf-8', 'replace')}"))
    kinds = tuple(dict.fromkeys(change.kind for change in found))
    return CommitChanges(commit, kinds or ("none",), (), tuple(found))


def _is_source(path: str) -> bool:
    return path.endswith((".py", ".sh", ".yaml", ".yml")) and not re.search(r"(^|/)(tests?|docs?)/", path)


def _lines(blob: Optional[bytes]) -> list[tuple[bytes, int]]:
    if not blob or not (_FIELD.search(blob) or _SITE.search(blob)):
        return []
    return list(_matching(blob))


def _matching(blob: bytes) -> Iterator[tuple[bytes, int]]:
    for number, line in enumerate(blob.split(b"\n"), 1):
        if _FIELD.search(line) or _SITE.search(line):
            text = b" ".join(_COMMENT.sub(b"", line).split()).rstrip(b",")
            if text:
                yield text, number


def _kind(text: bytes) -> str:
    if _SITE.search(text):
        return "checkpoint-site"
    if text.startswith((b"assert", b"raise")):
        return "validation"
    if re.match(rb"\w+\s*:[^=]+=|.*add_argument\(", text):
        return "default"
    return "plumbing"
