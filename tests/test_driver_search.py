import math
import random
import stat
import subprocess
import time

import pytest
from gitrepo import GitRepo
from hypothesis import given
from hypothesis import strategies as st

from bisect_recompute.driver.search import Search
from bisect_recompute.history.repository import Repository


def ancestors(parents):
    """Candidate -> the set of it and all its ancestors, the slow and plain way."""
    closure = []
    for i, above in enumerate(parents):
        closure.append({i}.union(*(closure[p] for p in above)))
    return closure


def chain(n):
    return [(i - 1,) if i else () for i in range(n)]


def drive(search, is_bad, skips=(), count=1):
    """Answers until the search is finished; returns the rounds of probes."""
    rounds, asked = [], set()
    while not search.finished:
        now = search.next(count)
        assert 1 <= len(now) <= count and not asked.intersection(now) and len(set(now)) == len(now)
        asked.update(now)
        rounds.append(now)
        for index in now:
            search.record(index, "skip" if index in skips else "bad" if is_bad(index) else "good")
    assert search.next(count) == [] and search.expected_probes_left() == 0
    return rounds


@st.composite
def histories(draw, most=40):
    """Parents of each candidate: a DAG whose last candidate descends from all others, as in GOOD..BAD."""
    n = draw(st.integers(1, most))
    parents, tips = [], set()
    for i in range(n - 1):
        above = draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set()
        parents.append(tuple(sorted(above)))
        tips = (tips - above) | {i}
    parents.append(tuple(sorted(tips)))
    return parents


weights = st.floats(1e-3, 1e3)


# A line of commits


@given(st.integers(1, 400), st.data())
def test_uniform_weights_need_the_logarithm_of_the_range(n, data):
    culprit = data.draw(st.integers(0, n - 1))
    search = Search([1.0] * n)
    expected = search.expected_probes_left()
    rounds = drive(search, lambda i: i >= culprit)
    assert search.culprit == culprit and search.suspects == [culprit]
    assert len(rounds) <= math.ceil(math.log2(n)) == expected


@given(st.lists(weights, min_size=1, max_size=200), st.data())
def test_any_weights_name_the_culprit(weights, data):
    culprit = data.draw(st.integers(0, len(weights) - 1))
    search = Search(weights)
    rounds = drive(search, lambda i: i >= culprit)
    asked = {i for r in rounds for i in r}
    assert search.culprit == culprit
    # Final means shown on both sides; the ends of the range are known from the start.
    assert culprit in asked or culprit == len(weights) - 1
    assert culprit - 1 in asked or culprit == 0


@given(st.integers(2, 400), st.integers(1, 6), st.data())
def test_each_round_of_several_probes_shrinks_the_range_by_one_more_than_their_number(n, count, data):
    culprit = data.draw(st.integers(0, n - 1))
    search = Search([1.0] * n)
    rounds = 0
    while not search.finished:
        before = len(search.suspects)
        for index in search.next(count):
            search.record(index, "bad" if index >= culprit else "good")
        assert len(search.suspects) <= math.ceil(before / (count + 1))
        rounds += 1
    assert search.culprit == culprit
    assert rounds <= math.ceil(math.log(n, count + 1) - 1e-9) + 1


def test_the_cut_is_in_the_middle_of_the_weight():
    assert Search([1, 1, 1, 1]).next() == [1]
    assert Search([1] * 9).next(2) == [2, 5]
    assert Search([1, 1, 8, 1, 1]).next(2) == [1, 2]
    assert Search([100, 1, 1, 1]).next() == [0]


def test_a_tenfold_weight_saves_probes():
    """64 commits, 6 of which touch recompute: a search that knows them finds one of them in fewer probes."""
    marked = [5, 17, 29, 38, 44, 60]
    prior = [10.0 if i in marked else 1.0 for i in range(64)]

    def mean_probes(weights, culprits):
        probes = [len(drive(Search(weights), lambda i, c=c: i >= c)) for c in culprits]
        return sum(probes) / len(probes)

    # 118 is all the weight: a marked commit costs about log2(118 / 10) = 3.6 probes, against log2(64) = 6.
    assert mean_probes([1.0] * 64, marked) == 6
    assert mean_probes(prior, marked) <= 4.5
    unmarked = [i for i in range(64) if i not in marked]
    assert mean_probes(prior, unmarked) <= math.log2(118) + 1


@given(st.lists(weights, min_size=1, max_size=60), st.data())
def test_skips_leave_the_suspects_that_git_leaves(weights, data):
    n = len(weights)
    culprit = data.draw(st.integers(0, n - 1))
    skips = data.draw(st.sets(st.integers(0, n - 2), max_size=n)) if n > 1 else set()
    search = Search(weights)
    drive(search, lambda i: i >= culprit, skips)
    last_good = max((i for i in range(culprit) if i not in skips), default=-1)
    first_bad = min(i for i in range(culprit, n) if i not in skips)
    assert search.suspects == list(range(last_good + 1, first_bad + 1))
    assert search.culprit == (first_bad if first_bad == last_good + 1 else None)
    assert set(search.suspects[:-1]) <= skips


