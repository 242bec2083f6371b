"""Real commands on real commits: what they measure, how they end, and that nothing of them stays."""

import json
import signal
import sys
import time

import psutil
import pytest
from command_line import call, refused, start

TRAIN = """\
import json, os, subprocess, sys, time
how, out = open("how.txt").read().split(), sys.argv[1]
if how[0] == "log":
    for step in range(4):
        print(f" iteration {step}/ 4 | elapsed time per iteration (ms): {how[1]} | throughput per GPU (TFLOP/s/GPU): 9.0 |")
    print(f"[Rank 3] (after 2 iterations) memory (MB) | allocated: 1.00 | max allocated: {how[2]} | reserved: 3.00 | max reserved: 700.00")
if how[0] == "json":
    json.dump({"max_allocated_bytes": int(how[1]), "step_seconds": 0.5}, open(f"{out}/metrics.json", "w"))
if how[0] == "oom":
    raise SystemExit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
if how[0] == "hang":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    print(sys.argv[2:], flush=True)
    time.sleep(600)
if how[0] == "big":
    line = ("x" * 4095 + "\\n").encode() * 256
    for _ in range(int(how[1])):
        os.write(1, line)
    print(" iteration 1/ 4 | elapsed time per iteration (ms): 250.0 |")
if how[0] == "exit":
    sys.exit(int(how[1]))
"""
COMMAND = f"{sys.executable} train.py {{out}} {{commit}} {{recipe}}"


@pytest.fixture
def commit(repo):
    return lambda how: repo.commit(how, {"train.py": TRAIN, "how.txt": how})


@pytest.fixture
def probe(repo, commit, tmp_path):
    def probe(how, *options, status=0, recipe="my recipe; $(touch pwned)"):
        commit(how)
        done = call(
            *(
                "probe",
                "--repo",
                repo.path,
                "--probe",
                "command",
                "--command",
                COMMAND,
                "--recipe",
                recipe,
                "--json",
                *options,
            ),
            cwd=tmp_path,
            cache=tmp_path / "cache",
        )
        assert done.returncode == status, done.stderr
        assert left(tmp_path) == [] and not list(tmp_path.rglob("pwned"))
        return json.loads(done.stdout)

    return probe


def is_of(environ, folder):
    """Started by a probe whose cache is in the folder."""
    return "BISECT_RECOMPUTE_PROBE" in environ and environ.get("BISECT_RECOMPUTE_CACHE", "").startswith(str(folder))


def left(folder):
    """Processes of a probe's command that are still there."""
    found = []
    for process in psutil.process_iter():
        try:
            if is_of(process.environ(), folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            pass
    return found


def stray(tmp_path):
    return [process for process in left(tmp_path) if "time.sleep(600)" in " ".join(process.cmdline())]


def test_log_lines(probe):
    found = probe("log 250.0 512.5")
    assert found["memory"]["by_rank"] == {"3": 512.5 * 2**20} and found["memory"]["reserved_bytes"] == 700 * 2**20
    assert (found["throughput"]["step_seconds"], found["throughput"]["tflops_per_gpu"]) == (0.25, 9.0)


def test_a_file_of_metrics(probe):
    found = probe("json 123456")
    assert (found["memory"]["peak_bytes"], found["throughput"]["step_seconds"], found["probe"]) == (
        123456,
        0.5,
        "command",
    )
    assert probe("json 0", status=5)["reason"] == "metrics.json: max_allocated_bytes is no positive number"


def test_ends(probe):
    found = probe("oom")
    assert (found["status"], found["memory"]) == ("oom", None) and "allocate 2.00 GiB" in found["reason"]
    assert probe("exit 3", status=5)["reason"] == "exit status 3"
    assert probe("exit 0", status=5)["reason"].startswith("it ended well and measured nothing")


def test_a_hang_is_ended_with_all_that_it_started(probe):
    found = probe("hang", "--timeout", "4", status=5)
    assert (found["status"], found["memory"]) == ("timeout", None) and found["reason"].startswith("not done after 4 s")
    words = open(found["log"]).read()
    assert "'my recipe; $(touch pwned)'" in words and found["revision"] in words, "one argument, no shell"


def test_a_long_log_is_streamed(probe):
    found = probe("big 40")
    assert found["throughput"]["step_seconds"] == 0.25, "the last line of 40 MiB"


def test_ctrl_c_leaves_nothing(repo, commit, tmp_path):
    base = commit("log 250.0 512.5")
    commit("hang")
    process = start(
        *(
            "run",
            f"{base}..main",
            "--repo",
            repo.path,
            "--probe",
            "command",
            "--command",
            COMMAND,
            "--recipe",
            "r",
            "--out",
            "out",
        ),
        cwd=tmp_path,
        cache=tmp_path / "cache",
    )
    try:
        end = time.monotonic() + 60
        while not stray(tmp_path) and time.monotonic() < end:
            time.sleep(0.2)
        assert stray(tmp_path), "what the command started in a session of its own"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130 and left(tmp_path) == [], err
    finally:
        process.kill()


def test_run_and_resume(repo, commit, tmp_path):
    shas = [commit(f"log {ms} {mib}") for ms, mib in ((250.0, 500.0), (250.1, 500.1), (250.0, 600.0), (250.2, 600.1))]
    done = call(
        *("run", f"{shas[0]}..main", "--repo", repo.path, "--probe", "command", "--command", COMMAND, "--recipe", "r"),
        *("--out", "out", "--json"),
        cwd=tmp_path,
        cache=tmp_path / "cache",
    )
    verdict = json.loads(done.stdout)
    assert (done.returncode, verdict["culprit"]["commit"], verdict["probe"]) == (0, shas[2], "command")
    assert verdict["metrics"]["memory"]["bad"] == 600 * 2**20 and "--command" in verdict["reproduce"]
    assert "Simulated" not in (tmp_path / "out" / "ticket.md").read_text()
    (tmp_path / "out" / "verdict.json").unlink()
    assert call("resume", "out", cwd=tmp_path, cache=tmp_path / "cache").returncode == 0


def test_bad_calls(repo, commit, tmp_path):
    commit("exit 0")

    def refusal(*options):
        return refused("probe", "--repo", repo.path, "--recipe", "r", *options, cwd=tmp_path, cache=tmp_path)

    assert refusal("--probe", "command").startswith("--probe command and --command 'TRAIN ...' go together")
    assert refusal("--command", "x").startswith("--probe command and --command")
    assert refusal("--probe", "command", "--command", "x {outt}").startswith(
        "--command: the placeholder {outt} is not known"
    )
    assert refusal("--probe", "command", "--command", "x 'y").startswith("--command is no command line")
