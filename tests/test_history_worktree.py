import hashlib
import os
import random
import resource
import stat
import subprocess
import sys
import textwrap
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from bisect_recompute.errors import UsageError
from bisect_recompute.history.repository import Repository
from bisect_recompute.history.worktree import Worktrees, cache_dir


def listed(repo, sha):
    """git's own list: path -> (mode, blob id), without submodules."""
    lines = repo.git("ls-tree", "-r", "-z", sha).split("\0")[:-1]
    entries = {line.split("\t", 1)[1]: line.split("\t")[0].split() for line in lines}
    return {path: (mode, blob) for path, (mode, kind, blob) in entries.items() if kind == "blob"}


def on_disk(tree):
    """What a checkout holds, as git would list it; ``__pycache__`` left out."""
    found = {}
    for folder, folders, files in os.walk(tree):
        folders[:] = [f for f in folders if f != "__pycache__"]
        for name in files + [f for f in folders if os.path.islink(os.path.join(folder, f))]:
            path = os.path.join(folder, name)
            info = os.lstat(path)
            if stat.S_ISLNK(info.st_mode):
                mode, content = "120000", os.fsencode(os.readlink(path))
            else:
                mode = "100755" if info.st_mode & 0o100 else "100644"
                with open(path, "rb") as file:
                    content = file.read()
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            found[os.path.relpath(path, tree)] = (mode, blob)
    return found


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def test_holds_what_git_lists(repo, cache):
    repo.write({"run.sh": "#!/bin/sh\n", "a/b/c.py": "c", "empty": "", b"\xff odd\n".decode("utf-8", "surrogateescape"): "o"})
    os.chmod(repo.path / "run.sh", 0o755)
    os.symlink("a/b", repo.path / "link")
    os.symlink("/nowhere", repo.path / "a" / "dangling")
    sha = repo.commit("one")
    with Worktrees(Repository(repo.path), cache).checkout(sha) as tree:
        assert on_disk(tree) == listed(repo, sha)


def test_only_megatron_and_root_files_of_megatron_lm(repo, cache):
    sha = repo.commit("one", {"megatron/core/a.py": "a", "megatron/training/b.py": "b", "setup.py": "s", "tests/t.py": "t"})
    with Worktrees(Repository(repo.path), cache).checkout(sha) as tree:
        assert sorted(on_disk(tree)) == ["megatron/core/a.py", "megatron/training/b.py", "setup.py"]


def test_submodules_are_left_out(repo, cache):
    repo.commit("one", {"a": "1"})
    repo.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},sub")
    repo.git("commit", "-q", "-m", "sub")
    with Worktrees(Repository(repo.path), cache).checkout(repo.head()) as tree:
        assert sorted(on_disk(tree)) == ["a"]


@pytest.mark.parametrize("seed", range(6))
def test_moving_between_commits_leaves_exactly_the_new_one(repo, cache, seed):
    """Files, directories, links and modes take each other's places at random."""
    rng = random.Random(seed)
    names = ["a", "a/b", "a/b/c", "d", "d/e", "f.py", "g/h/i"]
    shas = []
    for number in range(7):
        repo.git("rm", "-rqf", "--ignore-unmatch", ".")
        for name in rng.sample(names, 4):
            target = repo.path / name
            if any(p.is_file() or p.is_symlink() for p in [target, *target.parents[: name.count("/")]]) or target.is_dir():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            if rng.random() < 0.3:
                os.symlink(rng.choice(["a", "..", "/"]), target)
            else:
                target.write_text(str(rng.randint(0, 1)))
                target.chmod(rng.choice([0o644, 0o755]))
        shas.append(repo.commit(f"{number}"))
    worktrees = Worktrees(Repository(repo.path), cache)
    for sha in rng.choices(shas, k=20):
        with worktrees.checkout(sha) as tree:
            assert on_disk(tree) == listed(repo, sha)
    assert [p.name for p in sorted(tree.parents[1].iterdir())] == ["0", "0.lock"]


def test_unchanged_files_are_not_written_again(repo, cache):
    first = repo.commit("one", {"same": "s", "other": "1"})
    second = repo.commit("two", {"other": "2"})
    worktrees = Worktrees(Repository(repo.path), cache)
    with worktrees.checkout(first) as tree:
        before = {name: (tree / name).stat() for name in ("same", "other")}
    with worktrees.checkout(second) as tree:
        assert (tree / "same").stat().st_ctime_ns == before["same"].st_ctime_ns
        assert (tree / "same").stat().st_ino == before["same"].st_ino
        assert (tree / "other").read_text() == "2"