def test_beside_a_skipped_cut_the_nearest_by_weight_stands_in():
    search = Search([1.0] * 16)
    assert search.next() == [7]
    search.record(7, "skip")
    assert search.next() in ([6], [8])
    search = Search([1, 1, 1, 1, 9, 1, 1, 1])
    assert search.next() == [3]
    search.record(3, "skip")
    assert search.next() == [2]  # one unit of weight from the cut; 4 is nine away


def test_a_skipped_candidate_may_be_answered_later():
    search = Search([1.0, 1.0])
    search.record(0, "skip")
    assert search.finished and search.culprit is None and search.suspects == [0, 1]
    search.record(0, "good")
    assert search.culprit == 1


def test_a_range_of_one_is_decided_by_its_ends():
    search = Search([1.0])
    assert (search.finished, search.culprit, search.next(3)) == (True, 0, [])


def test_the_ends_may_be_recorded():
    search = Search([1.0] * 5)
    search.record(-1, "good")
    search.record(4, "bad")
    assert search.suspects == [0, 1, 2, 3, 4] and search.next() == [1]


def test_answers_that_contradict_earlier_ones_change_nothing():
    search = Search([1.0] * 10)
    search.record(6, "bad")
    search.record(2, "good")
    for index, side in ((8, "good"), (9, "good"), (1, "bad"), (2, "bad"), (6, "good")):
        search.record(index, side)
        assert search.suspects == [3, 4, 5, 6]
    search.record(8, "bad")
    search.record(1, "good")
    assert search.suspects == [3, 4, 5, 6]


@pytest.mark.parametrize(
    "call",
    [
        lambda: Search([]),
        lambda: Search([1.0, 0.0]),
        lambda: Search([-1.0]),
        lambda: Search([math.nan]),
        lambda: Search([math.inf]),
        lambda: Search([1.0, 1.0], parents=[(1,), ()]),
        lambda: Search([1.0, 1.0], parents=[()]),
        lambda: Search([1.0] * 3).record(1, "ugly"),
        lambda: Search([1.0] * 3).record(3, "good"),
        lambda: Search([1.0] * 3).record(-2, "good"),
    ],
)
def test_impossible_input(call):
    with pytest.raises((ValueError, IndexError)):
        call()


# While probes are running


def test_the_next_probe_cuts_what_the_running_ones_leave_largest():
    search = Search([1.0] * 100)
    assert search.next(2) == [32, 66]
    assert search.next(1, pending=[49]) == [24]  # 0..49 and 50..99 are left: the middle of one half
    assert search.next(1, pending=[19]) == [59]  # 20..99 is the larger part
    search.record(32, "good")
    assert search.next(1, pending=[66]) in ([49], [82])
    search.record(66, "bad")
    assert search.next(1, pending=[80]) == [49]  # 80 no longer matters


@given(histories(), st.integers(1, 5), st.data())
def test_candidates_in_flight_are_never_asked_again(parents, count, data):
    search = Search([1.0] * len(parents), parents)
    pending = data.draw(st.sets(st.integers(0, len(parents) - 1), max_size=5))
    now = search.next(count, pending)
    assert not pending.intersection(now) and len(set(now)) == len(now) <= count
    assert set(now) <= set(search.suspects) - {len(parents) - 1}


# Branches and merges


@given(histories(), st.data())
def test_in_a_history_with_merges_the_culprit_is_named(parents, data):
    n = len(parents)
    prior = data.draw(st.lists(weights, min_size=n, max_size=n))
    culprit = data.draw(st.integers(0, n - 1))
    closure = ancestors(parents)
    search = Search(prior, parents)
    rounds = drive(search, lambda i: culprit in closure[i], count=data.draw(st.integers(1, 4)))
    asked = {i for r in rounds for i in r}
    assert search.culprit == culprit
    assert culprit in asked or culprit == n - 1


@given(histories(), st.data())
def test_with_skips_all_suspects_but_the_bad_one_were_skipped(parents, data):
    n = len(parents)
    culprit = data.draw(st.integers(0, n - 1))
    skips = data.draw(st.sets(st.integers(0, n - 1))) - {n - 1}
    closure = ancestors(parents)
    search = Search([1.0] * n, parents)
    drive(search, lambda i: culprit in closure[i], skips)
    assert culprit in search.suspects
    assert len(set(search.suspects) - skips) == 1
    # Nothing was thrown away: a suspect is consistent with every answer that was given.
    for suspect in search.suspects:
        for i in set(range(n)) - skips:
            if culprit in closure[i] and not closure[i] & set(search.suspects):
                pytest.fail(f"bad {i} has no suspect among its ancestors ({suspect})")


