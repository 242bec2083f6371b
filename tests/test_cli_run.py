"""The main job through the real command line, on the installed Megatron Core's own code."""

import json
import os
import pty
import re

import pytest
from command_line import KEPT_BYTES, MLP, RECIPE, ROOT, call, megatron_history, refused, start, subject


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli-run")
    (folder / "small.yaml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cli-run-cache")


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    return megatron_history(tmp_path_factory.getbasetemp())


@pytest.fixture
def run(history, folder, cache, tmp_path):
    def run(good, bad, *options, out=tmp_path / "out"):
        return call(
            "run",
            history.range(good, bad),
            "--repo",
            history.repo.path,
            "--recipe",
            folder / "small.yaml",
            "--out",
            out,
            "--no-cache",
            *options,
            cwd=tmp_path,
            cache=cache,
        )

    return run


def state(repo):
    """All that must stay as it is in a user's repository."""
    files = {
        str(p.relative_to(repo.path)): (p.stat().st_mtime_ns, p.stat().st_ino)
        for p in (repo.path / ".git").rglob("*")
        if p.is_file()
    }
    calls = (
        ("status", "--porcelain", "--untracked-files=all"),
        ("diff", "HEAD"),
        ("diff", "--cached"),
        ("stash", "list"),
    )
    return files, *(repo.git(*args, GIT_OPTIONAL_LOCKS="0") for args in calls)


def test_names_the_culprit_and_leaves_a_dirty_repository_as_it_was(run, history, tmp_path):
    repo = history.repo
    repo.write({MLP: "staged = 1\n", "new.txt": "staged too\n"})
    repo.git("add", "-A")
    repo.write({MLP: "unstaged = 1\n", "untracked.txt": "mine\n"})
    before = state(repo)
    try:
        done = run("base", "tip")
        assert state(repo) == before
    finally:
        repo.git("reset", "-q", "--hard")
        repo.git("clean", "-fdq")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{history.shas['kept'][:10]} is the first bad commit: memory +")
    assert f"  {subject('kept')}" in lines
    assert "+4.00 MiB: +2 x [4096, 1, 256] bfloat16 in decoder.layers.*.mlp" in done.stdout
    assert "torch.tanh(torch.tanh(intermediate_parallel))" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    (end,) = [line for line in done.stderr.splitlines() if line.startswith(f"good {history.shas['base'][:10]}  ")]
    assert end.endswith(", the good endpoint")

    out = tmp_path / "out"
    verdict = json.loads((out / "verdict.json").read_text())
    assert verdict["outcome"] == "culprit" and verdict["culprit"]["commit"] == history.shas["kept"]
    assert verdict["culprit"]["last_good"] == history.shas["mended"]
    memory = verdict["metrics"]["memory"]
    assert memory["bad"] - memory["good"] == KEPT_BYTES and memory["shifted"]
    (tensor,) = verdict["cause"]["tensors"]
    line = history.repo.git("show", f"{history.shas['kept']}:{MLP}").splitlines()[tensor["line"] - 1]
    assert (tensor["bytes"], tensor["count"], tensor["file"], tensor["source"]) == (KEPT_BYTES, 2, MLP, line.strip())
    assert verdict["cause"]["kind"] == "other-source"

    probes = [json.loads(line) for line in (out / "probes.jsonl").read_text().splitlines()]
    assert len(probes) == verdict["probes"]["run"] == len({probe["commit"] for probe in probes})
    assert all((out / probe["log"]).is_file() for probe in probes)
    # Equal code is never probed twice: readme is base, tip is comment2.
    assert not {history.shas["readme"], history.shas["comment2"]} & {probe["commit"] for probe in probes}

    clone = repo.clone(tmp_path / "clone")
    assert f"{history.shas['kept']} is the first bad commit" in clone.git("bisect", "replay", str(out / "bisect.log"))
    assert subject("kept").replace("`", "") not in (out / "ticket.md").read_text()


