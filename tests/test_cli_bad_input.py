"""Calls that must be refused: exit code 2, one line that says what is wrong and how to mend it, nothing written."""

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest
from command_line import RECIPE, environment, refused


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "small.yaml").write_text(RECIPE)
    return folder


@pytest.fixture
def shas(repo):
    repo.commit("core", {"megatron/core/__init__.py": ""})
    return repo.linear(4)


@pytest.fixture
def run(repo, folder, cache):
    def run(span, *more, recipe="small.yaml", path=repo.path, **env):
        said = refused("run", span, "--repo", path, "--recipe", recipe, *more, cwd=folder, cache=cache, **env)
        assert sorted(p.name for p in folder.iterdir()) == ["small.yaml"], "a refused call leaves something behind"
        return said

    return run


def test_unknown_revision(run, repo, shas):
    repo.git("branch", "release-1")
    assert run(f"{shas[0]}..relase-1") == "unknown revision 'relase-1' in project: did you mean 'release-1'?"


def test_reversed_range(run, shas):
    assert run(f"{shas[3]}..{shas[0]}") == (
        f"the range {shas[3]}..{shas[0]} is reversed, bad is an ancestor of good: did you mean {shas[0]}..{shas[3]}?"
    )


@pytest.mark.parametrize("span", ["HEAD..main", "HEAD~1..HEAD~1"])
def test_good_equal_to_bad_and_empty(run, shas, span):
    assert "is empty: good and bad are the same commit" in run(span)


@pytest.mark.parametrize("span", ["main", "main...HEAD", "..", "..main", "main.."])
def test_malformed_range(run, shas, span):
    assert run(span).startswith("malformed range ")


def test_bad_is_no_descendant(run, repo, shas):
    repo.switch("side", shas[1])
    repo.commit("side", {"b": "1"})
    assert "is not a descendant of good" in run("main..side")


def test_not_a_repository(run, tmp_path, folder):
    assert run("a..b", path=folder).startswith(f"not a repository: {folder} is in no git clone")
    assert run("a..b", path=tmp_path / "nowhere") == f"not a repository: there is no directory {tmp_path / 'nowhere'}"


def test_shallow_clone(run, repo, shas, tmp_path):
    clone = repo.clone(tmp_path / "shallow", "--depth", "2")
    assert run("HEAD~1..HEAD", path=clone.path) == (
        f"{clone.path} is a shallow clone, its history ends early: run `git -C {clone.path} fetch --unshallow`"
    )


def test_recipe_with_a_misspelt_field(run, shas, tmp_path):
    recipe = tmp_path / "r.yaml"
    recipe.write_text(RECIPE.replace("hidden_size", "hiden_size", 1))
    assert (
        run("HEAD~1..HEAD", recipe=recipe) == f"{recipe}: unknown field 'model.hiden_size'; did you mean 'hidden_size'?"
    )


def test_no_such_recipe(run, shas):
    assert run("HEAD~1..HEAD", recipe="lama3-70b") == "no such recipe: lama3-70b; did you mean 'llama3-70b'?"
    assert run("HEAD~1..HEAD", recipe="no/such.yaml").startswith("no such recipe: no/such.yaml; ")


def test_a_repository_without_megatron_core_needs_a_recipe_function(run, repo):
    first, second = repo.linear(2)
    assert run(f"{first}..{second}") == (
        f"project has no megatron/core at {first[:10]}, and small.yaml would measure the installed one; "
        "for a repository of recipes give a recipe function of it: --recipe module:function"
    )
    core = repo.commit("core", {"megatron/core/__init__.py": ""})
    assert run(f"{second}..{core}").startswith(f"project has no megatron/core at {second[:10]}, ")


def test_recipe_functions_that_are_not_there_or_many(run, repo, shas):
    repo.commit(
        "recipes",
        {
            "src/lab/a.py": "def pretrain():\n    pass\n",
            "src/lab/b.py": "def pretrain():\n    pass\n",
            "src/lab/c.py": "class C:\n    def other(self):\n        pass\n\n# def pretrain():\n",
        },
    )
    assert run("HEAD~1..HEAD", recipe="pretrain").endswith("say which: lab.a:pretrain, lab.b:pretrain")
    assert run("HEAD~1..HEAD", recipe="lab.x:pretrain").endswith(
        f"has no module lab.x at {repo.head()[:10]}; did you mean lab.a:pretrain?"
    )
    assert run("HEAD~1..HEAD", recipe="other").startswith("no such recipe: other; ")


def test_a_probe_that_is_not_there_yet(run, shas):
    assert run("HEAD~1..HEAD", "--probe", "slurm") == (
        "--probe slurm is not there yet; this version has simulate, torchrun, command, golden"
    )


def test_options_out_of_range(run, shas):
    assert run("HEAD~1..HEAD", "--jobs", "0") == (
        "Invalid value for '--jobs': 0 is not in the range 1<=x<=256. (see bisect-recompute run --help)"
    )
    assert "'--threshold'" in run("HEAD~1..HEAD", "--thresold", "3")


def test_an_output_folder_that_is_not_ours(run, shas, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "main.tex").write_text("mine")
    assert "is not empty (main.tex is there) and holds no run" in run("HEAD~1..HEAD", "--out", tmp_path / "thesis")
    assert os.listdir(tmp_path / "thesis") == ["main.tex"]


@contextmanager
def small_disk(folder, size):
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], capture_output=True).returncode:
        pytest.skip("cannot mount a small disk here (needs root)")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_no_disk_space_for_a_worktree(repo, folder, tmp_path):
    first = repo.commit("first", {"megatron/core/__init__.py": "1"})
    second = repo.commit("second", {f"megatron/core/m{k}.py": os.urandom(20_000) for k in range(20)})
    with small_disk(tmp_path / "disk", "200k") as disk:
        said = refused(
            "run",
            f"{first}..{second}",
            "--repo",
            repo.path,
            "--recipe",
            "small.yaml",
            "--quiet",
            "--out",
            "out",
            cwd=folder,
            cache=disk,
        )
    assert said.startswith(f"cannot keep a checkout in {disk}/worktrees/") and said.endswith(
        "No space left on device; make room there, or set BISECT_RECOMPUTE_CACHE to a directory on another disk"
    )


def test_a_bare_repository_will_do(run, repo, shas, tmp_path):
    repo.clone(tmp_path / "bare.git", "--bare")
    assert run("HEAD..HEAD", path=tmp_path / "bare.git").startswith("the range HEAD..HEAD is empty")


def test_light_commands_do_not_load_torch(folder, cache):
    code = (
        "import sys, bisect_recompute.cli.run, bisect_recompute.cli.ticket, bisect_recompute.cli.schema, "
        "bisect_recompute.cli.main_job, bisect_recompute.cli.hook; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(cache), capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize(("option", "value"), [("--threshold", "nan"), ("--timeout", "nan"), ("--timeout", "0.001"),
                                               ("--timeout", "inf"), ("--timeout", "1e300"), ("--threshold", "-1")])
def test_numbers_that_are_none(run, shas, option, value):
    assert run("HEAD~1..HEAD", option, value).startswith(f"Invalid value for '{option}'")
