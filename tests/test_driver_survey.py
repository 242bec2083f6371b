import random

from hypothesis import given, settings
from hypothesis import strategies as st

from bisect_recompute.driver.loop import Narrowed, ProbeFinished, Reused
from bisect_recompute.driver.survey import Survey, survey


def scan(levels, jobs=1, known=lambda index: None, stop=10**9):
    """Order of the probes; ``levels[i + 1]`` is what candidate i measures, None where it cannot be measured."""
    order, events = [], []
    search = Survey(len(levels) - 1, lambda i, j: levels[i + 1] != levels[j + 1])

    def probe(index):
        order.append(index)
        return [levels[index + 1]]

    results = survey(search, probe, lambda r: "skip" if r[0] is None else "ok", known, jobs, events.append)
    return order, results, events


def test_the_ends_then_the_middles():
    order, results, events = scan([1.0] * 9)
    assert order[:2] == [-1, 7] and order[2] == 3 and sorted(order[3:5]) == [1, 5]
    assert sorted(order) == list(range(-1, 8)) and {i: r[0] for i, r in results.items()} == dict.fromkeys(order, 1.0)
    assert events[0] == Narrowed(9, 9) and events[-1] == Narrowed(0, 0)


@settings(max_examples=60)
@given(st.integers(1, 60), st.integers(1, 4), st.randoms(use_true_random=False))
def test_every_candidate_is_measured_once(n, jobs, rng):
    levels = [rng.choice([None, 1.0, 2.0]) for _ in range(n + 1)]
    order, results, _ = scan(levels, jobs)
    assert sorted(order) == sorted(results) == list(range(-1, n))


def test_a_shift_is_closed_in_on_before_the_rest():
    order, _, _ = scan([1.0] * 701 + [2.0] * 300)
    # Both sides of the shift at 700: two ends and ten halvings of a thousand.
    assert {699, 700} <= set(order[:13])


def test_candidates_that_cannot_be_measured_are_stepped_around():
    levels = [1.0] * 65
    levels[30:36] = [None] * 6
    levels[36:] = [2.0] * 29
    order, _, _ = scan(levels)
    assert {28, 35} <= set(order[:16])  # the last measured before the hole and the first behind it


def test_what_is_known_is_not_probed():
    own = {}
    events = []

    def probe(index):
        own[index] = [1.0]
        return own[index]

    def known(index):
        return next((r for i, r in own.items() if i // 10 == index // 10), None)

    search = Survey(100, lambda i, j: False)
    results = survey(search, probe, lambda r: "ok", known, 1, events.append)
    assert len(own) == 11 and len(results) == 101  # -1 alone, then ten tens
    assert sum(isinstance(e, ProbeFinished) for e in events) == 11 and sum(isinstance(e, Reused) for e in events) == 90


def test_stopped_at_any_time_the_range_is_known_about_evenly():
    search, rng = Survey(1000, lambda i, j: False), random.Random(5)
    running = set()
    for asked in range(1, 200):
        running |= set(search.next(2 - len(running), pending=running))
        index = rng.choice(sorted(running))
        running.remove(index)
        search.record(index, "ok")
        known = sorted(set(range(-1, 1000)) - set(search.open))
        if asked > 8:
            widest = max(b - a for a, b in zip(known, known[1:]))
            assert widest <= 4 * 1000 / asked
