import hashlib
import os
import subprocess
import threading
from pathlib import Path

import pytest
from gitrepo import GitRepo
from hypothesis import given
from hypothesis import strategies as st

from bisect_recompute.errors import UsageError
from bisect_recompute.history.commit import ChangedPath
from bisect_recompute.history.repository import Repository, _one_line
from bisect_recompute.history.worktree import Worktrees


def error_of(call, *args):
    with pytest.raises(UsageError) as caught:
        call(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def ls_tree(repo, revision, *paths):
    lines = repo.git("ls-tree", "-r", "-z", revision, "--", *paths).split("\0")[:-1]
    return {line.split("\t", 1)[1]: tuple(line.split("\t")[0].split()) for line in lines}


# Finding the repository


def test_from_the_top_a_subdirectory_and_the_git_directory(repo):
    repo.commit("one", {"a/b/c.txt": "1"})
    for path in (repo.path, repo.path / "a" / "b", repo.path / ".git"):
        found = Repository(path)
        assert found.git_dir == repo.path / ".git"
        assert found.name == "project"


def test_a_bare_repository(repo, tmp_path):
    repo.linear(3)
    bare = repo.clone(tmp_path / "mirror.git", "--bare")
    bare.git("remote", "remove", "origin")
    found = Repository(bare.path)
    assert found.name == "mirror"
    assert len(found.range("main~2..main").commits) == 2


def test_a_linked_work_tree_has_its_own_head_and_shares_the_objects(repo, tmp_path):
    shas = repo.linear(3)
    repo.git("worktree", "add", "-q", "--detach", str(tmp_path / "linked"), shas[0])
    main, linked = Repository(repo.path), Repository(tmp_path / "linked")
    assert (main.commit("HEAD").sha, linked.commit("HEAD").sha) == (shas[2], shas[0])
    assert main.common_dir == linked.common_dir == repo.path / ".git"
    assert linked.name == "project"


def test_a_submodule_work_tree(repo, tmp_path):
    inner = GitRepo(tmp_path / "inner")
    sha = inner.commit("inner", {"x": "1"})
    repo.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner.path), "sub")
    assert Repository(repo.path / "sub").commit("HEAD").sha == sha


def test_sha256_repositories(tmp_path):
    repo = GitRepo(tmp_path / "wide", "--object-format=sha256")
    sha = repo.commit("one", {"d/a": "1", "b": "2"})
    found = Repository(repo.path)
    assert len(sha) == 64 and found.commit("HEAD").sha == sha
    assert found.tree(sha) == {path: entry[2] for path, entry in ls_tree(repo, sha).items()}
    assert found.read_blob(found.tree(sha)["d/a"]) == b"1"


@pytest.mark.parametrize(
    "url, name",
    [
        ("https://user:secret@example.com/NVIDIA/Megatron-LM.git", "Megatron-LM"),
        ("git@example.com:NVIDIA/Megatron-LM", "Megatron-LM"),
        ("ssh://example.com/x/Megatron-LM.git/", "Megatron-LM"),
        ("/srv/mirrors/repo", "project"),
        ("../repo.git", "project"),
    ],
)
def test_the_name_is_that_of_the_origin_or_of_the_directory(repo, url, name):
    repo.linear(1)
    repo.git("remote", "add", "origin", url)
    assert Repository(repo.path).name == name


