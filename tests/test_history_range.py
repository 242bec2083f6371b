from collections import Counter

import pytest

from bisect_recompute.errors import UsageError
from bisect_recompute.history.repository import Repository


def error_of(call, *args, **kwargs):
    with pytest.raises(UsageError) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message and "\x1b" not in message
    return message


@pytest.fixture
def merged(repo):
    """main: A B M D, side (from A): S1 S2 merged at M."""
    shas = {"A": repo.commit("A", {"a": "1"})}
    repo.switch("side", shas["A"])
    shas["S1"] = repo.commit("S1", {"s": "1"})
    shas["S2"] = repo.commit("S2", {"s": "2"})
    repo.switch("main")
    shas["B"] = repo.commit("B", {"a": "2"})
    shas["M"] = repo.merge("side", subject="M")
    shas["D"] = repo.commit("D", {"a": "3"})
    return shas


def test_candidates_are_those_of_rev_list_oldest_first(repo):
    shas = repo.linear(6)
    found = Repository(repo.path).range(f"{shas[1]}..{shas[5]}")
    expected = repo.git("rev-list", "--reverse", f"{shas[1]}..{shas[5]}").split()
    assert [c.sha for c in found.commits] == expected == shas[2:]
    assert (found.good.sha, found.bad.sha, found.repository) == (shas[1], shas[5], "project")
    assert [c.subject for c in found.commits] == ["commit 2", "commit 3", "commit 4", "commit 5"]


def test_first_parent_leaves_out_the_merged_branch(repo, merged):
    found = Repository(repo.path).range(f"{merged['A']}..main")
    assert [c.sha for c in found.commits] == [merged[k] for k in ("B", "M", "D")]
    assert found.parents() == [(), (0,), (1,)]


def test_all_parents_are_ordered_parents_first(repo, merged):
    found = Repository(repo.path).range(f"{merged['A']}..main", first_parent=False)
    shas = [c.sha for c in found.commits]
    assert set(shas) == set(repo.git("rev-list", f"{merged['A']}..main").split())
    parents = found.parents()
    assert {shas[i] for i in parents[shas.index(merged["M"])]} == {merged["B"], merged["S2"]}
    assert all(p < i for i, above in enumerate(parents) for p in above)
    assert found.commits[-1].sha == merged["D"]


def test_good_on_the_merged_branch_follows_git(repo, merged):
    found = Repository(repo.path).range(f"{merged['S1']}..main")
    expected = repo.git("rev-list", "--reverse", "--first-parent", f"{merged['S1']}..main").split()
    assert [c.sha for c in found.commits] == expected


@pytest.mark.parametrize("revision", ["HEAD", "HEAD~2", "v1", "main", "main@{0}", ":/commit 2", "HEAD^{/commit 1}"])
def test_anything_rev_parse_takes_is_a_revision(repo, revision):
    repo.linear(4)
    repo.git("tag", "-a", "-m", "annotated", "v1", "HEAD~1")
    expected = repo.git("rev-parse", f"{repo.git('rev-parse', revision)}^{{commit}}")
    assert Repository(repo.path).commit(revision).sha == expected


def test_range_in_words_of_rev_parse(repo):
    shas = repo.linear(5)
    assert [c.sha for c in Repository(repo.path).range("HEAD~3..HEAD").commits] == shas[2:]


def test_unknown_revision_suggests_a_near_name(repo):
    repo.linear(2)
    repo.git("branch", "core_r0.14.0")
    message = error_of(Repository(repo.path).range, "core_r0.14..main")
    assert message == "unknown revision 'core_r0.14' in project: did you mean 'core_r0.14.0'?"


def test_unknown_branch_that_only_the_remote_has(repo, tmp_path):
    repo.linear(2)
    repo.git("branch", "core_r0.14.0")
    clone = repo.clone(tmp_path / "clone")
    message = error_of(Repository(clone.path).commit, "core_r0.14.0")
    assert message == "unknown revision 'core_r0.14.0' in project: did you mean 'origin/core_r0.14.0'?"


