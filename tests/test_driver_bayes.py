import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.search_study import study
from bisect_recompute.driver.bayes import Bayes
from bisect_recompute.driver.search import Search
from bisect_recompute.measurement.noise import log_odds, widest_step


def test_the_posterior_is_bayes_rule():
    search = Bayes([1.0, 2.0, 1.0])
    assert search.posterior == pytest.approx([0.25, 0.5, 0.25])
    search.record(1, math.log(4))  # bad, four to one: 0 or 1 came first
    assert search.posterior == pytest.approx([4 / 13, 8 / 13, 1 / 13])
    search.record(1, -math.log(4))
    assert search.posterior == pytest.approx([0.25, 0.5, 0.25])


def test_three_outcomes():
    search = Bayes([1.0] * 4)
    assert [search.side(i) for i in range(4)] == ["open", "open", "open", "bad"]
    search.record(1, -5.0)
    assert [search.side(i) for i in range(4)] == ["good", "good", "open", "bad"]


def test_an_open_answer_is_asked_again():
    search = Bayes([1.0] * 3, confidence=0.95)
    assert search.next() == [1] or search.next() == [0]
    search.record(0, -3.5)
    search.record(1, 1.0)
    assert search.next() == [1]  # 73 % bad: not yet known
    search.record(1, 3.0)
    assert search.culprit == 1


def test_both_sides_are_probed_before_a_culprit_is_named():
    search = Bayes([1.0] * 9 + [1e6] + [1.0] * 10)
    assert search.culprit is None and search.next(2) == [8, 9]
    search.record(9, 20.0)
    assert search.culprit is None and search.next() == [8]
    search.record(8, -20.0)
    assert search.culprit == 9 and search.finished


def test_what_cannot_be_probed_before_the_culprit_stays_suspect():
    search = Bayes([1.0] * 10)
    while not search.finished:
        (index,) = search.next()
        if index in (4, 5):
            search.skip(index)
        else:
            search.record(index, 20.0 if index >= 5 else -20.0)
    assert search.culprit is None and search.suspects == [4, 5, 6]


@settings(max_examples=60)
@given(st.integers(2, 60), st.randoms(use_true_random=False))
def test_certain_answers_name_what_plain_bisection_names_on_any_history(n, rng):
    parents = [tuple({rng.randrange(i) for _ in range(rng.choice((1, 1, 2)))}) if i else () for i in range(n)]
    plain = Search([1.0] * n, parents)
    # All candidates below the bad endpoint: what else there is no search asks about.
    inside = plain.suspects
    culprit = rng.choice(inside)
    bad = {culprit}
    for i in range(n):
        if bad & set(parents[i]):
            bad.add(i)
    weights = [1.0 if i in inside else 1e-9 for i in range(n)]
    search = Bayes(weights, parents)
    while not search.finished:
        for index in search.next(2):
            search.record(index, 30.0 if index in bad else -30.0)
    assert search.culprit == culprit


def test_log_odds_of_a_sample():
    assert log_odds(0.5, 0.0, 1.0, 0.05) == 0
    assert log_odds(1.0, 0.0, 1.0, 0.05) == pytest.approx(1.5 * math.log1p(400 / 2)) == -log_odds(0.0, 0.0, 1.0, 0.05)
    assert log_odds(7.0, 0.0, 1.0, 0.05) == log_odds(1.0, 0.0, 1.0, 0.05)
    assert log_odds(9, 12, 8, 0.0) == 30.0 == -log_odds(11, 12, 8, 0.0)
    # One sample in twenty may be anything: none says more than 19 to 1.
    assert log_odds(1.0, 0.0, 1.0, 0.001, wrong=0.05) == pytest.approx(math.log(19))


def test_the_widest_step_lies_between_no_two_samples():
    assert widest_step([0.1, 0.4, 0.45], 0.0, 1.0) == (0.45, 1.0)
    assert widest_step([0.1, 0.4, 0.45, 2.0], 1.0, 0.0) == (1.0, 0.45)
    assert widest_step([], 3.0, 5.0) == (3.0, 5.0)


def test_a_small_study():
    """Some of the histories of tests/benchmarks/search_study.py."""
    found = study(35, wrong=0.0, skips=False)
    plain, ours = found["plain bisect"], found["ours"]
    assert ours["right"] >= 0.99 > plain["right"]
    assert ours["probes, evidence right"] < 0.75 * plain["probes, evidence right"]
    assert ours["probes, misleading"] <= plain["probes, misleading"] + 2
    few = study(35, wrong=0.0, skips=False, named=2)
    assert few["ours"]["probes, evidence right"] <= 0.5 * few["plain bisect"]["probes, evidence right"]
    holes = study(35, wrong=0.0, skips=True)["ours"]
    assert holes["right"] + holes["listed"] >= 0.99
    wrong = study(30, wrong=0.05, skips=False)
    assert wrong["ours"]["right"] >= 0.95 > wrong["plain bisect"]["right"]


def test_the_order_of_random_samples_does_not_matter():
    rng = random.Random(3)
    samples = [(rng.randrange(30), rng.gauss(0, 2)) for _ in range(50)]
    one, other = Bayes([1.0] * 30), Bayes([1.0] * 30)
    for index, odds in samples:
        one.record(index, odds)
    for index, odds in reversed(samples):
        other.record(index, odds)
    assert one.posterior == pytest.approx(other.posterior)
