"""What samples of a noisy measurement say about their sides."""

from __future__ import annotations

import math
from collections.abc import Iterable

CERTAIN = 30.0
"""Log odds of a sample without noise."""


def log_odds(sample: float, good: float, bad: float, deviation: float, freedom: float = 2.0, wrong: float = 0.0) -> float:
    """log P(sample | bad's level) / P(sample | good's level), natural logarithm; a sample beyond a level counts as at it.

    Student's t about either level: ``deviation`` is an estimate with ``freedom`` degrees of freedom, in the sample's
    unit; 0: the probe is deterministic, and the nearer level is certain. ``wrong``: share of samples that say nothing
    (a straggling node): no single one says more than that allows.
    """
    if good == bad:
        raise ValueError("the endpoints do not differ")
    limit = min(CERTAIN, math.log((1 - wrong) / wrong)) if wrong else CERTAIN
    sample = min(max(sample, min(good, bad)), max(good, bad))
    if deviation == 0:
        nearer_bad = abs(sample - bad) < abs(sample - good)
        return limit if nearer_bad else -limit
    away = [math.log1p(((sample - level) / deviation) ** 2 / freedom) for level in (good, bad)]
    return max(-limit, min(limit, (freedom + 1) / 2 * (away[0] - away[1])))


def widest_step(samples: Iterable[float], good: float, bad: float) -> tuple[float, float]:
    """The levels to tell apart, from ``good`` to ``bad``: the widest gap between what was sampled so far.

    With several shifts in a range a level half-way between the endpoints would fall on either side by chance.
    """
    low, high = min(good, bad), max(good, bad)
    levels = sorted([low, high, *(sample for sample in samples if low < sample < high)])
    pair = max(zip(levels, levels[1:]), key=lambda pair: pair[1] - pair[0])
    return pair if good < bad else pair[::-1]
