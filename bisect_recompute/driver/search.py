"""Which commit to probe next: bisection by weight over a history, pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Literal

Side = Literal["good", "bad", "skip"]


class Search:
    """Finds the first bad one of the candidates 0..n-1, oldest first.

    The last candidate is the bad endpoint, known to be bad; -1 stands for the good endpoint. ``weights`` is the prior
    that each candidate is the first bad one (> 0, any scale): it orders the probes and never rules a candidate out.
    ``parents`` gives each candidate's parents as indices (``CommitRange.parents``); left out, each one's parent is the
    one before it. As in git, all descendants of the culprit inside the range are taken to be bad and all others good.
    """

    def __init__(self, weights: Sequence[float], parents: Sequence[Sequence[int]] | None = None):
        self._weights, self._parents, self._upto = history(weights, parents)
        self._first_bad = len(self._weights) - 1
        self._suspects = self._upto[-1]
        self._skipped = 0

    def record(self, index: int, side: Side) -> None:
        """Takes in what a probe said. What contradicts earlier answers, or adds nothing to them, is ignored."""
        if side not in ("good", "bad", "skip"):
            raise ValueError(f"side is good, bad or skip, not {side!r}")
        if not -1 <= index < len(self._weights):
            raise IndexError(f"there is no candidate {index}")
        if index == -1:
            return
        if side == "skip":
            self._skipped |= 1 << index
        elif side == "good":
            if not self._upto[index] >> self._first_bad & 1:
                self._suspects &= ~self._upto[index]
        elif self._suspects >> index & 1:
            self._suspects &= self._upto[index]
            self._first_bad = index

    @property
    def suspects(self) -> list[int]:
        """All candidates that can still be the first bad one, skipped ones included, oldest first."""
        return list(bits_of(self._suspects))

    @property
    def culprit(self) -> int | None:
        """The first bad one, once it is bad itself and every parent of it inside the range is good."""
        return self._first_bad if self._suspects == 1 << self._first_bad else None

    @property
    def finished(self) -> bool:
        """True when a culprit is named, or only skipped candidates lie between the last good and the first bad."""
        return not self._open()

    def next(self, count: int = 1, pending: Collection[int] = ()) -> list[int]:
        """Up to ``count`` candidates to probe now, besides those ``pending`` (being probed).

        They cut the suspects' weight into parts as equal as possible; where the best cut was skipped, the candidate
        nearest to it by weight stands in.
        """
        parts = [self._suspects]
        for index in pending:
            if self._suspects >> index & 1:
                parts = [p for part in parts for p in (part & self._upto[index], part & ~self._upto[index]) if p]
        usable = self._open()
        for index in pending:
            usable &= ~(1 << index)
        cuts = [(part, self._cuts(part, usable)) for part in parts]
        weight = [sum(self._weights[i] for i in bits_of(part)) for part, _ in cuts]
        shares = [0] * len(cuts)
        for _ in range(count):
            room = [k for k, (_, c) in enumerate(cuts) if shares[k] < len(c)]
            if not room:
                break
            shares[max(room, key=lambda k: weight[k] / (shares[k] + 1))] += 1
        chosen: list[int] = []
        for (_, available), total, share in zip(cuts, weight, shares):
            chosen += _nearest(available, [total * (k + 1) / (share + 1) for k in range(share)])
        return sorted(chosen)

    def expected_probes_left(self) -> int:
        """Probes still to come, one at a time: the entropy of the suspects' weights in bits, rounded up."""
        usable = self._open()
        if not usable:
            return 0
        weights = [self._weights[i] for i in bits_of(self._suspects)]
        total = sum(weights)
        bits = sum(w / total * math.log2(total / w) for w in weights)
        return max(1, min(math.ceil(bits - 1e-9), usable.bit_count()))

    def _open(self) -> int:
        return self._suspects & ~self._skipped & ~(1 << self._first_bad)

    def _cuts(self, part: int, usable: int) -> dict[int, float]:
        """Usable candidate of a part -> weight of the side of the part that it would clear if good."""
        below: dict[int, float] = {}
        for i in bits_of(part):
            parents = [p for p in self._parents[i] if part >> p & 1]
            if len(parents) > 1:
                below[i] = sum(self._weights[k] for k in bits_of(self._upto[i] & part))
            else:
                below[i] = self._weights[i] + sum(below[p] for p in parents)
        return {i: w for i, w in below.items() if usable >> i & 1 and self._upto[i] & part != part}


def history(
    weights: Sequence[float], parents: Sequence[Sequence[int]] | None
) -> tuple[list[float], list[tuple[int, ...]], list[int]]:
    """Weights, parents, and each candidate with all its ancestors as the bits of an integer. Raises ValueError."""
    if not weights:
        raise ValueError("a search needs at least one candidate")
    if not all(0 < w < math.inf for w in weights):
        raise ValueError("weights must be positive and finite")
    count = len(weights)
    if parents is None:
        parents = [(i - 1,) if i else () for i in range(count)]
    if len(parents) != count:
        raise ValueError("weights and parents must be as many as the candidates")
    upto: list[int] = []
    for i, above in enumerate(parents):
        if any(not 0 <= p < i for p in above):
            raise ValueError("parents must come before their children")
        bits = 1 << i
        for p in above:
            bits |= upto[p]
        upto.append(bits)
    return [float(w) for w in weights], [tuple(above) for above in parents], upto


def _nearest(available: dict[int, float], targets: list[float]) -> list[int]:
    left = dict(available)
    chosen = []
    for target in targets:
        if left:
            chosen.append(min(left, key=lambda i: abs(left[i] - target)))
            del left[chosen[-1]]
    return chosen


def bits_of(mask: int) -> Iterator[int]:
    text = bin(mask)[:1:-1]
    at = text.find("1")
    while at >= 0:
        yield at
        at = text.find("1", at + 1)
