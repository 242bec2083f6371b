"""The run as a log that ``git bisect replay`` accepts and that leaves git with the same first bad commit."""

from __future__ import annotations

from bisect_recompute.report.text import plain
from bisect_recompute.verdict.decide import LONGEST_SUBJECT
from bisect_recompute.verdict.findings import Findings


def bisect_log(f: Findings) -> str:
    """Good commits oldest first, then bad ones newest first, as git keeps the last bad one, then those skipped.

    Only answers about the last bad commit and what leads to it: to git a good commit above a bad one contradicts it.
    """
    start = "'--first-parent' " if f.first_parent else ""
    lines = [f"git bisect start {start}'{f.range.bad.sha}' '{f.range.good.sha}'"]
    last_bad = f.culprit if f.culprit is not None else max(f.suspects, default=f.last)
    below = _ancestors(f, last_bad)
    marks = [index for index in sorted(f.sides) if f.sides[index] == "good" and index in below]
    marks += [index for index in sorted(f.sides, reverse=True) if f.sides[index] == "bad" and index >= last_bad]
    marks += [index for index in sorted(f.suspects) if f.sides.get(index) == "skip"]
    for index in marks:
        commit, side = f.commit(index), f.sides[index]
        lines += [f"# {side}: [{commit.sha}] {plain(commit.subject, LONGEST_SUBJECT)}", f"git bisect {side} {commit.sha}"]
    if f.culprit is not None:
        lines.append(_named("first bad commit", f, f.culprit))
    elif f.suspects:
        lines.append("# only skipped commits left to test")
        lines += [_named("possible first bad commit", f, index) for index in sorted(f.suspects)]
    return "\n".join(lines) + "\n"


def _ancestors(f: Findings, index: int) -> set[int]:
    parents, found, todo = f.range.parents(), {-1}, [index]
    while todo:
        for parent in parents[todo.pop()]:
            if parent not in found:
                found.add(parent)
                todo.append(parent)
    return found


def _named(what: str, f: Findings, index: int) -> str:
    commit = f.commit(index)
    return f"# {what}: [{commit.sha}] {plain(commit.subject, LONGEST_SUBJECT)}"
