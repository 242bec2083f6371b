"""Whatever a commit's code does is an outcome of its probe. Each tree is a copy of the installed Megatron Core, broken."""

import time

import pytest
from simulation import copy_megatron_core, recipe

from bisect_recompute.errors import UsageError
from bisect_recompute.probe.recipe import RecipeFunction
from bisect_recompute.probe.simulate.client import Simulator

MLP = "megatron/core/transformer/mlp.py"
FORWARD = "    def forward(self, hidden_states"


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    tree = tmp_path_factory.mktemp("commit")
    copy_megatron_core(tree)
    return tree


@pytest.fixture
def broken(intact):
    """``broken(code)`` puts code before MLP.forward (or into it, indented) and gives the tree; undone afterwards."""
    path = intact / MLP
    original = path.read_text()

    def change(old: str, new: str):
        assert old in original
        path.write_text(original.replace(old, new, 1))
        return intact

    yield change
    path.write_text(original)


def in_forward(statement: str) -> tuple[str, str]:
    """Runs a statement whenever the activation is applied."""
    return "        nvtx_range_push(suffix=\"activation\")\n", f"        {statement}\n        nvtx_range_push(suffix=\"activation\")\n"


def test_the_commit_and_nothing_else_ran(simulate, intact):
    result = simulate(recipe("tiny"), tree=intact)
    assert result.provenance.megatron_source == "worktree"
    assert MLP in result.provenance.modules
    assert all((intact / path).is_file() for path in result.provenance.modules)
    assert not any((intact / path).exists() for path in result.provenance.absent)
    assert result.provenance.packages["torch"]
    assert result.provenance.attention_backend == "fused (cuDNN)"


def test_a_copy_of_the_package_measures_as_the_package(simulate, intact):
    assert simulate(recipe("tiny"), tree=intact).memory == simulate(recipe("tiny")).memory


def test_the_version_is_that_of_the_commit(simulate, intact):
    path = intact / "megatron/core/package_info.py"
    original = path.read_text()
    path.write_text(original + "\n__version__ = '9.8.7'\n")
    try:
        assert simulate(recipe("tiny"), tree=intact).provenance.packages["megatron-core"] == "9.8.7"
    finally:
        path.write_text(original)


def test_one_more_kept_tensor_shows_with_its_line(simulate, intact, broken):
    base = simulate(recipe("tiny"), tree=intact).memory
    tree = broken(*in_forward("self.kept = getattr(self, 'kept', []) + [torch.empty_like(intermediate_parallel)]"))
    kept = simulate(recipe("tiny"), tree=tree).memory
    assert kept.peak_bytes > base.peak_bytes
    new = [t for t in kept.tensors if t.file == MLP and t not in base.tensors]
    line = (tree / MLP).read_text().splitlines().index("        self.kept = getattr(self, 'kept', []) + "
                                                       "[torch.empty_like(intermediate_parallel)]") + 1
    assert any(t.line == line and t.module == "decoder.layers.*.mlp" for t in new)


@pytest.mark.parametrize(
    ("statement", "status", "reason"),
    [
        ("assert False, 'shapes differ'", "failed", "AssertionError: shapes differ"),
        ("raise SystemExit(3)", "failed", "SystemExit: 3"),
        ("__import__('os')._exit(7)", "failed", "ended with exit code 7"),
        ("__import__('os').abort()", "failed", "SIGABRT"),
        ("__import__('ctypes').string_at(0)", "failed", "SIGSEGV"),
        ("int('x')", "failed", "ValueError: invalid literal"),
    ],
)
def test_a_failing_forward_is_a_failed_probe(simulate, broken, statement, status, reason):
    result = simulate(recipe("tiny"), tree=broken(*in_forward(statement)), expect=status)
    assert reason in result.reason
    assert result.stage == "forward"


def test_code_that_does_not_import_is_a_failed_probe(simulate, broken):
    result = simulate(recipe("tiny"), tree=broken("import torch\n", "import torch\nimport no_such_module_at_all\n"),
                      expect="failed")
    assert result.stage == "import"
    assert "no_such_module_at_all" in result.reason


def test_a_syntax_error_is_a_failed_probe(simulate, broken):
    result = simulate(recipe("tiny"), tree=broken("import torch\n", "import torch\ndef (:\n"), expect="failed")
    assert result.stage == "import"
    assert "SyntaxError" in result.reason


def test_a_hang_ends_at_the_time_limit_with_all_its_processes(broken, tmp_path):
    tree = broken(*in_forward("__import__('subprocess').run(['sleep', '4711'])"))
    with Simulator(tmp_path / "bytecode", timeout=6) as simulator:
        began = time.monotonic()
        result = simulator.probe(recipe("tiny"), tree, "0" * 40, {}, tmp_path / "log")
    assert (result.status, result.stage) == ("timeout", "forward")
    assert "6 s" in result.reason
    assert time.monotonic() - began < 30
    assert "4711" not in _running()


