"""Real torchrun, gloo and Megatron Core on the processor: what is read from the ranks, how runs end, and that nothing stays."""

import json
import re
import resource
import signal
import time

import psutil
import pytest
from command_line import MLP, call, refused, start
from gitrepo import GitRepo
from simulation import copy_megatron_core

pytest.importorskip("torch")
RECIPE = """\
model: {num_layers: 2, hidden_size: 32, ffn_hidden_size: 64, num_attention_heads: 4, vocab_size: 128, transformer_impl: local,
  hidden_dropout: 0.0, attention_dropout: 0.0, gradient_accumulation_fusion: false, bias_activation_fusion: false,
  masked_softmax_fusion: false}
parallel: {data_parallel_size: 2}
training: {seq_length: 64, global_batch_size: 2}
"""
FC2 = "        output, output_bias = self.linear_fc2(intermediate_parallel)\n"
IN_RANK_1 = "        import os, signal, time\n        if os.environ['RANK'] == '1':\n            "
ENDS = {
    "oom": "        torch.empty(2**42, dtype=torch.uint8)\n",
    "killed": IN_RANK_1 + "os.kill(os.getpid(), signal.SIGKILL)\n",
    "hang": IN_RANK_1 + "time.sleep(600)\n",
    "nan": "        intermediate_parallel = intermediate_parallel * float('nan')\n",
}


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """base, and a commit for each way to end."""
    repo = GitRepo(tmp_path_factory.mktemp("torchrun") / "megatron")
    copy_megatron_core(repo.path)
    (repo.path / "tiny.yaml").write_text(RECIPE)
    source = (repo.path / MLP).read_text()
    assert source.count(FC2) == 1
    shas = {"base": repo.commit("base")}
    for name, lines in ENDS.items():
        shas[name] = repo.commit(name, {MLP: source.replace(FC2, lines + FC2)})
    return repo, shas


def arguments(history, name, *options):
    repo, shas = history
    return ("probe", shas[name], "--repo", repo.path, "--recipe", repo.path / "tiny.yaml", "--probe", "torchrun", *options)


def is_of(environ, folder):
    """Started by a probe whose cache is in the folder."""
    return "BISECT_RECOMPUTE_PROBE" in environ and environ.get("BISECT_RECOMPUTE_CACHE", "").startswith(str(folder))


def left(folder):
    found = []
    for process in psutil.process_iter():
        try:
            if is_of(process.environ(), folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            pass
    return found


def probe(history, name, tmp_path, *options, status=5, **more):
    done = call(*arguments(history, name, "--json", *options), cwd=tmp_path, cache=tmp_path / "cache", **more)
    assert done.returncode == status, done.stdout + done.stderr
    assert left(tmp_path) == []
    return json.loads(done.stdout)


def test_two_ranks_train(history, tmp_path):
    found = probe(history, "base", tmp_path, "--iterations", "6", status=0)
    assert (found["status"], found["memory"], set(found["resident_bytes"])) == ("ok", None, {"0", "1"}), "no GPU memory"
    assert all(size > 100 * 2**20 for size in found["resident_bytes"].values())
    assert 0 < found["throughput"]["step_seconds"] < found["seconds"] and found["throughput"]["tflops_per_gpu"] is None
    repo, shas = history
    proof = found["provenance"]
    assert proof["modules"][MLP] == repo.git("rev-parse", f"{shas['base']}:{MLP}") and proof["megatron_source"] == "worktree"
    assert found["settings"]["num_layers"] == 2 and "gloo" in found["notes"][0]


def test_fewer_processes_than_the_recipe(history, tmp_path):
    found = probe(history, "base", tmp_path, "--iterations", "4", "--nproc", "1", status=0)
    assert set(found["resident_bytes"]) == {"0"}


def test_out_of_memory(history, tmp_path):
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (2**36, 2**36))  # noqa: E731
    found = probe(history, "oom", tmp_path, status=0, preexec_fn=limit)
    assert (found["status"], found["stage"], found["memory"]) == ("oom", "forward", None)
    assert f"out of memory, asked for {2**42 // 2**20:,} MiB, of the host's memory" in found["reason"]


def test_a_rank_that_is_killed_is_named(history, tmp_path):
    found = probe(history, "killed", tmp_path)
    assert (found["status"], found["reason"], found["by_machine"]) == ("failed", "rank 1 was killed by SIGKILL", True)


def test_a_hang_shows_the_stacks_of_all_ranks(history, tmp_path):
    found = probe(history, "hang", tmp_path, "--hang-after", "4")
    assert (found["status"], found["stage"]) == ("timeout", "forward") and found["reason"].startswith("hang: no sign of life for 4 s")
    stacks = open(found["log"]).read().partition("rank 1 hangs here:")[2]
    assert f"{MLP}\"" in stacks and "in forward" in stacks, stacks


def test_a_loss_that_is_no_number(history, tmp_path):
    found = probe(history, "nan", tmp_path)
    assert found["status"] == "failed" and re.match(r"rank [01]: NaN: ", found["reason"])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_the_tool(history, tmp_path, number):
    (tmp_path / "tmp").mkdir()
    process = start(*arguments(history, "hang"), cwd=tmp_path, cache=tmp_path / "cache", env={"TMPDIR": str(tmp_path / "tmp")})
    try:
        end = time.monotonic() + 60
        while not list(tmp_path.glob("tmp/*/rank1.jsonl")) and time.monotonic() < end:
            time.sleep(0.1)
        assert len(left(tmp_path)) >= 3, "torchrun and its ranks"
        process.send_signal(number)
        process.communicate(timeout=30)
        end = time.monotonic() + 20
        while (left(tmp_path) or list(tmp_path.glob("tmp/bisect*"))) and time.monotonic() < end:
            time.sleep(0.1)
        assert left(tmp_path) == [] and list(tmp_path.glob("tmp/bisect*")) == []
    finally:
        process.kill()


def test_bad_calls(history, tmp_path):
    def refusal(*call):
        return refused(*call, cwd=tmp_path, cache=tmp_path)

    assert refusal(*arguments(history, "base")[:-2], "--nproc", "2").startswith("--nproc, --iterations and --hang-after are for")
    repo, _ = history
    for name, text in (("tp2", RECIPE.replace("data_parallel_size", "tensor_model_parallel_size")), ("launch", "megatron_args: torchrun --nproc-per-node 2 p.py --lr 1\n")):
        (tmp_path / f"{name}.yaml").write_text(text)
    call = arguments(history, "base")[:5]
    assert refusal(*call, tmp_path / "tp2.yaml", "--probe", "torchrun", "--nproc", "3").startswith("--nproc 3: the recipe's tensor x")
    assert refusal(*call, tmp_path / "launch.yaml", "--probe", "torchrun").startswith("--probe torchrun trains model recipes; run")