def test_a_new_process_goes_on_where_the_last_one_ended(repo, cache):
    sha = repo.commit("one", {"same": "s"})
    with Worktrees(Repository(repo.path), cache).checkout(sha) as tree:
        before = (tree / "same").stat()
    with Worktrees(Repository(repo.path), cache).checkout(sha) as again:
        assert again == tree
        assert (again / "same").stat() == before


def test_what_a_commits_code_did_to_its_files_is_undone(repo, cache):
    sha = repo.commit("one", {"pkg/__init__.py": "", "pkg/a.py": "a", "b": "b", "c": "c"})
    worktrees = Worktrees(Repository(repo.path), cache)
    with worktrees.checkout(sha) as tree:
        (tree / "pkg/a.py").write_text("x")
        os.utime(tree / "pkg/a.py", ns=(tree / "b").stat()[7:9])
        (tree / "b").unlink()
        (tree / "c").unlink()
        (tree / "c").mkdir()
        (tree / "build").mkdir()
        (tree / "build" / "helpers.so").write_text("x")
        (tree / "pkg" / "generated.py").write_text("x")
        os.symlink(tree, tree / "loop")
        (tree / "build").chmod(0o500)
    with worktrees.checkout(sha) as tree:
        assert on_disk(tree) == listed(repo, sha)
        assert not (tree / "build").exists()


@pytest.mark.parametrize("inner", ["", "pkg"])
def test_a_link_that_a_commits_code_left_is_not_followed(repo, cache, tmp_path, inner):
    first = repo.commit("a", {"pkg/a.py": "1\n"})
    second = repo.commit("b", {"pkg/a.py": "22\n", "pkg/b.py": "2\n"})
    victim = tmp_path / "victim"
    (victim / "pkg").mkdir(parents=True)
    for name in ("precious", "pkg/a.py"):
        (victim / name).write_text("mine")
    worktrees = Worktrees(Repository(repo.path), cache)
    with worktrees.checkout(first) as tree:
        place = tree / inner
        place.rename(tmp_path / "moved away")
        place.symlink_to(victim, target_is_directory=True)
    with worktrees.checkout(second) as tree:
        assert not tree.is_symlink()
        assert (tree / "pkg/b.py").read_text() == "2\n"
    assert sorted(p.name for p in victim.iterdir()) == ["pkg", "precious"]
    assert [p.read_text() for p in victim.rglob("*") if p.is_file()] == ["mine", "mine"]


@pytest.mark.parametrize("place", ["", "state.json", "state.new", "../0.lock", ".."])
def test_links_in_place_of_our_own_files_are_not_followed(repo, cache, tmp_path, place):
    first, second = repo.commit("a", {"a.py": "1\n"}), repo.commit("b", {"a.py": "2\n"})
    victim = tmp_path / "victim"
    for name in ("tree/a.py", "tree/precious", "0/tree/precious", "state.json"):
        (victim / name).parent.mkdir(parents=True, exist_ok=True)
        (victim / name).write_text("mine")
    worktrees = Worktrees(Repository(repo.path), cache)
    with worktrees.checkout(first) as tree:
        target = Path(os.path.normpath(tree.parent / place))
    if os.path.lexists(target):
        target.rename(tmp_path / "moved away")
    target.symlink_to(victim / "state.json" if target.suffix else victim)
    with worktrees.checkout(second) as tree:
        assert (tree / "a.py").read_text() == "2\n" and tree.resolve().is_relative_to(cache)
    assert {p.read_text() for p in victim.rglob("*") if p.is_file()} == {"mine"}
    assert sum(p.is_file() for p in victim.rglob("*")) == 4


def test_a_commit_without_files_is_checked_out_twice(repo, cache):
    sha = repo.commit("nothing")
    for _ in range(2):
        with Worktrees(Repository(repo.path), cache).checkout(sha) as tree:
            assert on_disk(tree) == {}


def test_a_package_that_a_commit_lacks_cannot_be_imported(repo, cache):
    with_it = repo.commit("one", {"pkg/old/mod.py": "VALUE = 1\n", "pkg/__init__.py": ""})
    without = repo.commit("two", {"pkg/old/mod.py": None})
    worktrees = Worktrees(Repository(repo.path), cache)
    with worktrees.checkout(with_it) as tree:
        assert python(tree, "import pkg.old.mod; print('ok')") == "ok"
        assert list((tree / "pkg/old/__pycache__").iterdir())
    with worktrees.checkout(without) as tree:
        assert not (tree / "pkg/old").exists()
        assert (tree / "pkg/__pycache__").is_dir()


