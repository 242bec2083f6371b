"""Which commit to probe next where a probe's answer is uncertain: bisection by posterior, pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Literal

from bisect_recompute.driver.search import bits_of, history

MOST = 12
"""Samples of one candidate: what they leave open more of them will not settle."""


class Bayes:
    """Finds the first bad one of the candidates 0..n-1 as ``Search`` does, from samples that say so with some odds.

    ``weights`` is the prior, ``parents`` as in ``Search``. A candidate that cannot be probed is stepped around.
    """

    def __init__(
        self, weights: Sequence[float], parents: Sequence[Sequence[int]] | None = None, confidence: float = 0.95
    ):
        if not 0.5 < confidence < 1:
            raise ValueError("confidence lies between 0.5 and 1")
        self.confidence = confidence
        self._weights, self._parents, self._upto = history(weights, parents)
        self._logs = [math.log(w) for w in self._weights]
        self._samples = [0] * len(self._weights)
        self.skipped: set[int] = set()
        """Candidates that cannot be probed."""
        self._stale = True

    def record(self, index: int, log_odds: float) -> None:
        """One more sample of a candidate: log P(sample | it is bad) / P(sample | it is good), natural logarithm."""
        if not -math.inf < log_odds < math.inf:
            raise ValueError("log odds must be finite")
        self._samples[index] += 1
        # Had any of these been first, the candidate would be bad.
        for first in bits_of(self._upto[index]):
            self._logs[first] += log_odds
        self._stale = True

    def skip(self, index: int) -> None:
        """The candidate cannot be probed."""
        self.skipped.add(index)

    @property
    def posterior(self) -> list[float]:
        """Of each candidate the probability that it is the first bad one."""
        return list(self._posterior)

    def side(self, index: int) -> Literal["good", "bad", "open"]:
        """Whether the candidate differs from the good endpoint: bad (different), good (the same), or not yet known."""
        chance = self._bad[index]
        return "bad" if chance >= self.confidence else "good" if chance <= 1 - self.confidence else "open"

    @property
    def culprit(self) -> int | None:
        """The first bad one, once the posterior passes the confidence and both its sides were really probed."""
        best = self._best()
        return best if self._posterior[best] >= self.confidence and not self._unprobed_sides(best) else None

    @property
    def finished(self) -> bool:
        return self.culprit is not None or not self.next()

    @property
    def suspects(self) -> list[int]:
        """The most probable ones that make up the confidence, with the skipped ones that lie before them, oldest first."""
        chosen, mass = set(), 0.0
        chances = self._posterior
        for index in sorted(range(len(chances)), key=lambda i: -chances[i]):
            if mass < self.confidence:
                chosen.add(index)
                mass += chances[index]
        stack = list(chosen)
        while stack:
            before = [p for p in self._parents[stack.pop()] if p in self.skipped and p not in chosen]
            chosen.update(before)
            stack += before
        return sorted(chosen)

    def next(self, count: int = 1, pending: Collection[int] = ()) -> list[int]:
        """Up to ``count`` candidates to sample now, besides those ``pending``; one that was sampled can be asked again.

        First the sides of a candidate that is about to be named; else those whose answer is most open: for equally
        noisy probes they tell most.
        """
        best, bad = self._best(), self._bad
        if self._posterior[best] >= self.confidence:
            return [i for i in self._unprobed_sides(best) if i not in self.skipped and i not in pending][:count]
        least = (1 - self.confidence) / 4
        order = sorted(
            (i for i, chance in enumerate(bad) if least < chance < 1 - least and self._free(i, pending)),
            key=lambda i: abs(bad[i] - 0.5),
        )
        return order[:1] + self._spread(order[1:], order[:1], count - 1)

    def _spread(self, order: list[int], chosen: list[int], count: int) -> list[int]:
        """Further candidates at once: each cuts what those chosen leave in the middle."""
        more: list[int] = []
        for _ in range(min(count, len(order))):
            cuts = sorted([0.0, 1.0, *(self._bad[i] for i in (*chosen, *more))])
            low, high = max(zip(cuts, cuts[1:]), key=lambda pair: pair[1] - pair[0])
            left = [i for i in order if i not in more]
            more.append(min(left, key=lambda i: abs(self._bad[i] - (low + high) / 2)))
        return more

    def _free(self, index: int, pending: Collection[int]) -> bool:
        return index not in self.skipped and index not in pending and self._samples[index] < MOST

    def _unprobed_sides(self, index: int) -> list[int]:
        """The last candidate is the bad endpoint and was probed, as was the good one before the range."""
        sides = [*self._parents[index], index]
        return [i for i in sides if not self._samples[i] and i != len(self._weights) - 1]

    def _best(self) -> int:
        chances = self._posterior
        return max(range(len(chances)), key=chances.__getitem__)

    @property
    def _posterior(self) -> list[float]:
        self._update()
        return self._first

    @property
    def _bad(self) -> list[float]:
        """Of each candidate the probability that it is bad."""
        self._update()
        return self._past

    def _update(self) -> None:
        if not self._stale:
            return
        self._stale = False
        top = max(self._logs)
        raw = [math.exp(log - top) for log in self._logs]
        total = sum(raw)
        self._first = [value / total for value in raw]
        self._past: list[float] = []
        for i, above in enumerate(self._parents):
            if len(above) > 1:
                self._past.append(sum(self._first[k] for k in bits_of(self._upto[i])))
            else:
                self._past.append(self._first[i] + sum(self._past[p] for p in above))
