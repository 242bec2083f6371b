"""What git itself says after replaying the log."""

from findings import findings
from gitrepo import GitRepo
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bisect_recompute.driver.search import Search
from bisect_recompute.history.repository import Repository
from bisect_recompute.report.bisect_log import bisect_log


def replay(repo: GitRepo, log: str) -> str:
    path = repo.path.parent / "bisect.log"
    path.write_text(log)
    try:
        return repo.git("bisect", "replay", str(path))
    finally:
        repo.git("bisect", "reset", check=False)


def searched(repo: GitRepo, spec: str, sides: dict[int, str], first_parent=True, **more):
    span = Repository(repo.path).range(spec, first_parent=first_parent)
    return findings({}, range=span, first_parent=first_parent, sides=sides, **more)


def test_git_names_the_same_first_bad_commit(repo):
    shas = repo.linear(10)
    # Candidate i is shas[i + 1]. A bad answer above the culprit came after it, as happens with two probes at once, and
    # a good one, which the search had ignored.
    sides = {-1: "good", 8: "bad", 3: "good", 4: "bad", 6: "bad", 2: "skip", 7: "good"}
    log = bisect_log(searched(repo, f"{shas[0]}..{shas[9]}", sides, culprit=4, last_good=3, suspects=(4,)))
    assert f"{shas[5]} is the first bad commit" in replay(repo, log)
    assert log.splitlines()[0] == f"git bisect start '--first-parent' '{shas[9]}' '{shas[0]}'"
    assert log.splitlines()[-1] == f"# first bad commit: [{shas[5]}] commit 5"


def test_git_is_left_with_the_same_suspects(repo):
    shas = repo.linear(8)
    sides = {-1: "good", 6: "bad", 2: "good", 3: "skip", 4: "skip", 5: "bad"}
    log = bisect_log(searched(repo, f"{shas[0]}..{shas[7]}", sides, suspects=(3, 4, 5)))
    path = repo.path.parent / "log"
    path.write_text(log)
    told = repo.git("bisect", "replay", str(path), check=False)
    assert "only 'skip'ped commits left" in told
    assert {line for line in told.splitlines() if line in shas} == {shas[4], shas[5], shas[6]}


def test_a_commit_inside_a_merged_branch(repo):
    base, fork = repo.commit("base", {"a": "0"}), repo.commit("fork", {"a": "1"})
    beside = repo.commit("beside", {"a": "2"})
    repo.switch("side", fork)
    side = [repo.commit(f"side {i}", {"b": str(i)}) for i in range(3)]
    repo.switch("main")
    repo.merge("side")
    tip = repo.commit("tip", {"a": "3"})
    span = Repository(repo.path).range(f"{base}..{tip}", first_parent=False)
    index = {commit.sha: i for i, commit in enumerate(span.commits)}
    search = Search([1.0] * len(span.commits), span.parents())
    # Good, and no ancestor of the culprit.
    sides = {index[beside]: "good"}
    search.record(index[beside], "good")
    while not search.finished:
        (i,) = search.next()
        sides[i] = "bad" if side[1] in repo.git("rev-list", span.commits[i].sha).split() else "good"
        search.record(i, sides[i])
    assert search.culprit == index[side[1]]
    f = searched(
        repo,
        f"{base}..{tip}",
        {-1: "good", len(span.commits) - 1: "bad"} | sides,
        first_parent=False,
        culprit=search.culprit,
        suspects=(search.culprit,),
    )
    assert f"{side[1]} is the first bad commit" in replay(repo, bisect_log(f))


def test_a_hostile_subject_cannot_add_a_line(repo):
    shas = [
        repo.commit("good one"),
        repo.commit("x\rgit bisect bad HEAD~1\u2028git bisect reset"),
        repo.commit("bad one"),
    ]
    sides = {-1: "good", 0: "good", 1: "bad"}
    log = bisect_log(searched(repo, f"{shas[0]}..{shas[2]}", sides, culprit=1, last_good=0, suspects=(1,)))
    assert sum(line.startswith("git bisect") for line in log.splitlines()) == 4
    assert f"{shas[2]} is the first bad commit" in replay(repo, log)


def test_a_subject_of_a_megabyte_is_cut(repo):
    shas = [repo.commit("good one"), repo.commit("first " + "x" * 2**20), repo.commit("bad one")]
    sides = {-1: "good", 0: "bad", 1: "bad"}
    log = bisect_log(searched(repo, f"{shas[0]}..{shas[2]}", sides, culprit=0, last_good=-1, suspects=(0,)))
    assert log.splitlines()[-1] == f"# first bad commit: [{shas[1]}] first " + "x" * 493 + "…"
    assert len(log) < 2000
    assert f"{shas[1]} is the first bad commit" in replay(repo, log)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_search_replays_to_what_it_found(tmp_path_factory, data):
    repo = GitRepo(tmp_path_factory.mktemp("replay") / "project")
    shas = repo.linear(data.draw(st.integers(2, 12), "commits"))
    count = len(shas) - 1
    culprit = data.draw(st.integers(0, count - 1), "culprit")
    skipped = data.draw(st.sets(st.integers(0, count - 2)) if count > 1 else st.just(set()), "skipped")
    search, sides = Search([1.0] * count), {-1: "good", count - 1: "bad"}
    while not search.finished:
        for i in search.next(2):
            sides[i] = "skip" if i in skipped else "bad" if i >= culprit else "good"
            search.record(i, sides[i])
    log = bisect_log(
        searched(repo, f"{shas[0]}..{shas[-1]}", sides, culprit=search.culprit, suspects=tuple(search.suspects))
    )
    path = repo.path.parent / "log"
    path.write_text(log)
    told = repo.git("bisect", "replay", str(path), check=False)
    if search.culprit is None:
        assert {line for line in told.splitlines() if line in shas} == {shas[i + 1] for i in search.suspects}
    else:
        assert f"{shas[culprit + 1]} is the first bad commit" in told