def test_bytecode_of_another_commit_is_never_run(repo, cache):
    """Same size, checked out within the same second: a .pyc records only these two of its source."""
    shas = [repo.commit(str(i), {"mod.py": f"VALUE = {i}\n"}) for i in range(4)]
    worktrees = Worktrees(Repository(repo.path), cache)
    said = []
    for sha in shas:
        with worktrees.checkout(sha) as tree:
            # In process: starting Python twice would already take longer than the second that matters.
            code = "import importlib, sys; sys.path.insert(0, '.'); import mod; print(mod.VALUE)"
            said.append(python(tree, code))
            assert (tree / "__pycache__").is_dir()
    assert said == ["0", "1", "2", "3"]


def python(tree, code):
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run([sys.executable, "-c", code], cwd=tree, env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_nothing_of_git_checkout_runs_or_changes_bytes(repo, cache, tmp_path, monkeypatch):
    marker = tmp_path / "ran"
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\necho \"$0 $@\" >> {marker}\ncat\n")
    script.chmod(0o755)
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for hook in ("post-checkout", "post-index-change", "reference-transaction", "post-merge"):
        (hooks / hook).symlink_to(script)
    (tmp_path / "template").mkdir()
    (tmp_path / "template" / "hooks").symlink_to(hooks)
    sha = repo.commit("one", {
        ".gitattributes": "* text eol=crlf ident\n*.bin filter=lfs\n*.u16 working-tree-encoding=UTF-16\n",
        "unix.txt": "a\nb\n$Id$\n", "lfs.bin": "version https://git-lfs\n", "wide.u16": "wide".encode("utf-16"),
    })  # fmt: skip
    (tmp_path / "gitconfig").write_text(textwrap.dedent(f"""
        [core]
            autocrlf = true
            hooksPath = {hooks}
            fsmonitor = {script}
            attributesFile = {tmp_path}/attributes
        [init]
            templateDir = {tmp_path}/template
        [filter "lfs"]
            smudge = {script}
            process = {script}
            required = true
        [pager]
            log = {script}
        [log]
            showSignature = true
        [gpg]
            program = {script}
    """))
    (tmp_path / "attributes").write_text("* filter=lfs\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    found = Repository(repo.path)
    found.range(f"{sha}~0..{repo.commit('two', {'x': '1'})}")
    with Worktrees(found, cache).checkout(sha) as tree:
        assert on_disk(tree) == listed(repo, sha)
        assert (tree / "unix.txt").read_bytes() == b"a\nb\n$Id$\n"
    assert not marker.exists()


def test_inside_git_bisect_run_the_outer_repository_is_left_alone(repo, cache, tmp_path, monkeypatch):
    shas = repo.linear(2)
    monkeypatch.setenv("GIT_DIR", str(repo.path / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(repo.path))
    monkeypatch.setenv("GIT_INDEX_FILE", str(repo.path / ".git" / "index"))
    index = (repo.path / ".git" / "index").read_bytes()
    with Worktrees(Repository(repo.path), cache).checkout(shas[0]) as tree:
        assert (tree / "file.txt").read_text() == "0\n"
    assert (repo.path / "file.txt").read_text() == "1\n"
    assert (repo.path / ".git" / "index").read_bytes() == index


# Trees that git would not have made


@pytest.mark.parametrize("name", ["..", ".git", ".GIT", "."])
def test_a_path_that_leaves_the_checkout_is_refused(repo, cache, name):
    blob = repo.git("hash-object", "-w", "--stdin", input="evil")
    inner = raw_tree(repo, [("100644", "evil", blob)])
    sha = raw_commit(repo, raw_tree(repo, [("40000", name, inner)]))
    with pytest.raises(UsageError, match="git itself refuses to check out"):
        with Worktrees(Repository(repo.path), cache).checkout(sha):
            pass
    assert not (cache / "evil").exists()


def test_a_link_and_a_directory_of_one_name_are_refused(repo, cache, tmp_path):
    link = repo.git("hash-object", "-w", "--stdin", input=str(tmp_path))
    blob = repo.git("hash-object", "-w", "--stdin", input="evil")
    inner = raw_tree(repo, [("100644", "evil", blob)])
    sha = raw_commit(repo, raw_tree(repo, [("120000", "a", link), ("40000", "a", inner)]))
    with pytest.raises(UsageError, match="both as file and as directory"):
        with Worktrees(Repository(repo.path), cache).checkout(sha):
            pass
    assert not (tmp_path / "evil").exists()


def raw_tree(repo, entries):
    content = b"".join(f"{mode} {name}".encode() + b"\0" + bytes.fromhex(blob) for mode, name, blob in entries)
    return repo.git("hash-object", "-w", "-t", "tree", "--stdin", "--literally", input=content)


def raw_commit(repo, tree):
    text = f"tree {tree}\nauthor A <a@b> 0 +0000\ncommitter A <a@b> 0 +0000\n\nevil\n"
    return repo.git("hash-object", "-w", "-t", "commit", "--stdin", "--literally", input=text)


# Partial clones


def test_files_that_a_partial_clone_lacks_are_left_out_and_named(repo, cache, tmp_path):
    sha = repo.commit("one", {"pkg/a.py": "a = 1\n", "image.png": os.urandom(5000), "data.bin": os.urandom(6000)})
    repo.commit("two", {"image.png": "small", "data.bin": "small"})
    partial = repo.clone(tmp_path / "partial", "--filter=blob:limit=1k")
    worktrees = Worktrees(Repository(partial.path), cache)
    for _ in range(2):
        with worktrees.checkout(sha) as tree:
            assert sorted(on_disk(tree)) == ["pkg/a.py"]
        assert worktrees.missing[sha] == ("data.bin", "image.png")
    with worktrees.checkout(repo.head()) as tree:
        assert on_disk(tree) == listed(repo, repo.head())
    assert worktrees.missing[repo.head()] == ()


def test_a_missing_source_file_stops_and_the_advice_mends_it(repo, cache, tmp_path):
    sha = repo.commit("one", {"pkg/a.py": "a = 1\n"})
    repo.commit("two", {"pkg/a.py": "a = 2\n"})
    partial = repo.clone(tmp_path / "partial", "--filter=blob:none")
    worktrees = Worktrees(Repository(partial.path), cache)
    with pytest.raises(UsageError) as caught:
        with worktrees.checkout(sha):
            pass
    advice = f"git -C {partial.path / '.git'} fetch --refetch --no-filter"
    assert str(caught.value) == f"the clone lacks 'pkg/a.py' of {sha[:10]}, it is a partial clone: run `{advice}`"
    subprocess.run(advice.split(), check=True, capture_output=True, env=repo.env)
    with worktrees.checkout(sha) as tree:
        assert (tree / "pkg/a.py").read_text() == "a = 1\n"


# Several at once, and killed


def test_threads_get_checkouts_of_their_own(repo, cache):
    shas = [repo.commit(str(i), {f"pkg/m{k}.py": f"{i}" for k in range(20)}) for i in range(4)]
    worktrees = Worktrees(Repository(repo.path), cache)
    gate = threading.Barrier(4)
    wrong = []

    def work(number):
        for turn in range(5):
            sha = shas[(number + turn) % 4]
            with worktrees.checkout(sha) as tree:
                gate.wait(30)
                if on_disk(tree) != listed(repo, sha):
                    wrong.append(sha)
                gate.wait(30)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert wrong == []
    assert len(list((cache / "worktrees").glob("*/[0-9]"))) == 4


CHECKOUT = """
import sys
from pathlib import Path
from bisect_recompute.history.repository import Repository
from bisect_recompute.history.worktree import Worktrees
repository = Repository(Path(sys.argv[1]))
worktrees = Worktrees(repository, Path(sys.argv[2]))
"""


def test_processes_get_checkouts_of_their_own(repo, cache):
    shas = [repo.commit(str(i), {f"pkg/m{k}.py": f"{i}" for k in range(30)}) for i in range(3)]
    code = CHECKOUT + textwrap.dedent("""
        for turn in range(30):
            number = (turn + int(sys.argv[3])) % 3
            with worktrees.checkout(sys.argv[4 + number]) as tree:
                for look in range(3):
                    assert {p.read_text() for p in tree.glob("pkg/*.py")} == {str(number)}
                    assert len(list(tree.glob("pkg/*.py"))) == 30
    """)
    children = [
        subprocess.Popen([sys.executable, "-c", code, repo.path, cache, str(n), *shas], stderr=subprocess.PIPE, text=True)
        for n in range(3)
    ]
    for child in children:
        _, errors = child.communicate(timeout=120)
        assert child.returncode == 0, errors


@pytest.mark.parametrize("reads", [0, 1, 20, 39])
def test_killed_in_the_middle_of_a_checkout(repo, cache, reads):
    first = repo.commit("one", {f"pkg/m{k}.py": "1" * 100 for k in range(40)})
    second = repo.commit("two", {f"pkg/m{k}.py": "2" * 100 for k in range(40)})
    worktrees = Worktrees(Repository(repo.path), cache)
    with worktrees.checkout(first):
        pass
    code = CHECKOUT + textwrap.dedent("""
        import os, signal
        read, left = repository.read_blob, int(sys.argv[4])
        def dying(blob):
            global left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return read(blob)
        repository.read_blob = dying
        with worktrees.checkout(sys.argv[3]):
            pass
    """)
    done = subprocess.run([sys.executable, "-c", code, repo.path, cache, second, str(reads)])
    assert done.returncode == -9
    half = on_disk(next((cache / "worktrees").glob("*/0/tree")))
    assert half != listed(repo, second)
    for sha in (first, second):
        with worktrees.checkout(sha) as tree:
            assert on_disk(tree) == listed(repo, sha)
    assert tree.parent.name == "0"


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b"null", b'{"a": 1, "file.txt": ["x"]}'])
def test_a_damaged_state_file_costs_a_new_checkout_only(repo, cache, damage):
    sha = repo.linear(1)[0]
    worktrees = Worktrees(Repository(repo.path), cache)
    with worktrees.checkout(sha) as tree:
        pass
    (tree.parent / "state.json").write_bytes(damage)
    (tree / "file.txt").write_text("half")
    with worktrees.checkout(sha) as tree:
        assert on_disk(tree) == listed(repo, sha)