@given(st.integers(1, 60), st.data())
def test_a_line_given_as_parents_is_the_same_search(n, data):
    prior = data.draw(st.lists(weights, min_size=n, max_size=n))
    culprit = data.draw(st.integers(0, n - 1))
    one, other = Search(prior), Search(prior, chain(n))
    assert drive(one, lambda i: i >= culprit) == drive(other, lambda i: i >= culprit)


def test_a_first_parent_range_with_inner_shortcuts_is_a_line():
    # A first-parent chain may hold a merge whose second parent is an older commit of the same chain.
    search = Search([1.0] * 4, [(), (0,), (1, 0), (2,)])
    assert search.next() == [1]


# Against git


def test_as_many_steps_as_git_and_the_same_commit(repo):
    shas = repo.linear(41)
    for culprit in (1, 7, 20, 33, 40):
        found = Repository(repo.path).range(f"{shas[0]}..{shas[-1]}")
        search = Search([1.0] * len(found.commits), found.parents())
        rounds = drive(search, lambda i: i + 1 >= culprit)
        said, steps = git_bisect(repo, shas[0], shas[-1], f'test "$(cat file.txt)" -lt {culprit}')
        assert found.commits[search.culprit].sha == shas[culprit]
        assert said == {shas[culprit]}
        assert abs(len(rounds) - steps) <= 1 and len(rounds) <= math.ceil(math.log2(40))


def test_the_suspects_that_git_names_after_skips(repo):
    shas = repo.linear(12)
    skips = {4, 5, 6, 7}
    found = Repository(repo.path).range(f"{shas[0]}..{shas[-1]}")
    search = Search([1.0] * 11, found.parents())
    drive(search, lambda i: i + 1 >= 6, {i - 1 for i in skips})
    script = 'n=$(cat file.txt); case $n in 4|5|6|7) exit 125;; esac; test $n -lt 6'
    said, _ = git_bisect(repo, shas[0], shas[-1], script)
    assert {found.commits[i].sha for i in search.suspects} == said == set(shas[4:9])


@pytest.mark.parametrize("seed", range(4))
def test_the_same_commit_as_git_in_a_history_with_merges(tmp_path, seed):
    rng = random.Random(seed)
    repo = GitRepo(tmp_path / "project")
    good = repo.commit("good", {"base": "0"})
    for number in range(14):
        start = rng.choice(repo.git("rev-list", "main").split()) if number % 2 else "main"
        if number % 2:
            repo.switch(f"side{number}", start)
            repo.commit(f"s{number}", {f"f{number}": "1"})
            repo.commit(f"t{number}", {f"g{number}": "1"})
            repo.switch("main")
            repo.merge(f"side{number}")
        else:
            repo.commit(f"m{number}", {f"f{number}": "1"})
    found = Repository(repo.path).range(f"{good}..main", first_parent=False)
    closure = ancestors(found.parents())
    culprits = [i for i, c in enumerate(found.commits) if len(c.parents) == 1]
    for culprit in rng.sample(culprits, 3):
        file = repo.git("diff-tree", "--no-commit-id", "--name-only", "-r", found.commits[culprit].sha)
        search = Search([1.0] * len(found.commits), found.parents())
        rounds = drive(search, lambda i: culprit in closure[i])
        said, steps = git_bisect(repo, good, "main", f"test ! -e {file}")
        assert said == {found.commits[culprit].sha} == {found.commits[search.culprit].sha}
        assert len(rounds) <= steps + 1


def git_bisect(repo, good, bad, script):
    """(commits that `git bisect run` names, number of commits it tested)."""
    log = repo.path.parent / "steps"
    log.write_text("")
    runner = repo.path.parent / "runner.sh"
    runner.write_text(f"#!/bin/sh\necho >> {log}\n{script}\n")
    runner.chmod(runner.stat().st_mode | stat.S_IXUSR)
    repo.git("bisect", "start", bad, good)
    output = subprocess.run(
        ["git", "bisect", "run", str(runner)], cwd=repo.path, env=repo.env, capture_output=True, text=True
    ).stdout
    repo.git("bisect", "reset")
    lines = output.splitlines()
    named = [line.split()[0] for line in lines if line.endswith("is the first bad commit")]
    if not named:
        named = [line for line in lines if len(line) == 40 and set(line) <= set("0123456789abcdef")]
    return set(named), len(log.read_text().splitlines())


def test_ten_thousand_commits_are_searched_at_once():
    start = time.perf_counter()
    search = Search([1.0] * 10_000)
    assert len(drive(search, lambda i: i >= 7_777)) <= 14
    assert time.perf_counter() - start < 3
