"""Equal code is reused only where the probe could not have seen a difference: each commit here differs in something that
Megatron Core's mlp.py reads in another way than by an import."""

import subprocess

import pytest
from simulation import copy_megatron_core, recipe

from bisect_recompute.measurement.same_code import same_code

MLP = "megatron/core/transformer/mlp.py"
KEEP = "import torch\n_KEEP = {condition}\n"


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    tree = tmp_path_factory.mktemp("commit")
    copy_megatron_core(tree)
    return tree


def blobs(tree) -> dict[str, str]:
    """Path -> git's own blob id."""
    names = sorted(str(p.relative_to(tree)) for p in tree.rglob("*") if p.is_file() or p.is_symlink())
    done = subprocess.run(["git", "hash-object", "--stdin-paths"], cwd=tree, input="\n".join(names), text=True,
                          capture_output=True, check=True)
    return dict(zip(names, done.stdout.split()))


@pytest.mark.parametrize(
    ("condition", "file"),
    [
        ("bool(__import__('json').load(open(__file__.replace('mlp.py', 'keep.json'))))", "megatron/core/transformer/keep.json"),
        ("__import__('os').path.exists(__file__.replace('mlp.py', 'keep.flag'))", "megatron/core/transformer/keep.flag"),
        ("__import__('pathlib').Path(__file__).with_name('keep.flag').exists()", "megatron/core/transformer/keep.flag"),
        ("len(__import__('glob').glob(__file__.replace('mlp.py', '*.flag'))) > 0", "megatron/core/transformer/a.flag"),
        ("bool(__import__('importlib.util').util.find_spec('helper_pkg'))", "helper_pkg.py"),
        ("bool(__import__('importlib.util').util.find_spec('helper_dir'))", "helper_dir/__init__.py"),
    ],
)
def test_a_file_that_the_code_asks_for_is_part_of_the_code(simulator, core, tmp_path, condition, file):
    path, other = core / MLP, core / file
    original = path.read_text()
    if file.endswith(".json"):
        other.write_text("false")
    path.write_text(original.replace("import torch\n", KEEP.format(condition=condition), 1))
    try:
        before = blobs(core)
        result = simulator.probe(recipe("tiny"), core, "0" * 40, before, tmp_path / "log")
        assert result.status == "ok", result.reason
        assert same_code(result, before)
        assert same_code(result, {**before, "README.md": "1" * 40})
        other.parent.mkdir(exist_ok=True)
        other.write_text("true")
        assert not same_code(result, blobs(core))
    finally:
        path.write_text(original)
        other.unlink(missing_ok=True)


def test_what_a_link_leads_to_is_part_of_the_code(simulator, core, tmp_path):
    path, real = core / MLP, core / "megatron/core/transformer/real_mlp.py"
    path.rename(real)
    path.symlink_to("real_mlp.py")
    try:
        before = blobs(core)
        result = simulator.probe(recipe("tiny"), core, "0" * 40, before, tmp_path / "log")
        assert result.status == "ok", result.reason
        assert same_code(result, before)
        assert not same_code(result, {**before, "megatron/core/transformer/real_mlp.py": "2" * 40})
    finally:
        path.unlink()
        real.rename(path)


def test_modules_beside_the_user_are_not_the_commits(simulator, core, tmp_path, monkeypatch):
    """The tool is called inside a work tree that has a module which the commit lacks."""
    from bisect_recompute.probe.simulate.client import Simulator

    (tmp_path / "helper_pkg.py").write_text("")
    (tmp_path / "selectors.py").write_text("raise ImportError('the module of the user')\n")
    monkeypatch.chdir(tmp_path)
    path = core / MLP
    original = path.read_text()
    path.write_text(original.replace("import torch\n", "import torch\nimport helper_pkg\n", 1))
    try:
        with Simulator(tmp_path / "bytecode") as own:
            result = own.probe(recipe("tiny"), core, "0" * 40, {}, tmp_path / "log")
    finally:
        path.write_text(original)
    assert (result.status, result.stage) == ("failed", "import")
    assert "helper_pkg" in result.reason
