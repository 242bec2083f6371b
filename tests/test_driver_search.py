import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisect_recompute.driver.search import Search


def drive(search, first_bad, skips=(), count=1):
    """Answers as a history would in which ``first_bad`` broke it; returns the rounds of probes."""
    rounds = []
    while not search.finished:
        asked = search.next(count)
        assert 1 <= len(asked) <= count and len(set(asked)) == len(asked)
        rounds.append(asked)
        for index in asked:
            search.record(index, "skip" if index in skips else "bad" if index >= first_bad else "good")
    return rounds


@given(st.integers(1, 400), st.data())
def test_uniform_weights_need_the_logarithm_of_the_range(n, data):
    culprit = data.draw(st.integers(0, n - 1))
    search = Search([1.0] * n)
    rounds = drive(search, culprit)
    assert search.culprit == culprit
    assert len(rounds) <= math.ceil(math.log2(n))