def test_json_is_one_document_on_standard_output(run, history):
    done = run("base", "tip", "--json", "--jobs", "1")
    assert done.returncode == 0
    assert json.loads(done.stdout)["culprit"]["commit"] == history.shas["kept"]
    assert done.stderr != ""


def test_quiet_says_nothing_but_the_verdict(run):
    done = run("base", "comment", "--quiet")
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.startswith("no shift between the endpoints\n")


def test_a_shift_the_other_way_needs_the_direction(history, run, tmp_path):
    repo = history.repo
    back = repo.git("commit-tree", f"{history.shas['comment']}^{{tree}}", "-p", history.shas["tip"], "-m", "back")
    history.shas["back"] = back
    assert run("tip", "back", "--quiet").returncode == 3
    done = run(
        "tip", "back", "--direction", "better", "--metric", "memory", "--json", "--quiet", out=tmp_path / "better"
    )
    assert json.loads(done.stdout)["culprit"]["commit"] == back
    assert json.loads(done.stdout)["cause"]["tensors"][0]["bytes"] == -KEPT_BYTES


def test_the_threshold_decides_what_is_a_shift(run):
    assert run("mended", "kept", "--threshold", "50", "--quiet").returncode == 3


def test_commits_that_do_not_import_or_hang_are_suspects(run, history, tmp_path):
    done = run("base", "kept_too", "--timeout", "15")
    assert done.returncode == 4
    names = ("broken_too", "loops", "kept_too")
    assert [line.strip() for line in done.stdout.splitlines()[3:6]] == [history.shas[name] for name in names]
    verdict = json.loads((tmp_path / "out" / "verdict.json").read_text())
    assert verdict["suspects"] == [history.shas[name] for name in names]
    skipped = {e["commit"]: e["text"] for e in verdict["evidence"] if e["kind"] == "skipped"}
    assert "failed at import: SyntaxError" in skipped[history.shas["broken_too"]]
    assert "timeout at forward: no answer within 15 s" in skipped[history.shas["loops"]]


def test_an_endpoint_that_does_not_import(run, history, tmp_path):
    done = run("base", "broken", "--json")
    assert done.returncode == 5
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        f"error: the bad endpoint {history.shas['broken'][:10]} cannot be probed: failed at import: SyntaxError"
    )
    assert last.endswith(f"log: {tmp_path}/out/logs/{history.shas['broken']}.log")
    assert json.loads(done.stdout)["outcome"] == "endpoint-failed"


def test_both_endpoints_failing_the_same_way_is_said_once(run, history, tmp_path):
    repo = history.repo
    tree = repo.git("rev-parse", f"{history.shas['broken']}^{{tree}}")
    history.shas["broken2"] = repo.git("commit-tree", tree, "-p", history.shas["broken"], "-m", "still broken")
    done = run("broken", "broken2", "--quiet")
    assert done.returncode == 5
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: both endpoints cannot be probed, the same way: failed at import: SyntaxError")


def test_default_folder_is_hidden_from_git(history, folder, cache):
    repo = history.repo.clone(folder / "work")
    done = call("run", history.range("base", "comment"), "--recipe", "../small.yaml", cwd=repo.path, cache=cache)
    assert done.returncode == 3
    name = f"bisect-recompute-out/{history.shas['base'][:10]}-{history.shas['comment'][:10]}-small"
    assert f"{name}/" in done.stdout and (repo.path / name / "verdict.json").is_file()
    assert repo.git("status", "--porcelain") == ""
    again = call("run", history.range("base", "comment"), "--recipe", "../small.yaml", cwd=repo.path, cache=cache)
    assert f"{name}-2/" in again.stdout
    resumed = call("resume", cwd=repo.path, cache=cache)
    assert (resumed.returncode, resumed.stdout) == (3, again.stdout)


