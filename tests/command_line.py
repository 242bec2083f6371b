"""Calls the real command line, and a Megatron history made for tests to call it on."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from gitrepo import GitRepo

import bisect_recompute

ROOT = Path(bisect_recompute.__file__).parents[1]
MLP = "megatron/core/transformer/mlp.py"
RECIPE = """\
model:
  num_layers: 2
  hidden_size: 64
  ffn_hidden_size: 256
  num_attention_heads: 4
  vocab_size: 256
  position_embedding_type: rope
  normalization: RMSNorm
  gated_linear_unit: true
  activation_func: silu
  add_bias_linear: false
  hidden_dropout: 0.0
  attention_dropout: 0.0
  bias_activation_fusion: false
  gradient_accumulation_fusion: true
training:
  seq_length: 4096
  global_batch_size: 1
"""
KEPT_BYTES = 2 * 4096 * 256 * 2
"""One more bf16 [sequence 4096, batch 1, ffn 256] tensor in each of 2 layers."""


def environment(cache: Path, **more: str) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "BISECT_RECOMPUTE_"))}
    return env | {"PYTHONPATH": str(ROOT), "BISECT_RECOMPUTE_CACHE": str(cache), "COLUMNS": "100"} | more


def start(*args, cwd: Path, cache: Path, **more) -> subprocess.Popen:
    env = environment(cache, **more.pop("env", {}))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL} | more
    return subprocess.Popen(
        [sys.executable, "-m", "bisect_recompute", *map(str, args)], cwd=cwd, env=env, text=True, **pipes
    )


def call(*args, cwd: Path, cache: Path, **more) -> subprocess.CompletedProcess:
    """Ends within three minutes; an internal failure (a traceback) fails the test."""
    process = start(*args, cwd=cwd, cache=cache, **more)
    try:
        out, err = process.communicate(timeout=180)
    finally:
        process.kill()
    assert "Traceback" not in err, err
    return subprocess.CompletedProcess(args, process.returncode, out, err)


def refused(*args, cwd: Path, cache: Path, **more) -> str:
    """The one line on standard error of a call that must be refused with exit code 2."""
    done = call(*args, cwd=cwd, cache=cache, **more)
    assert (done.returncode, done.stdout) == (2, ""), done
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


@dataclass(frozen=True)
class History:
    """A Megatron Core history: ``shas`` by name, oldest first."""

    repo: GitRepo
    shas: dict[str, str]

    def range(self, good: str, bad: str) -> str:
        return f"{self.shas[good]}..{self.shas[bad]}"


@functools.cache
def megatron_history(folder: Path) -> History:
    """The installed Megatron Core's source, and commits on it.

    main: base, readme, comment, broken (a syntax error), mended, kept (one more tensor), comment2, tip. From base
    another branch: broken_too, loops (it hangs), kept_too. Only the two ``kept`` move memory: by ``KEPT_BYTES``.
    """
    repo = GitRepo(folder / "megatron")
    core = Path(importlib.metadata.distribution("megatron-core").locate_file("megatron/core"))
    ignore = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(core, repo.path / "megatron" / "core", ignore=ignore)
    source = (repo.path / MLP).read_text()
    call_of_fc2 = "        output, output_bias = self.linear_fc2(intermediate_parallel)\n"
    assert source.count(call_of_fc2) == 1
    twice = "        intermediate_parallel = torch.tanh(torch.tanh(intermediate_parallel))\n"
    once = "        intermediate_parallel = torch.tanh(intermediate_parallel)\n"
    source = source.replace(call_of_fc2, once + call_of_fc2)
    kept = source.replace(once, twice)
    edits = {
        "base": {MLP: source},
        "readme": {"README.md": "read me\n"},
        "comment": {MLP: source + "# a comment\n"},
        "broken": {MLP: source + "def broken(:\n"},
        "mended": {MLP: source + "# mended\n"},
        "kept": {MLP: kept},
        "comment2": {MLP: kept + "# another comment\n"},
        "tip": {"README.md": "read me again\n"},
    }
    shas = {name: repo.commit(subject(name), files) for name, files in edits.items()}
    repo.switch("other", shas["base"])
    edits = {
        "broken_too": {MLP: source + "def broken_too(:\n"},
        "loops": {MLP: source.replace(once, "        while True:\n            pass\n" + once)},
        "kept_too": {MLP: kept},
    }
    shas |= {name: repo.commit(subject(name), files) for name, files in edits.items()}
    repo.switch("main")
    return History(repo, shas)


def subject(name: str) -> str:
    """Not harmless: what a stranger can write."""
    return f"{name} `x` <b>@you</b> #1"
