"""Standard output and error that are closed, full, or a pipe that nobody reads; through a real shell."""

import subprocess
import sys

import pytest
from command_line import RECIPE, environment
from probe_results import result
from test_measurement_journal import MANIFEST
from test_report_ticket import culprit

from bisect_recompute.cli import hook, options
from bisect_recompute.cli.recipes import find_recipe, recipe_text
from bisect_recompute.history.repository import Repository
from bisect_recompute.measurement.journal import Manifest, new_journal
from bisect_recompute.report.files import write_files
from bisect_recompute.verdict.decide import decide

TOOL = f"{sys.executable} -m bisect_recompute"


@pytest.fixture
def shell(tmp_path):
    def shell(line):
        """(exit code of the first command, standard error) of a line in which TOOL is the tool."""
        done = subprocess.run(
            ["bash", "-c", line.replace("TOOL", TOOL) + "; exit ${PIPESTATUS[0]}"],
            cwd=tmp_path,
            env=environment(tmp_path / "cache"),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr
        return done.returncode, done.stderr

    return shell


@pytest.fixture
def answered(repo, tmp_path, monkeypatch):
    """`hook` whose answers are kept already, so that no simulator is needed: the first half is good, the rest bad."""
    monkeypatch.setenv("BISECT_RECOMPUTE_CACHE", str(tmp_path / "cache"))
    repo.commit("core", {"megatron/core/__init__.py": ""})
    shas = repo.linear(4)
    (tmp_path / "small.yaml").write_text(RECIPE)
    repository = Repository(repo.path)
    recipe = find_recipe(str(tmp_path / "small.yaml"), repository, shas[0], shas[3])
    manifest = Manifest(
        repository=str(repository.common_dir), good=shas[0], bad=shas[3], first_parent=False, recipe=recipe.name,
        recipe_text=recipe_text(recipe), recipe_function=False, probe="simulate", metric="any", direction="worse",
        memory_threshold=1.0, throughput_threshold=5.0, timeout=120.0, versions=options.versions(),
    )  # fmt: skip
    with hook._journal(manifest) as journal:
        for sha, peak in zip(shas, (100, 100, 200, 200)):
            journal.append(result(sha, peak=peak))
    call = f"cd {repo.path} && TOOL hook --recipe {tmp_path}/small.yaml --good {shas[0]} --bad {shas[3]}"

    def at(number):
        repo.git("checkout", "-q", shas[number])
        return call

    return at


@pytest.mark.parametrize("how", ["", "2>/dev/full", "2>&1 | true", ">&-", "2>&-", ">&- 2>&- <&-", "--json | cat"])
def test_the_answer_of_hook_is_the_same_wherever_its_messages_go(shell, answered, how):
    assert shell(f"{answered(1)} {how}")[0] == 0
    assert shell(f"{answered(2)} {how}")[0] == 1


@pytest.mark.parametrize("how", ["--json >/dev/full", "--json >&-", "--json | true", "--help >/dev/full"])
def test_hook_that_cannot_write_its_result_stops_git_bisect_run(shell, answered, how):
    for number in (1, 2):
        code, said = shell(f"{answered(number)} {how}")
        assert code == 128 and said.startswith("error: cannot write to standard output: ")


@pytest.mark.parametrize("how", ["2>/dev/full", "2>&-", "2>&1 | true", ">&-", ""])
@pytest.mark.parametrize("call", ["hook --nonsense", "-- hook --recipe x"])
def test_a_wrong_call_of_hook_never_looks_like_an_answer(shell, call, how):
    assert shell(f"TOOL {call} {how}")[0] == 128


@pytest.fixture
def finished(tmp_path):
    f = culprit()
    with new_journal(tmp_path / "run", MANIFEST) as journal:
        for probe in f.probes_run:
            journal.append(probe)
        write_files(tmp_path / "run", f, decide(f))


LOST = {">/dev/full": "No space left on device", ">&-": "Bad file descriptor", "| true": "Broken pipe"}


@pytest.mark.parametrize("how", LOST)
@pytest.mark.parametrize("call", ["resume run", "resume run --json", "ticket run", "run --help"])
def test_a_result_that_cannot_be_written_is_a_failure_with_one_line(shell, finished, call, how):
    assert shell(f"TOOL {call} {how}") == (1, f"error: cannot write to standard output: {LOST[how]}\n")


def test_messages_that_cannot_be_written_leave_the_code_alone(shell, finished):
    for how in ("2>/dev/full", "2>&-"):
        assert shell(f"TOOL resume run {how}")[0] == 0
        assert shell(f"TOOL resume nothing {how}")[0] == 2
        assert shell(f"TOOL {how}")[0] == 2


def test_no_file_of_the_tool_takes_the_place_of_a_closed_stream(shell, finished, tmp_path):
    (tmp_path / "run" / "ticket.md").unlink()
    assert shell("TOOL ticket run --json >&- 2>&- <&-")[0] == 1
    assert (tmp_path / "run" / "ticket.md").read_text().startswith("# ")