# The disk


def error_of_checkout(repo, cache, sha):
    with pytest.raises(UsageError) as caught:
        with Worktrees(Repository(repo.path), cache).checkout(sha):
            pass
    message = str(caught.value)
    assert "\n" not in message and str(cache) in message and "BISECT_RECOMPUTE_CACHE" in message
    return message


@contextmanager
def small_disk(folder, size):
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], capture_output=True).returncode:
        pytest.skip("cannot mount a small disk here (needs root)")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_no_space_left(repo, tmp_path):
    large = repo.commit("large", {f"pkg/m{k}.py": os.urandom(20_000) for k in range(20)})
    small = repo.commit("small", {f"pkg/m{k}.py": "1" for k in range(20)})
    with small_disk(tmp_path / "disk", "200k") as disk:
        message = error_of_checkout(repo, disk, large)
        assert "No space left on device" in message
        assert os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize > 150_000  # Cleared away again.
        with Worktrees(Repository(repo.path), disk).checkout(small) as tree:
            assert on_disk(tree) == listed(repo, small)


def test_a_file_too_large_for_the_disk_limit(repo, cache):
    sha = repo.commit("large", {"a.py": os.urandom(300_000)})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        assert "File too large" in error_of_checkout(repo, cache, sha)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_cache_is_a_file(repo, tmp_path):
    sha = repo.linear(1)[0]
    (tmp_path / "file").write_text("mine")
    assert "Not a directory" in error_of_checkout(repo, tmp_path / "file", sha)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_disk_that_may_only_be_read(repo, tmp_path):
    sha = repo.linear(1)[0]
    with small_disk(tmp_path / "disk", "200k") as disk:
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        assert "Read-only file system" in error_of_checkout(repo, disk, sha)


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("BISECT_RECOMPUTE_CACHE", str(tmp_path / "here"))
    assert cache_dir() == tmp_path / "here"
    monkeypatch.setenv("BISECT_RECOMPUTE_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir().name == "bisect-recompute" and cache_dir().is_absolute()


def test_an_exception_inside_gives_the_slot_back(repo, cache):
    sha = repo.linear(1)[0]
    worktrees = Worktrees(Repository(repo.path), cache)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            with worktrees.checkout(sha):
                raise KeyboardInterrupt
    with worktrees.checkout(sha) as tree:
        assert tree.parent.name == "0"
    with pytest.raises(OSError):
        with worktrees.checkout(sha):
            raise OSError("of the caller, not of the checkout")