def test_not_a_repository(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    message = error_of(Repository, tmp_path)
    assert message.startswith(f"not a repository: {tmp_path} is in no git clone")


def test_no_such_directory(tmp_path):
    assert error_of(Repository, tmp_path / "nowhere") == f"not a repository: there is no directory {tmp_path}/nowhere"


def test_a_shallow_clone(repo, tmp_path):
    repo.linear(4)
    shallow = repo.clone(tmp_path / "shallow", "--depth=2")
    message = error_of(Repository, shallow.path)
    assert message == (
        f"{shallow.path} is a shallow clone, its history ends early: run `git -C {shallow.path} fetch --unshallow`"
    )
    shallow.git("fetch", "-q", "--unshallow")
    assert len(Repository(shallow.path).range("HEAD~3..HEAD").commits) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_repository_of_another_user(repo, tmp_path, monkeypatch):
    repo.linear(2)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    for path in (repo.path, repo.path / ".git"):
        os.chown(path, 65534, 65534)
    message = error_of(Repository, repo.path)
    advice = f"git config --global --add safe.directory {repo.path}"
    assert message == f"git does not trust {repo.path}, another user owns it: run `{advice}`"
    subprocess.run(advice.split(), check=True, env={**os.environ, "GIT_CONFIG_GLOBAL": str(tmp_path / "gitconfig")})
    assert len(Repository(repo.path).range("HEAD~1..HEAD").commits) == 1


def test_git_is_missing(repo, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert error_of(Repository, repo.path).startswith("git is not on PATH: install git")


def test_variables_of_an_outer_git_do_not_redirect(repo, tmp_path, monkeypatch):
    shas = repo.linear(2)
    other = GitRepo(tmp_path / "other")
    other.commit("other", {"x": "1"})
    # A hook, and `git bisect run` under `git --git-dir`, run with these set.
    for name, value in {
        "GIT_DIR": other.path / ".git",
        "GIT_WORK_TREE": other.path,
        "GIT_INDEX_FILE": other.path / ".git" / "index",
        "GIT_OBJECT_DIRECTORY": other.path / ".git" / "objects",
        "GIT_COMMON_DIR": other.path / ".git",
        "GIT_PREFIX": "a/",
        "GIT_NAMESPACE": "ns",
        "GIT_EXTERNAL_DIFF": "false",
        "GIT_LITERAL_PATHSPECS": "1",
    }.items():
        monkeypatch.setenv(name, str(value))
    found = Repository(repo.path)
    assert found.git_dir == repo.path / ".git"
    assert found.commit("HEAD").sha == shas[1]
    assert [c.path for c in found.changed_paths(found.commit("HEAD"))] == ["file.txt"]


# Text of commits


def test_fields_of_a_commit(repo):
    first = repo.commit("first", {"a": "1"})
    second = repo.commit("Subject line\nstill the subject\n\nbody", {"a": "2"}, author="Grace Hopper")
    commit = Repository(repo.path).commit("HEAD")
    assert (commit.sha, commit.parents, commit.author) == (second, (first,), "Grace Hopper")
    assert commit.subject == "Subject line still the subject"
    assert commit.date == repo.git("log", "-1", "--format=%aI")


@pytest.mark.parametrize(
    "subject, shown",
    [
        ("\x1b]0;owned\x07\x1b[31mred", "\ufffd]0;owned\ufffd\ufffd[31mred"),
        ("tab\there\rgone\x7f\x9b1m", "tab\ufffdhere\ufffdgone\ufffd\ufffd1m"),
        ("a\u202egnihtemos\u2066x", "a\ufffdgnihtemos\ufffdx"),
        ("line\u2028separator\u2029s", "line\ufffdseparator\ufffds"),
        ("<script>alert(1)</script> `rm -rf` $(x) | a", "<script>alert(1)</script> `rm -rf` $(x) | a"),
        ("größer 漢字 👩\u200d💻", "größer 漢字 👩\u200d💻"),
    ],
)
def test_hostile_and_foreign_subjects_become_one_harmless_line(repo, subject, shown):
    repo.commit(subject, {"a": "1"}, author=subject)
    commit = Repository(repo.path).commit("HEAD")
    assert commit.subject == shown
    # git drops characters such as < and > from names.
    assert "\x1b" not in commit.author and "\u202e" not in commit.author


def test_a_subject_in_another_encoding(repo):
    repo.write({"a": "1"})
    repo.git("add", "-A")
    repo.git("-c", "i18n.commitEncoding=ISO-8859-1", "commit", "-q", "-F", "-", input="größer".encode("latin-1"))
    assert Repository(repo.path).commit("HEAD").subject == "größer"


def test_a_subject_with_broken_bytes(repo):
    sha = _raw_commit(repo, b"subject \xff\xfe end", b"Na\xffme <a@b>")
    commit = Repository(repo.path).commit(sha)
    assert (commit.subject, commit.author) == ("subject \ufffd\ufffd end", "Na\ufffdme")


def test_commits_without_subject_or_author_keep_their_place(repo):
    shas = [_raw_commit(repo, b"", b"<>")]
    shas.append(_raw_commit(repo, b"\n\n", b"<>", parent=shas[0]))
    shas.append(_raw_commit(repo, b"third", b"A <a@b>", parent=shas[1]))
    commits = Repository(repo.path).range(f"{shas[0]}..{shas[2]}").commits
    assert [(c.sha, c.subject, c.author) for c in commits] == [(shas[1], "", ""), (shas[2], "third", "A")]


def _raw_commit(repo, message, author, parent=None):
    tree = repo.git("hash-object", "-w", "-t", "tree", "--stdin", input="")
    head = f"tree {tree}\n" + (f"parent {parent}\n" if parent else "")
    text = head.encode() + b"author " + author + b" 0 +0000\ncommitter C <c@d> 0 +0000\n\n" + message
    return repo.git("hash-object", "-w", "-t", "commit", "--stdin", "--literally", input=text)


@given(st.text())
def test_one_line_leaves_nothing_that_steers_a_terminal(text):
    shown = _one_line(text)
    assert len(shown) == len(text)
    assert len(shown.splitlines()) <= 1
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in shown)
    shown.encode("utf-8")


# Trees and blobs


def test_tree_is_that_of_ls_tree(repo):
    repo.write({"top.txt": "t", "pkg/core/a.py": "a", "pkg/core/deep/er/b.py": "b", "pkg/x": "x", "pkgs/y": "y"})
    os.symlink("top.txt", repo.path / "pkg" / "link")
    sha = repo.commit("one", {b"odd \xff\n name".decode("utf-8", "surrogateescape"): "odd", "ü/漢": "u"})
    found = Repository(repo.path)
    for prefix, paths in (("", ()), ("pkg/", ("pkg",)), ("pkg", ("pkg",)), ("pkg/core", ("pkg/core",)),
                          ("top.txt", ("top.txt",)), ("ü", ("ü",))):
        expected = {path: entry[2] for path, entry in ls_tree(repo, sha, *paths).items()}
        assert found.tree(sha, prefix) == expected and expected
    assert found.tree(sha, "absent/") == {} == found.tree(sha, "top.txt/below")


def test_trees_equal_under_a_prefix_are_one_object(repo):
    shas = [repo.commit(str(i), {"docs/a": str(i), "megatron/core/x.py": "x"}) for i in range(3)]
    found = Repository(repo.path)
    assert len({id(found.tree(sha, "megatron/")) for sha in shas}) == 1
    assert len({id(found.tree(sha)) for sha in shas}) == 3


def test_the_same_content_in_two_places_keeps_its_paths(repo):
    sha = repo.commit("one", {"a/x": "1", "b/x": "1"})
    found = Repository(repo.path)
    assert list(found.tree(sha, "a")) == ["a/x"]
    assert list(found.tree(sha, "b")) == ["b/x"]
    assert sorted(found.tree(sha)) == ["a/x", "b/x"]


def test_submodules_are_no_files(repo, tmp_path):
    inner = GitRepo(tmp_path / "inner")
    first, second = inner.linear(2)
    repo.commit("one", {"a": "1"})
    repo.git("update-index", "--add", "--cacheinfo", f"160000,{first},3rdparty/lib")
    repo.git("commit", "-q", "-m", "add")
    added = repo.head()
    repo.git("update-index", "--cacheinfo", f"160000,{second},3rdparty/lib")
    repo.git("commit", "-q", "-m", "bump")
    found = Repository(repo.path)
    assert found.submodules(added) == {"3rdparty/lib": first}
    assert found.submodules(repo.head()) == {"3rdparty/lib": second}
    assert list(found.tree(added)) == ["a"]
    assert found.tree(added, "3rdparty/lib") == {}
    assert found.changed_paths(found.commit("HEAD")) == [
        ChangedPath("M", "3rdparty/lib", None, None, old_commit=first, new_commit=second)
    ]


def test_unknown_commit_and_blob(repo):
    repo.linear(1)
    found = Repository(repo.path)
    assert found.read_blob("0" * 39 + "1") is None
    assert "lacks commit" in error_of(found.tree, "0" * 39 + "1")
    with pytest.raises(ValueError):
        found.read_blob("HEAD:file.txt")


def test_blobs_of_any_bytes(repo):
    contents = {"empty": b"", "nul": b"\0\n\0", "crlf": b"a\r\nb\n", "big": os.urandom(3_000_000)}
    sha = repo.commit("one", contents)
    found = Repository(repo.path)
    for name, blob in found.tree(sha).items():
        assert found.read_blob(blob) == contents[name]


def test_blobs_read_by_many_threads(repo):
    sha = repo.commit("one", {f"f{i}": f"content {i}\n" * (i + 1) for i in range(60)})
    found = Repository(repo.path)
    wrong = []

    def work(start):
        for name, blob in list(found.tree(sha).items())[start:] * 3:
            number = int(name[1:])
            if found.read_blob(blob) != (f"content {number}\n" * (number + 1)).encode():
                wrong.append(name)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert wrong == []


def test_reading_goes_on_after_git_was_killed_and_after_a_repack(repo):
    sha = repo.commit("one", {"a": "1", "b": "2"})
    found = Repository(repo.path)
    tree = found.tree(sha)
    assert found.read_blob(tree["a"]) == b"1"
    found._objects._process.kill()
    assert found.read_blob(tree["b"]) == b"2"
    repo.git("gc", "-q", "--prune=now")
    assert found.read_blob(tree["a"]) == b"1"
    new = repo.commit("two", {"c": "3"})
    assert found.read_blob(found.tree(new)["c"]) == b"3"
    found.close()
    assert found.read_blob(tree["a"]) == b"1"


def test_a_partial_clone_is_not_fetched_into(repo, tmp_path):
    repo.commit("one", {"a.txt": "old"})
    repo.commit("two", {"a.txt": "new"})
    partial = repo.clone(tmp_path / "partial", "--filter=blob:none")
    before = snapshot(partial.path)
    found = Repository(partial.path)
    blob = found.tree(found.commit("HEAD~1").sha)["a.txt"]
    assert found.read_blob(blob) is None
    assert found.read_blob(found.tree(found.commit("HEAD").sha)["a.txt"]) == b"new"
    assert snapshot(partial.path) == before


def test_a_clone_without_trees(repo, tmp_path):
    shas = repo.linear(3)
    partial = repo.clone(tmp_path / "partial", "--filter=tree:0", "--no-checkout")
    found = Repository(partial.path)
    assert len(found.range(f"{shas[0]}..{shas[2]}").commits) == 2
    assert "partial clone without trees" in error_of(found.tree, shas[1])


# What a commit changes


def expected_changes(repo, sha):
    parent = repo.git("rev-parse", f"{sha}^1", check=False) if repo.git("log", "-1", "--format=%P", sha) else None
    base = parent or "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
    fields = repo.git("diff-tree", "-r", "-z", "--no-renames", "--no-abbrev", base, sha).split("\0")[:-1]
    changes = []
    for head, path in zip(fields[::2], fields[1::2]):
        _, _, old, new, status = head[1:].split()
        changes.append(ChangedPath(status, path, *(blob if blob.strip("0") else None for blob in (old, new))))
    return changes


def test_changed_paths_of_a_whole_range(repo):
    repo.commit("root", {"a": "1", "d/b": "2", "gone": "3", "swap": "4"})
    repo.commit("edit and remove", {"a": "2", "gone": None})
    repo.commit("empty")
    (repo.path / "swap").unlink()
    os.symlink("a", repo.path / "swap")
    os.chmod(repo.path / "a", 0o755)
    repo.commit("types and modes")
    repo.git("mv", "d/b", "d/c")
    repo.commit("rename")
    repo.commit("odd", {b"\xff\n\t\"".decode("utf-8", "surrogateescape"): "x"})
    repo.switch("side", "HEAD~2")
    repo.commit("side", {"s": "1"})
    repo.switch("main")
    repo.merge("side")
    # Porcelain settings that would hide or reshape changes.
    for name, value in {"diff.renames": "copies", "diff.ignoreSubmodules": "all", "diff.relative": "true",
                        "core.quotePath": "true", "log.showRoot": "false", "diff.external": "false"}.items():
        repo.git("config", name, value)
    found = Repository(repo.path)
    commits = [found.commit(sha) for sha in repo.git("rev-list", "HEAD").split()]
    changes = found.changes_in(commits)
    assert list(changes) == [c.sha for c in commits]
    for commit in commits:
        assert changes[commit.sha] == expected_changes(repo, commit.sha) == found.changed_paths(commit)
    statuses = {(c.status, c.path) for c in changes[repo.git("rev-parse", ":/types")]}
    assert statuses == {("M", "a"), ("T", "swap")}
    assert found.changes_in([]) == {}


# The user's repository stays as it is


def snapshot(folder: Path) -> dict:
    """Type, mode, modification time and content of everything in a directory, .git included."""
    found = {}
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        digest = hashlib.sha256(os.fsencode(content)).hexdigest()
        found[str(path.relative_to(folder))] = (info.st_mode, info.st_mtime_ns, info.st_size, digest)
    return found


def test_a_dirty_work_tree_is_left_byte_for_byte(repo, tmp_path):
    shas = repo.linear(4)
    repo.commit("more", {"megatron/core/x.py": "x = 1\n", "staged.txt": "0", "dirty.txt": "0"})
    repo.write({"stashed.txt": "s"})
    repo.git("add", "-A")
    repo.git("stash", "-q")
    repo.git("worktree", "add", "-q", "--detach", str(tmp_path / "linked"), shas[0])
    repo.git("config", "core.fsmonitor", "false")
    repo.git("config", "gc.auto", "1")
    repo.write({"staged.txt": "1"})
    repo.git("add", "-A")
    repo.write({"staged.txt": "2", "dirty.txt": "1", "untracked.txt": "u"})
    os.utime(repo.path / "file.txt", (0, 0))  # The index now has a stale entry that `git status` would refresh.
    before = snapshot(repo.path)
    found = Repository(repo.path)
    candidates = found.range(f"{shas[0]}..HEAD").commits
    found.range(f"{shas[0]}..HEAD", first_parent=False)
    found.changes_in(candidates)
    worktrees = Worktrees(found, tmp_path / "cache")
    for commit in candidates:
        found.tree(commit.sha)
        with worktrees.checkout(commit.sha):
            pass
    found.close()
    assert snapshot(repo.path) == before
    status = repo.git("status", "--porcelain", GIT_OPTIONAL_LOCKS="0").splitlines()
    assert status == [" M dirty.txt", "MM staged.txt", "?? untracked.txt"]


def test_a_repository_that_may_only_be_read(repo, tmp_path):
    sha = repo.commit("one", {"a/b": "1"})
    paths = [repo.path, *repo.path.rglob("*")]
    modes = {path: path.stat().st_mode for path in paths}
    for path in paths:
        path.chmod(modes[path] & ~0o222)
    try:
        found = Repository(repo.path)
        with Worktrees(found, tmp_path / "cache").checkout(sha) as tree:
            assert (tree / "a/b").read_text() == "1"
    finally:
        for path in paths:
            path.chmod(modes[path])