def test_unknown_revision_without_a_near_name(repo):
    repo.linear(2)
    message = error_of(Repository(repo.path).range, "main..zzz")
    assert message == "unknown revision 'zzz' in project: no branch or tag has a name like it"


def test_unknown_commit_id_points_at_fetch(repo):
    repo.linear(1)
    assert "`git fetch` may bring it" in error_of(Repository(repo.path).commit, "deadbeef" * 5)


@pytest.mark.parametrize("revision", ["", "-n1", "--all", "a\nb", "a\0b", "\x1b[31mred"])
def test_hostile_revisions_are_unknown(repo, revision):
    repo.linear(1)
    assert error_of(Repository(repo.path).commit, revision).startswith("unknown revision")


def test_revision_that_is_a_file(repo):
    repo.commit("one", {"a": "1"})
    assert error_of(Repository(repo.path).commit, "HEAD:a") == "revision 'HEAD:a' is a blob, not a commit"


def test_ambiguous_short_id(repo):
    # Two of some hundred commit ids share their first four digits, the fewest that git takes.
    repo.linear(1)
    stream = "".join(
        f"commit refs/heads/many\ncommitter A <a@b> {n} +0000\ndata {len(str(n))}\n{n}\n" for n in range(1500)
    )
    repo.git("fast-import", "--quiet", input=stream)
    prefixes = Counter(sha[:4] for sha in repo.git("rev-list", "many").split())
    prefix = max(prefixes, key=prefixes.get)
    assert prefixes[prefix] > 1
    message = error_of(Repository(repo.path).commit, prefix)
    assert message == f"revision '{prefix}' is ambiguous in project: give more digits of the commit id"


def test_reversed_range(repo):
    repo.linear(3)
    message = error_of(Repository(repo.path).range, "HEAD..HEAD~2")
    assert message == "the range HEAD..HEAD~2 is reversed, bad is an ancestor of good: did you mean HEAD~2..HEAD?"


def test_good_equal_to_bad(repo):
    shas = repo.linear(2)
    message = error_of(Repository(repo.path).range, "HEAD..main")
    assert message == f"the range HEAD..main is empty: good and bad are the same commit {shas[1][:10]}"


def test_bad_is_no_descendant_names_the_merge_base(repo):
    base = repo.commit("base", {"a": "1"})
    repo.switch("side", base)
    repo.commit("side", {"s": "1"})
    repo.switch("main")
    repo.commit("main", {"a": "2"})
    message = error_of(Repository(repo.path).range, "side..main")
    short = base[:10]
    assert message == (
        f"bad main is not a descendant of good side: they part at {short}; {short}..main is a range if that commit is good"
    )


def test_no_common_history(repo):
    repo.commit("one", {"a": "1"})
    repo.git("checkout", "-q", "--orphan", "other")
    repo.commit("other", {"a": "2"})
    message = error_of(Repository(repo.path).range, "main..other")
    assert message == "bad other is not a descendant of good main: they have no common history"


@pytest.mark.parametrize("spec", ["", "..", "main", "main..", "..main", "main...HEAD", "a..b..c", " .. ", "main.. "])
def test_malformed_ranges(repo, spec):
    repo.linear(2)
    message = error_of(Repository(repo.path).range, spec)
    assert message == f"malformed range '{spec}': write GOOD..BAD, two revisions with two dots between"


def test_a_repository_without_commits(repo):
    assert error_of(Repository(repo.path).range, "HEAD~1..HEAD").startswith("unknown revision 'HEAD~1' in project")


def test_an_octopus_merge(repo):
    base = repo.commit("base", {"a": "1"})
    for name in ("x", "y", "z"):
        repo.switch(name, base)
        repo.commit(name, {name: "1"})
    repo.switch("main")
    repo.merge("x", "y", "z")
    found = Repository(repo.path).range(f"{base}..HEAD", first_parent=False)
    assert len(found.commits) == 4
    assert found.parents()[-1] == tuple(
        [c.sha for c in found.commits].index(p) for p in repo.git("rev-parse", "HEAD^2", "HEAD^3", "HEAD^4").split()
    )
