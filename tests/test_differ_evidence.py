"""recompute_changes over real histories: what it reads, what it survives, how it orders."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
from gitrepo import GitRepo
from source_change import BLOCK, CONFIG

from bisect_recompute.differ.evidence import expand_submodules, recompute_changes, weight
from bisect_recompute.history.repository import Repository

FIELD = "class TransformerConfig:\n    recompute_granularity: str = {}\n"


def changes(repo, *shas):
    repository = Repository(repo.path)
    return recompute_changes(repository, [repository.commit(sha) for sha in shas])


def test_one_entry_per_commit_in_the_order_asked(repo):
    first = repo.commit("add", {CONFIG: FIELD.format("None")})
    quiet = repo.commit("other", {"README.md": "recompute_granularity\n"})
    loud = repo.commit("Update README", {CONFIG: FIELD.format("'full'")})
    found = changes(repo, loud, quiet, first)
    assert [c.commit.sha for c in found] == [loud, quiet, first]
    assert [c.kinds for c in found] == [("default",), ("none",), ("none",)]
    assert [(c.field, c.old, c.new) for c in found[0].changes] == [("recompute_granularity", None, "full")]


def test_suspects_come_before_others_and_nothing_is_left_out(repo):
    loud = repo.commit("add", {CONFIG: FIELD.format("None")})
    loud = repo.commit("turn it on", {CONFIG: FIELD.format("'full'")})
    quiet = repo.commit("other", {"a.txt": ""})
    weights = [weight(c) for c in changes(repo, loud, quiet)]
    assert weights[0] == 10 * weights[1] > 0


def test_a_merge_is_compared_with_its_first_parent(repo):
    start = repo.commit("add", {CONFIG: FIELD.format("None")})
    repo.switch("topic", start)
    topic = repo.commit("on", {CONFIG: FIELD.format("'full'")})
    repo.switch("main")
    repo.commit("other", {"a.txt": "1"})
    merge = repo.merge("topic")
    found = changes(repo, topic, merge)
    assert [c.kinds for c in found] == [("default",), ("default",)]


def test_files_deleted_and_created_again(repo):
    repo.commit("add", {CONFIG: FIELD.format("None"), "a.txt": ""})
    gone = repo.commit("delete", {CONFIG: None})
    back = repo.commit("again", {CONFIG: FIELD.format("'full'")})
    assert [c.commit.sha for c in changes(repo, gone, back)] == [gone, back]


def test_text_that_is_no_python_today(repo):
    site = "def forward(self, x):\n    return tensor_parallel.checkpoint(self.mlp, False, x)\n"
    old_python = "def show():\n    print 'recompute'\n\n\n" + site
    repo.commit("python 2", {BLOCK: old_python})
    new = repo.commit("change", {BLOCK: old_python.replace("False, x", "self.distribute, x")})
    broken = repo.commit(
        "broken", {BLOCK: "<<<<<<< HEAD\n" + site.replace("(self.mlp", "(self.moe") + ">>>>>>> x\n  def\n"}
    )
    found = changes(repo, new, broken)
    assert [c.kinds for c in found] == [("checkpoint-site",), ("checkpoint-site",)]


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe\x00recompute_granularity = 1\n",
        b"x = '\xe9' # recompute_granularity\n",
        b"\0" * 9000 + b"recompute",
        b"def f(:\n recompute_granularity\n",
        "\ufeffx = recompute_granularity\n".encode(),
        b"recompute = " + b"(" * 5000,
        b"if recompute_a:\n" + b"".join(b" " * i + b"if recompute_b:\n" for i in range(1, 120)),
        b"x = " + b" + ".join([b"recompute_x"] * 4000),
    ],
    ids=range(8),
)
def test_content_that_no_parser_likes(repo, content):
    repo.commit("before", {BLOCK: "recompute_x = 1\n"})
    sha = repo.commit("after", {BLOCK: content})
    back = repo.commit("back", {BLOCK: "recompute_x = 2\n"})
    assert len(changes(repo, sha, back)) == 2


def test_a_file_of_100000_lines(repo):
    text = "".join(f"def f{i}(self):\n    self.recompute_x = {i}\n    return {i}\n" for i in range(34_000))
    repo.commit("before", {BLOCK: text})
    sha = repo.commit("after", {BLOCK: text.replace("recompute_x = 77\n", "recompute_x = 78\n")})
    (found,) = changes(repo, sha)
    assert [(c.symbol, c.line) for c in found.source] == [("f77", 77 * 3 + 2)]


def test_a_symbolic_link_is_no_source(repo):
    repo.commit("before", {BLOCK: "recompute_x = 1\n"})
    (repo.path / "megatron/core/link.py").symlink_to("transformer/recompute_x.py")
    sha = repo.commit("link", {})
    assert changes(repo, sha)[0].kinds == ("none",)


def test_blobs_that_a_partial_clone_lacks(repo, tmp_path):
    repo.commit("before", {CONFIG: FIELD.format("None")})
    sha = repo.commit("after", {CONFIG: FIELD.format("'full'")})
    clone = repo.clone(tmp_path / "partial", "--no-checkout", "--filter=blob:none")
    repo.delete()
    assert changes(clone, sha)[0].kinds == ("none",)


@pytest.fixture
def bump(tmp_path):
    """A repository whose last commit moves a submodule over three commits, one of which changes a default."""
    inner = GitRepo(tmp_path / "inner")
    shas = [inner.commit("start", {CONFIG: FIELD.format("None")})]
    shas.append(inner.commit("docs", {"README.md": "x"}))
    shas.append(inner.commit("chore", {CONFIG: FIELD.format("'selective'")}))
    shas.append(inner.commit("more docs", {"README.md": "y"}))
    outer = GitRepo(tmp_path / "outer")
    link = "3rdparty/Megatron-LM"
    outer.git("update-index", "--add", "--cacheinfo", f"160000,{shas[0]},{link}")
    outer.git("commit", "-q", "-m", "add")
    outer.git("update-index", "--cacheinfo", f"160000,{shas[3]},{link}")
    outer.git("commit", "-q", "-m", "Bump uv.lock")
    return outer, inner, shas, link


def test_a_submodule_bump_names_old_and_new(bump):
    outer, _, shas, link = bump
    (found,) = changes(outer, outer.head())
    assert found.kinds == ("submodule",)
    assert (found.source[0].file, shas[0] in found.source[0].detail, shas[3] in found.source[0].detail) == (
        link,
        True,
        True,
    )


def test_a_bump_is_expanded_into_the_commits_it_brings(bump):
    outer, inner, shas, link = bump
    repository = Repository(outer.path)
    expanded = expand_submodules(repository, [repository.commit("HEAD")], Repository(inner.path))
    ((moved, inside),) = expanded[outer.head()]
    assert (moved.path, [c.sha for c in moved.brought], moved.lost) == (link, shas[1:], ())
    assert [c.kinds for c in inside] == [("none",), ("default",), ("none",)]


def test_a_bump_to_another_branch_loses_commits_too(bump):
    outer, inner, shas, link = bump
    inner.switch("side", shas[1])
    side = inner.commit("side", {"side.txt": ""})
    outer.git("update-index", "--cacheinfo", f"160000,{side},{link}")
    outer.git("commit", "-q", "-m", "to side")
    repository = Repository(outer.path)
    ((moved, _),) = expand_submodules(repository, [repository.commit("HEAD")], Repository(inner.path))[outer.head()]
    assert ([c.sha for c in moved.brought], [c.sha for c in moved.lost]) == ([side], shas[2:])


def test_a_bump_whose_commits_are_not_at_hand_says_so(bump, tmp_path):
    outer, _, shas, _ = bump
    stranger = GitRepo(tmp_path / "stranger")
    stranger.commit("x", {"a": ""})
    repository = Repository(outer.path)
    ((moved, inside),) = expand_submodules(repository, [repository.commit("HEAD")], Repository(stranger.path))[
        outer.head()
    ]
    assert inside == [] and shas[0][:10] in moved.problem and "fetch" in moved.problem


def test_nothing_of_the_history_is_imported_or_run(repo, tmp_path):
    trap = tmp_path / "trap"
    evil = f"open({str(trap)!r}, 'w').write('ran')\nrecompute_granularity = 'full'\n"
    repo.commit("before", {"megatron/core/__init__.py": "recompute_granularity = None\n", "sitecustomize.py": ""})
    sha = repo.commit("after", {"megatron/core/__init__.py": evil, "sitecustomize.py": evil})
    script = textwrap.dedent("""
        import json, sys
        from pathlib import Path
        from bisect_recompute.differ.evidence import recompute_changes
        from bisect_recompute.history.repository import Repository
        repository = Repository(Path(sys.argv[1]))
        found = recompute_changes(repository, [repository.commit(sys.argv[2])])
        print(json.dumps([found[0].kinds, "torch" in sys.modules, "megatron" in sys.modules]))
        """)
    path = os.pathsep.join(p for p in sys.path if p)
    out = subprocess.run(
        [sys.executable, "-c", script, str(repo.path), sha],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert json.loads(out) == [["checkpoint-site"], False, False]
    assert not trap.exists()
