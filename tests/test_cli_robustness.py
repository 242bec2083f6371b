"""What a machine does to a run: files damaged or gone, probes killed."""

import json
import shutil

import pytest
from command_line import MLP, RECIPE, call, megatron_history, refused, start
from test_cli_resume import lines_of, wait_for


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cli-robustness-cache")


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    return megatron_history(tmp_path_factory.getbasetemp())


@pytest.fixture
def work(tmp_path):
    (tmp_path / "small.yaml").write_text(RECIPE)
    return tmp_path


def run(history, span, *more, repo=None, out="out"):
    return "run", span, "--repo", repo or history.repo.path, "--recipe", "small.yaml", "--out", out, "--no-cache", *more


def test_a_damaged_verdict_is_written_again(history, work, cache):
    done = call(*run(history, history.range("mended", "kept"), "--json", "--quiet"), cwd=work, cache=cache)
    lines = lines_of(work / "out")
    (work / "out" / "verdict.json").write_text(done.stdout[:100])
    again = call("resume", "out", "--json", "--quiet", cwd=work, cache=cache)
    assert (again.returncode, json.loads(again.stdout)) == (0, json.loads(done.stdout))
    assert lines_of(work / "out") == lines and json.loads((work / "out" / "verdict.json").read_text())


def test_a_folder_where_a_file_belongs(history, work, cache):
    call(*run(history, history.range("mended", "kept"), "--quiet"), cwd=work, cache=cache)
    (work / "out" / "verdict.json").unlink()
    (work / "out" / "probes.jsonl").unlink()
    (work / "out" / "probes.jsonl").mkdir()
    said = refused("resume", "out", cwd=work, cache=cache)
    assert said == "cannot use out/probes.jsonl: Is a directory; put that right, or start a new run"


def test_a_name_too_long_for_a_folder(history, work, cache):
    said = refused(*run(history, history.range("mended", "kept"), out="x" * 300), cwd=work, cache=cache)
    assert said.endswith(": File name too long; give another folder with --out")


def test_the_repository_is_deleted_during_the_run(history, work, cache):
    clone = history.repo.clone(work / "clone")
    process = start(*run(history, history.range("base", "tip"), "--jobs", "1", "--quiet", repo=clone.path), cwd=work, cache=cache)
    wait_for(lambda: len(lines_of(work / "out")) >= 1, process)
    shutil.rmtree(clone.path)
    _, told = process.communicate(timeout=120)
    assert process.returncode in (1, 2) and "Traceback" not in told
    (line,) = told.splitlines()
    assert line.startswith("error: ")
    assert refused("resume", "out", cwd=work, cache=cache).startswith("not a repository: ")


@pytest.fixture
def edited(history, request):
    """``edited(name, code)``: a commit on main's tip whose mlp.py begins with the code."""
    repo = history.repo
    repo.switch(request.node.name[:40], history.shas["tip"])

    def commit(name, code):
        source = repo.git("show", f"{history.shas['tip']}:{MLP}")
        return repo.commit(name, {MLP: source.replace("import torch\n", f"import torch\n{code}\n", 1) + "\n"})

    yield commit
    repo.switch("main")


def test_a_probe_that_was_killed_is_tried_once_more(history, work, cache, edited):
    flag, kill = work / "flag", "__import__('os').kill(__import__('os').getpid(), 9)"
    once = edited("once", f"_ = __import__('os').path.exists({str(flag)!r}) or (open({str(flag)!r}, 'w'), {kill})")
    always = edited("always", kill)
    done = call(*run(history, f"{history.shas['base']}..{once}", "--json", "--quiet"), cwd=work, cache=cache)
    assert done.returncode == 0 and flag.exists()
    assert [json.loads(line)["status"] for line in lines_of(work / "out") if once in line] == ["ok"]
    done = call(*run(history, f"{history.shas['base']}..{always}", "--quiet", out="two"), cwd=work, cache=cache)
    assert done.returncode == 5 and "killed by SIGKILL, twice" in done.stderr.splitlines()[-1]


def test_ends_that_differ_although_their_code_is_the_same(history, work, cache, edited):
    count = work / "count"
    code = f"open({str(count)!r}, 'a').write('x'); _N = len(open({str(count)!r}).read())"
    source = history.repo.git("show", f"{history.shas['tip']}:{MLP}") + "\n"
    repeated = "torch.tanh(torch.tanh(intermediate_parallel))"
    assert repeated in source
    many = "[intermediate_parallel := torch.tanh(intermediate_parallel) for _ in range(_N)][-1]"
    source = source.replace("import torch\n", f"import torch\n{code}\n", 1).replace(repeated, many)
    first = history.repo.commit("counts", {MLP: source})
    second = history.repo.commit("reads", {"README.md": "something else\n"})
    done = call(*run(history, f"{first}..{second}", "--jobs", "1", "--quiet"), cwd=work, cache=cache)
    assert done.returncode == 5
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {first[:10]} and {second[:10]} measure differently (memory ")
    assert "but every file that the probes read is the same" in line
