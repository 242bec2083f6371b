"""How often noisy and skewed histories are bisected right, and with how many probes: ours against others.

    python tests/benchmarks/search_study.py [HISTORIES] [--wrong 0.05] [--named 3]

Synthetic histories: 100 to 5,000 commits (log-uniform), 1 to 3 shifts in one direction, 0 to 30 % of the commits cannot be
built, Gaussian noise of 0 to 5 % of the shift. The differ names 1.4 % of the commits (5 of 353 touch the file whose tensors
moved in the range of the README), with ``--named`` that many; the culprit is one of them in 90 %. ``--wrong``: of up to this share of the samples
the answer is that of the other side. A culprit is right when it is one of the shifts. Probes are those beside the two
endpoints. git-bayesect (PyPI) takes part where it is installed.

Of 1,000 histories without holes: right / probes where the evidence is right / where it misleads (git-bayesect 1.2)
                        1.4 % named          2 commits named       1.4 % named, up to 5 % wrong answers
plain bisect            90.4 %  9.5   9.7    90.4 %  9.5   9.7     71.4 %  9.5   9.7
plain, majority of 3    93.5 % 28.6  28.9    93.4 % 28.6  28.9     91.3 % 28.6  28.9
ours                   100.0 %  6.6  11.7   100.0 %  4.7  11.4     99.4 %  8.4  15.0
git-bayesect            99.6 % 10.9  19.9   100.0 %  7.2  19.1     99.5 % 12.6  22.5
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from dataclasses import dataclass

from bisect_recompute.driver.bayes import Bayes
from bisect_recompute.driver.search import Search
from bisect_recompute.measurement.noise import log_odds, widest_step

SUSPECTED = 0.014
SHARE = 0.7
"""Prior of all that the differ names together: right, it saves most of the search; wrong, it costs 1.7 probes."""
NOISE = 0.05
ENOUGH = 200
"""Probes after which a method that does not end is stopped."""


@dataclass(frozen=True)
class History:
    levels: list[float]
    """True level of each commit: 0 before the first shift, 1 from the last on."""
    shifts: frozenset[int]
    unbuildable: frozenset[int]
    suspected: frozenset[int]
    noise: float
    wrong: float
    right: bool
    """The differ names the shift that half-way lies in."""

    @property
    def count(self) -> int:
        return len(self.levels)

    def sample(self, index: int, rng: random.Random) -> float | None:
        if index in self.unbuildable:
            return None
        level = rng.gauss(self.levels[index], self.noise)
        return 1 - level if rng.random() < self.wrong else level


def history(rng: random.Random, wrong: float, skips: bool, named: int | None = None) -> History:
    count = round(math.exp(rng.uniform(math.log(100), math.log(5000))))
    places = sorted(rng.sample(range(count), rng.choice((1, 2, 3))))
    sizes = [rng.uniform(0.3, 1.0) for _ in places]
    levels, at = [], 0.0
    for index in range(count):
        at += sum(size for place, size in zip(places, sizes) if place == index) / sum(sizes)
        levels.append(at)
    main = next(i for i, level in enumerate(levels) if level > 0.5)
    share = rng.uniform(0.0, 0.3) if skips else 0.0
    unbuildable = {i for i in range(count - 1) if rng.random() < share}
    right = rng.random() < 0.9
    others = [i for i in range(count) if i not in places]
    suspected = set(rng.sample(others, (named or max(1, round(SUSPECTED * count))) - right))
    suspected |= {main} if right else set()
    return History(levels, frozenset(places), frozenset(unbuildable), frozenset(suspected), rng.uniform(0, NOISE),
                   rng.uniform(0, wrong), right)


def prior(h: History) -> list[float]:
    named = SHARE / max(len(h.suspected), 1)
    other = (1 - SHARE) / max(h.count - len(h.suspected), 1)
    return [named if i in h.suspected else other for i in range(h.count)]


def plain(h: History, rng: random.Random, repeats: int = 1) -> tuple[int | None, int, list[int]]:
    """Bisection in the middle, of ``repeats`` samples the majority."""
    search, probes = Search([1.0] * h.count), 0
    while not search.finished:
        (index,) = search.next()
        samples = [h.sample(index, rng) for _ in range(1 if index in h.unbuildable else repeats)]
        probes += len(samples)
        bad = sum(sample is not None and sample > 0.5 for sample in samples)
        search.record(index, "skip" if samples[0] is None else "bad" if 2 * bad > repeats else "good")
    return search.culprit, probes, search.suspects


def ours(h: History, rng: random.Random) -> tuple[int | None, int, list[int]]:
    wrong = 0.05 if h.wrong else 0.0
    search, step, samples, probes = Bayes(prior(h)), (0.0, 1.0), [], 0
    while not search.finished and probes < ENOUGH:
        (index,) = search.next()
        sample, probes = h.sample(index, rng), probes + 1
        if sample is None:
            search.skip(index)
            continue
        samples.append((index, sample))
        new = widest_step((value for _, value in samples), 0.0, 1.0)
        if max(abs(new[0] - step[0]), abs(new[1] - step[1])) > 3 * NOISE:
            # Another level lies between: every answer so far is read anew.
            step, skipped, search = new, search.skipped, Bayes(prior(h))
            for other in skipped:
                search.skip(other)
            for other, value in samples[:-1]:
                search.record(other, log_odds(value, *step, NOISE, wrong=wrong))
        search.record(index, log_odds(sample, *step, NOISE, wrong=wrong))
    return search.culprit, probes, search.suspects


def git_bayesect(h: History, rng: random.Random) -> tuple[int | None, int, list[int]]:
    """Its own search with the same prior; it counts from the newest commit, and stops at 0.95 of the posterior."""
    from git_bayesect import Bisector

    search, probes, last = Bisector(prior(h)[::-1] + [1e-12]), 0, h.count
    search.record(last, False)
    search.record(0, True)
    while probes < ENOUGH:
        best = int(search.distribution.argmax())
        if search.distribution[best] >= 0.95:
            return h.count - 1 - best, probes, []
        index = search.select()
        sample, probes = (0.0 if index == last else h.sample(h.count - 1 - index, rng)), probes + 1
        search.record(index, None if sample is None else sample > 0.5)
    return None, probes, []


METHODS = {"plain bisect": plain, "plain, majority of 3": lambda h, rng: plain(h, rng, 3), "ours": ours}


def study(histories: int, wrong: float, skips: bool, methods=METHODS, named: int | None = None, seed: int = 1) -> dict[str, dict[str, float]]:
    """Method -> share of right culprits, of open ends whose suspects hold one, and mean probes."""
    found = {name: [] for name in methods}
    for number in range(histories):
        h = history(random.Random(seed * 1_000_003 + number), wrong, skips, named)
        for name, method in methods.items():
            culprit, probes, suspects = method(h, random.Random(number))
            listed = culprit is None and bool(h.shifts & set(suspects))
            found[name].append((h.right, culprit in h.shifts, listed, probes))
    return {name: _summary(rows) for name, rows in found.items()}


def _summary(rows) -> dict[str, float]:
    def mean(values):
        values = list(values)
        return statistics.fmean(values) if values else math.nan

    return {
        "right": mean(row[1] for row in rows),
        "listed": mean(row[2] for row in rows),
        "probes": mean(row[3] for row in rows),
        "probes, evidence right": mean(row[3] for row in rows if row[0]),
        "probes, misleading": mean(row[3] for row in rows if not row[0]),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("histories", type=int, nargs="?", default=1000)
    parser.add_argument("--wrong", type=float, default=0.0)
    parser.add_argument("--named", type=int)
    given = parser.parse_args()
    methods = dict(METHODS)
    try:
        import git_bayesect as _  # noqa: F401

        methods["git-bayesect"] = git_bayesect
    except ImportError:
        print("git-bayesect is not installed: pip install git_bayesect")
    for skips in (False, True):
        print(f"\n{given.histories} histories, {'0 to 30 %' if skips else 'none'} unbuildable, wrong answers up to "
              f"{given.wrong:.0%}, {given.named or '1.4 %'} named by the differ")
        print(f"{'':22}{'right':>8}{'listed':>8}{'probes':>8}{'evidence right':>16}{'misleading':>12}")
        for name, row in study(given.histories, given.wrong, skips, methods, given.named).items():
            print(f"{name:22}{row['right']:8.1%}{row['listed']:8.1%}{row['probes']:8.2f}"
                  f"{row['probes, evidence right']:16.2f}{row['probes, misleading']:12.2f}")


if __name__ == "__main__":
    main()