OS = "__import__('os')"


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        (f"{OS}.kill({OS}.getppid(), 9)", "killed the process that watches it"),
        (f"{OS}.kill({OS}.getpid(), 40)", "killed by signal 40"),
        (f"[_write(fd) for fd in range(3, 64)] and {OS}._exit(3)", "ended with exit code 3"),
        ("raise RuntimeError('bad \\udc80 text')", "RuntimeError: bad"),
        ("raise RuntimeError('x' * 10**7)", "RuntimeError: xxx"),
    ],
)
def test_what_a_commit_does_to_its_surroundings_is_its_own_failure(simulate, broken, intact, statement, reason):
    write = "import torch\ndef _write(fd):\n    try:\n        __import__('os').write(fd, b'garbage\\n')\n    except OSError:\n        pass\n"
    tree = broken(*in_forward(statement))
    path = tree / MLP
    path.write_text(path.read_text().replace("import torch\n", write, 1))
    result = simulate(recipe("tiny"), tree=tree, expect="failed")
    assert reason in result.reason
    assert len(result.reason) < 2000
    simulate(recipe("tiny"), tree=broken("import torch\n", "import torch\n"))  # the simulator goes on


def test_a_stopped_watcher_is_a_timeout(broken, tmp_path):
    tree = broken(*in_forward(f"{OS}.kill({OS}.getppid(), 19) or {OS}.wait()"))
    with Simulator(tmp_path / "bytecode", timeout=2) as simulator:
        result = simulator.probe(recipe("tiny"), tree, "0" * 40, {}, tmp_path / "log")
    assert result.status in ("timeout", "failed")


def test_a_daemon_neither_holds_the_answer_up_nor_outlives_it(broken, tmp_path):
    daemon = f"{OS}.fork() or ({OS}.setsid(), {OS}.fork() and {OS}._exit(0), {OS}.execvp('sleep', ['sleep', '4712']))"
    tree = broken(*in_forward(daemon))
    with Simulator(tmp_path / "bytecode", timeout=60) as simulator:
        began = time.monotonic()
        result = simulator.probe(recipe("tiny"), tree, "0" * 40, {}, tmp_path / "log")
        assert time.monotonic() - began < 45
        assert "4712" not in _running()
    assert result.status in ("ok", "failed")


def test_a_killed_simulator_fails_its_probe_and_starts_again(intact, tmp_path):
    import psutil

    with Simulator(tmp_path / "bytecode") as simulator:
        assert simulator.probe(recipe("tiny"), intact, "0" * 40, {}, tmp_path / "log").status == "ok"
        for child in psutil.Process().children():
            if "bisect_recompute.probe.simulate.server" in " ".join(child.cmdline()) and str(tmp_path) in child.cwd():
                child.kill()
                child.wait()
        assert simulator.probe(recipe("tiny"), intact, "0" * 40, {}, tmp_path / "log").status in ("ok", "failed")
        assert simulator.probe(recipe("tiny"), intact, "0" * 40, {}, tmp_path / "log").status == "ok"


def _running() -> str:
    import psutil

    return " ".join(" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"]))


def test_the_next_probe_is_not_harmed_by_a_crash(simulate, intact, broken):
    before = simulate(recipe("tiny"), tree=intact).memory.peak_bytes
    simulate(recipe("tiny"), tree=broken(*in_forward("__import__('os').abort()")), expect="failed")
    path = intact / MLP
    path.write_text(path.read_text().replace("        __import__('os').abort()\n", ""))
    assert simulate(recipe("tiny"), tree=intact).memory.peak_bytes == before


def test_megatron_from_elsewhere_is_refused(simulate, tmp_path, intact):
    """A commit whose megatron/core is a link to the installed package would measure the wrong code."""
    from simulation import megatron_core

    (tmp_path / "megatron").mkdir()
    (tmp_path / "megatron" / "core").symlink_to(megatron_core(), target_is_directory=True)
    result = simulate(recipe("tiny"), tree=tmp_path, expect="failed")
    assert "outside the commit" in result.reason


def test_a_recipe_function_is_called_in_the_probe(simulate, tmp_path):
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "__init__.py").write_text("")
    (tmp_path / "lab" / "small.py").write_text(
        "from types import SimpleNamespace as N\n"
        "def config():\n"
        "    model = N(num_layers=2, hidden_size=256, num_attention_heads=4, vocab_size=1024, seq_length=1024,\n"
        "              recompute_granularity='full', recompute_method='uniform', recompute_num_layers=1)\n"
        "    return N(model=model, train=N(micro_batch_size=2, global_batch_size=2), mixed_precision='bf16_mixed')\n"
    )
    result = simulate(RecipeFunction("lab.small", "config"), tree=tmp_path)
    assert result.throughput.recomputed_flops > 0
    assert result.provenance.megatron_source.startswith("package megatron-core==")
    assert "lab/small.py" in result.provenance.modules


def test_a_simulator_that_cannot_start_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    with Simulator(tmp_path / "bytecode") as simulator, pytest.raises(UsageError, match="no torch here"):
        simulator.probe(recipe("tiny"), tmp_path, "0" * 40, {}, tmp_path / "log")


def test_a_closed_simulator_starts_no_process(intact, tmp_path):
    """A thread of a run that has ended may still ask: whatever it started, nobody would end."""
    with Simulator(tmp_path / "bytecode") as simulator:
        pass
    with pytest.raises(UsageError, match="closed"):
        simulator.probe(recipe("tiny"), intact, "0" * 40, {}, tmp_path / "log")
    assert not (tmp_path / "bytecode").exists()
