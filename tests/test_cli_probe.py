import json

import pytest
from command_line import KEPT_BYTES, MLP, RECIPE, call, megatron_history, refused


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cli-probe-cache")


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    return megatron_history(tmp_path_factory.getbasetemp())


@pytest.fixture
def probe(history, cache, tmp_path):
    (tmp_path / "small.yaml").write_text(RECIPE)

    def probe(*args):
        return call("probe", *args, "--repo", history.repo.path, "--recipe", "small.yaml", cwd=tmp_path, cache=cache)

    return probe


def test_json_has_the_contracts_keys(probe, history):
    documents = []
    for name in ("mended", "kept"):
        done = probe(history.shas[name], "--json", "--quiet")
        assert (done.returncode, done.stderr) == (0, "")
        documents.append(json.loads(done.stdout))
    good, bad = documents
    assert bad.keys() >= {
        "revision",
        "status",
        "stage",
        "memory",
        "throughput",
        "seconds",
        "log",
        "provenance",
        "reason",
        "notes",
    }
    assert (bad["revision"], bad["status"], bad["stage"], bad["reason"]) == (history.shas["kept"], "ok", "done", "")
    memory = bad["memory"]
    assert memory["peak_bytes"] - good["memory"]["peak_bytes"] == KEPT_BYTES
    assert (
        memory["by_rank"] == {"0": memory["peak_bytes"]} and sum(memory["by_category"].values()) == memory["peak_bytes"]
    )
    assert bad["throughput"].keys() >= {"step_seconds", "tflops_per_gpu"}
    assert bad["provenance"]["megatron_source"] == "worktree"
    assert bad["provenance"]["modules"][MLP] == history.repo.git("rev-parse", f"{history.shas['kept']}:{MLP}")
    assert f"probe {history.shas['kept']}" in bad["command"]


def test_people_get_a_table(probe, history):
    done = probe()
    assert done.returncode == 0
    assert done.stdout.startswith("peak memory ") and "\x1b" not in done.stdout
    for name in ("parameters", "gradients", "optimizer_state", "activations"):
        assert f"\n  {name} " in done.stdout
    assert "x [4096, 1, 256] bfloat16" in done.stdout and f"{MLP}:" in done.stdout
    assert done.stderr.startswith(history.repo.git("rev-parse", "main")[:10])


def test_what_cannot_be_probed_says_why(probe, history):
    done = probe(history.shas["broken"])
    assert done.returncode == 5
    first, log = done.stdout.splitlines()
    assert first.startswith("failed at import: SyntaxError: invalid syntax (mlp.py, line ")
    with open(log.split()[-1]) as file:
        assert "SyntaxError" in file.read()


def test_a_hang_is_a_timeout(probe, history):
    done = probe(history.shas["loops"], "--timeout", "10", "--json")
    assert done.returncode == 5
    found = json.loads(done.stdout)
    assert (found["status"], found["stage"], found["reason"]) == ("timeout", "forward", "no answer within 10 s")


def test_unknown_revision(cache, history, tmp_path):
    assert refused(
        "probe", "nope", "--repo", history.repo.path, "--recipe", "tiny", cwd=tmp_path, cache=cache
    ).startswith("unknown revision 'nope'")
