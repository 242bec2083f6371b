"""Which tensors are alive at the peak of one measurement and not of another."""

from __future__ import annotations

import difflib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable

from bisect_recompute.probe.result import LiveTensors
from bisect_recompute.verdict.verdict import Tensor

Origin = tuple[str, str]
"""File and text of the line."""


def tensor_changes(
    good: Iterable[LiveTensors],
    bad: Iterable[LiveTensors],
    good_line: Callable[[str, int], str | None],
    bad_line: Callable[[str, int], str | None],
) -> list[Tensor]:
    """Tensors that appear or grow from ``good`` to ``bad``, then (negative) those that go away; largest first.

    Tensors are the same kind when module, shape and dtype agree. Line numbers move with every edit above them, so the
    origin of new ones is told by the text of the line: lines with the text of one before, then those most like one
    before, made the tensors that were there already.
    """
    appearing = _surplus(good, bad, good_line, bad_line)
    leaving = _surplus(bad, good, bad_line, good_line)
    gone = [tensor.model_copy(update={"bytes": -tensor.bytes, "count": -tensor.count}) for tensor in leaving]
    return sorted(appearing, key=lambda t: -t.bytes) + sorted(gone, key=lambda t: t.bytes)


def _surplus(before, after, before_line, after_line) -> list[Tensor]:
    kinds_before, _ = _count(before, before_line)
    kinds_after, places = _count(after, after_line)
    found = []
    for kind, origins in kinds_after.items():
        module, shape, dtype = kind
        for origin, count in _unexplained(kinds_before.get(kind, Counter()), origins).items():
            file, line, each = places[kind, origin]
            found.append(
                Tensor(
                    module=module,
                    shape=list(shape),
                    dtype=dtype,
                    bytes=round(each * count),
                    count=count,
                    file=file,
                    line=line,
                    source=origin[1],
                )
            )
    return found


def _unexplained(before: Counter, after: Counter) -> Counter:
    """What is left of ``after`` when each origin of ``before`` has taken its count from the origins most like it."""
    old, new = before - after, after - before
    for gone, come in sorted(itertools.product(old, new), key=lambda pair: -_likeness(*pair)):
        taken = min(old[gone], new[come])
        old[gone] -= taken
        new[come] -= taken
    return +new


def _likeness(one: Origin, other: Origin) -> float:
    return difflib.SequenceMatcher(None, one[1], other[1], autojunk=False).ratio() + (one[0] == other[0])


def _count(tensors, line_of):
    kinds: dict[tuple, Counter] = {}
    places = {}
    for tensor in tensors:
        kind = (tensor.module, tensor.shape, tensor.dtype)
        origin = (tensor.file, (line_of(tensor.file, tensor.line) or "").strip())
        kinds.setdefault(kind, Counter())[origin] += tensor.count
        places[kind, origin] = (tensor.file, tensor.line, tensor.bytes / max(tensor.count, 1))
    return kinds, places
