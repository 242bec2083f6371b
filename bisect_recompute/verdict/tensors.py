"""Which tensors are alive at the peak of one measurement and not of another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from bisect_recompute.probe.result import LiveTensors
from bisect_recompute.verdict.verdict import Tensor

SourceLine = Callable[[str, str, int], "str | None"]
"""(commit, file, line) -> text of that line, or None where it cannot be read."""


def tensor_changes(
    good: Iterable[LiveTensors],
    bad: Iterable[LiveTensors],
    good_line: Callable[[str, int], str | None],
    bad_line: Callable[[str, int], str | None],
) -> list[Tensor]:
    """Tensors that appear or grow from ``good`` to ``bad``, then (negative) those that go away; largest first.

    Tensors are the same kind when module, shape and dtype agree. Line numbers move with every edit above them, so the
    origin of new ones is told by the text of the line: a line that made as many before is not where the new ones come from.
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
        known = kinds_before.get(kind, Counter())
        missing = sum(origins.values()) - sum(known.values())
        for origin, more in (origins - known).most_common():
            count = min(more, missing)
            if count > 0:
                missing -= count
                file, line, each = places[kind, origin]
                module, shape, dtype = kind
                found.append(Tensor(module=module, shape=list(shape), dtype=dtype, bytes=round(each * count), count=count,
                                    file=file, line=line, source=origin[1]))
    return found


def _count(tensors, line_of):
    kinds: dict[tuple, Counter] = {}
    places = {}
    for tensor in tensors:
        kind = (tensor.module, tensor.shape, tensor.dtype)
        origin = (tensor.file, (line_of(tensor.file, tensor.line) or "").strip())
        kinds.setdefault(kind, Counter())[origin] += tensor.count
        places[kind, origin] = (tensor.file, tensor.line, tensor.bytes / max(tensor.count, 1))
    return kinds, places