def test_live_display_on_a_terminal(history, folder, cache, tmp_path):
    master, slave = pty.openpty()
    process = start(
        "run",
        history.range("base", "tip"),
        "--repo",
        history.repo.path,
        "--recipe",
        folder / "small.yaml",
        "--out",
        tmp_path / "out",
        "--no-cache",
        cwd=tmp_path,
        cache=cache,
        stderr=slave,
        env={"TERM": "xterm-256color"},
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            data = os.read(master, 65536)
        except OSError:
            break
        if not data:
            break
        shown += data
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and history.shas["kept"] in out and "\x1b" not in out
    text = shown.decode("utf-8", "replace")
    assert "\x1b[?25h" in text.rpartition("\x1b[?25l")[2]  # the cursor is back
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert f"● bad  {history.shas['kept'][:10]}  " in text
    assert re.search(r"2 commits left, [4-6] probed, 2 known, about 1 probe to go, \d+ s", text)


def test_without_the_extra_the_way_to_install_it_is_said(history, folder, tmp_path):
    blocker = tmp_path / "blocker"
    blocker.mkdir()
    (blocker / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    done = call(
        "run",
        history.range("base", "tip"),
        "--repo",
        history.repo.path,
        "--recipe",
        folder / "small.yaml",
        "--out",
        tmp_path / "out",
        cwd=tmp_path,
        cache=tmp_path / "cache",
        env={"PYTHONPATH": f"{blocker}:{ROOT}"},
    )
    assert done.returncode == 2
    assert "pip install 'bisect-recompute[simulate]'" in done.stderr.splitlines()[-1]


def test_each_shift_and_the_net(history, run, tmp_path):
    repo = history.repo
    base = repo.git("show", f"{history.shas['base']}:{MLP}") + "\n"
    once = "        intermediate_parallel = torch.tanh(intermediate_parallel)\n"
    assert base.count(once) == 1
    repo.switch("steps", history.shas["base"])
    try:
        for name, kept in (("one", 1), ("noise", 1), ("three", 3), ("broken3", None), ("two", 2), ("same", 2)):
            text = base.replace(once, once * (kept + 1)) if kept is not None else "def broken(:\n"
            history.shas[name] = repo.commit(name, {MLP: text + f"# {name}\n"})
    finally:
        repo.switch("main")
    done = run("base", "same", "--all-shifts", "--metric", "memory", "--json", "--quiet")
    assert done.returncode == 0
    verdict = json.loads(done.stdout)

    def moved(metrics):
        return metrics["memory"]["bad"] - metrics["memory"]["good"]

    assert [moved(shift["metrics"]) for shift in verdict["shifts"]] == [KEPT_BYTES, 2 * KEPT_BYTES, -KEPT_BYTES]
    assert moved(verdict["net"]) == 2 * KEPT_BYTES == sum(moved(shift["metrics"]) for shift in verdict["shifts"])
    one, three, two = verdict["shifts"]
    assert (one["culprit"]["commit"], three["culprit"]["commit"]) == (history.shas["one"], history.shas["three"])
    assert one["cause"]["tensors"][0]["bytes"] == KEPT_BYTES and two["cause"]["kind"] == "unknown"
    assert two["culprit"] is None and two["suspects"] == [history.shas["broken3"], history.shas["two"]]
    assert verdict["culprit"]["commit"] in (history.shas["one"], history.shas["three"])
    assert verdict["range"]["first_parent"] and verdict["reproduce"].endswith(" --all-shifts")
    shown = call("resume", tmp_path / "out", cwd=tmp_path, cache=tmp_path).stdout
    assert re.search(rf"shifts +{history.shas['one'][:10]}  memory \+4.00 MiB, ", shown)
    assert re.search(r"net +memory \+8.00 MiB, ", shown)


def test_all_shifts_takes_a_line(history, folder, cache):
    said = refused("run", history.range("base", "tip"), "--all-shifts", "--all-parents", "--repo", history.repo.path,
                   "--recipe", folder / "small.yaml", cwd=folder, cache=cache)
    assert said == "--all-shifts takes a line of commits apart: leave --all-parents out"
