"""Settings in launch scripts: what bash itself would hand to the training, and real scripts of the two repositories."""

import json
import os
import subprocess

import pytest
from command_line import call
from gitrepo import GitRepo

from bisect_recompute.differ.recipes.scripts import script_settings

LM = os.environ.get("BISECT_RECOMPUTE_MEGATRON_LM", "")
BRIDGE = os.environ.get("BISECT_RECOMPUTE_MEGATRON_BRIDGE", "")
SCRIPTS = {
    "options": """
        torchrun --nproc-per-node 8 pretrain_gpt.py \\
            --tensor-model-parallel-size 4 --sequence-parallel \\
            --recompute-granularity=selective --recompute-modules core_attn "moe_act" --bf16
    """,
    "variables": """
        TP=${TP:-2}
        export SEQ="4096"
        MODULES=(mlp layernorm)
        ARGS=(
            --recompute-granularity selective  # for memory
            --recompute-modules "${MODULES[@]}"
            --tensor-model-parallel-size $TP
        )
        ARGS+=(--seq-length ${SEQ})
        MORE="--micro-batch-size 1 \\
            --global-batch-size 64"
        MORE+=" --sequence-parallel"
        torchrun pretrain_gpt.py ${ARGS[@]} $MORE
    """,
    "overrides": """
        PP=8
        torchrun run_recipe.py --recipe llama "model.recompute_granularity=full" model.recompute_method=uniform \\
            ++model.recompute_num_layers=1 model.pipeline_model_parallel_size=$PP train.global_batch_size=128
    """,
    "script in a script": """
        N=2
        ARGS="--recompute-granularity full --recompute-num-layers $N"
        RUN="cd /tmp && torchrun pretrain_gpt.py $ARGS --recompute-method block"
        bash -c "$RUN"
    """,
    "here document": """
        ARGS=(--recompute-granularity full --recompute-method block)
        bash <<END
        torchrun pretrain_gpt.py ${ARGS[@]} --recompute-num-layers 3
        END
    """,
}
SHELL_OF = {
    "recompute_granularity": "recompute-granularity", "recompute_method": "recompute-method",
    "recompute_num_layers": "recompute-num-layers", "recompute_modules": "recompute-modules",
    "tensor_model_parallel_size": "tensor-model-parallel-size", "seq_length": "seq-length",
    "micro_batch_size": "micro-batch-size", "global_batch_size": "global-batch-size",
}


@pytest.fixture
def handed_over(tmp_path):
    """The arguments that bash gives to ``torchrun``."""

    def run(script):
        (tmp_path / "torchrun").write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$OUT"\n')
        (tmp_path / "torchrun").chmod(0o755)
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "OUT": str(tmp_path / "out")}
        subprocess.run(["bash", "-c", script], env=env, cwd=tmp_path, check=True)
        return (tmp_path / "out").read_text().splitlines()

    return run


def text(name):
    return "\n".join(line[8:] if line.startswith(" " * 8) else line for line in SCRIPTS[name].splitlines()) + "\n"


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_setting_is_what_bash_hands_over(name, handed_over):
    words = handed_over(text(name))
    states = script_settings("run.sh", text(name).encode())
    found = {field: state.value for field, state in states.items() if state.state == "set"}
    assert not [field for field, state in states.items() if state.state == "unknown"]
    for field, value in found.items():
        if any(word.startswith(("model.", "train.", "++model.")) for word in words):
            assert any(word.endswith(f".{field}={value}") for word in words), field
        elif value is True or field == "mixed_precision":
            assert f"--{field.replace('_', '-')}" in words or "--bf16" in words
        else:
            option = f"--{SHELL_OF[field]}"
            at = next(i for i, word in enumerate(words) if word.partition("=")[0] == option)
            given = [words[at].partition("=")[2]] if "=" in words[at] else words[at + 1:]
            wanted = value if isinstance(value, list) else [value]
            assert given[: len(wanted)] == [str(v) for v in wanted]
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert {f for f, option in SHELL_OF.items() if f"--{option}" in options} <= found.keys()


def test_lines_are_those_where_the_script_writes_the_option():
    states = script_settings("run.sh", text("variables").encode())
    lines = text("variables").splitlines()
    assert "--recompute-modules" in lines[states["recompute_modules"].origin[2] - 1]
    assert "--seq-length" in lines[states["seq_length"].origin[2] - 1]


@pytest.mark.parametrize(
    "script, reason",
    [
        ('if [ "$BIG" ]; then\n  A="--recompute-granularity full"\nfi\ntorchrun x.py $A', "depends on the if"),
        ("torchrun x.py --recompute-granularity $G", "$G is not set"),
        ("torchrun x.py --recompute-granularity $(choose)", "command substitution"),
        ("torchrun x.py --recompute-granularity full\ntorchrun x.py --recompute-granularity selective", "more than once"),
        ("for n in 1 2; do torchrun x.py --recompute-granularity full; done", "depends on the for"),
    ],
)
def test_what_the_text_does_not_decide_is_unknown(script, reason):
    state = script_settings("run.sh", script.encode())["recompute_granularity"]
    assert state.state == "unknown" and reason in state.reason


@pytest.mark.parametrize("content", [b"", b"\xff\xfe --bf16", b"if then ((( --bf16 $(", b"cat <<EOF\n--bf16", b"echo hello"])
def test_any_text_is_read_without_a_fault(content):
    script_settings("run.sh", content)
    script_settings("tests/functional_tests/test_cases/x/model_config.yaml", content)


def test_diff_and_show_follow_a_script(tmp_path):
    repo = GitRepo(tmp_path / "project")
    run = "ARGS=(\n  --tensor-model-parallel-size 2\n  --recompute-granularity {}\n)\ntorchrun pretrain_gpt.py ${{ARGS[@]}}\n"
    case = "tests/functional_tests/test_cases/gpt/one/model_config.yaml"
    first = repo.commit("first", {"train.sh": run.format("full"), case: "MODEL_ARGS:\n  --num-layers: 2\n  --bf16: true\n"})
    changed = repo.commit("tune", {"train.sh": run.format("selective")})
    repo.git("mv", "train.sh", "launch.sh")
    moved = repo.commit("rename")
    test = repo.commit("test", {case: "MODEL_ARGS:\n  --num-layers: 2\n  --bf16: true\n  --recompute-granularity: full\n"})
    done = call("diff", f"{first}..{test}", "--repo", repo.path, "--json", cwd=tmp_path, cache=tmp_path / "cache")
    commits = {entry["commit"]: entry for entry in json.loads(done.stdout)["commits"]}
    (change,) = commits[changed]["changes"]
    assert change == {"recipe": "train.sh", "field": "recompute_granularity", "old": "full", "new": "selective",
                      "file": "train.sh", "line": 3}
    assert commits[changed]["kinds"] == ["recipe-value"]
    assert commits[moved]["kinds"] == ["recipe-moved"]
    (change,) = commits[test]["changes"]
    assert (change["file"], change["line"], change["new"]) == (case, 4, "full")

    done = call("show", test, "--repo", repo.path, "--json", cwd=tmp_path, cache=tmp_path / "cache")
    recipes = json.loads(done.stdout)["recipes"]
    assert recipes["launch.sh"]["recompute_granularity"] == {"state": "set", "value": "selective", "file": "launch.sh", "line": 3}
    assert recipes[case]["mixed_precision"]["value"] == "bf16"


@pytest.mark.megatron_lm
@pytest.mark.skipif(not LM, reason="BISECT_RECOMPUTE_MEGATRON_LM names no Megatron-LM clone")
def test_scripts_of_megatron_lm(tmp_path):
    done = call("show", "d98e8a64dd", "--repo", LM, "--json", cwd=tmp_path, cache=tmp_path / "cache")
    recipes = json.loads(done.stdout)["recipes"]
    # sbatch gets a here document with a script for bash -c, whose options stand in an array that conditions add to.
    script = recipes["examples/megatron_fsdp/sbatch_mfsdp_deepseek_v3.sh"]
    assert (script["recompute_modules"]["value"], script["recompute_modules"]["line"]) == (
        ["mlp", "moe", "mla_up_proj", "layernorm"], 49)
    assert recipes["examples/rl/model_configs/qwen3_32b.sh"]["recompute_modules"]["value"] == ["core_attn"]
    (case,) = [r for path, r in recipes.items() if path.endswith("gpt3_mcore_te_tp1_pp1_uniform_full_recompute/model_config.yaml")]
    assert [case[f"recompute_{name}"]["value"] for name in ("granularity", "method", "num_layers")] == ["full", "uniform", 1]


@pytest.mark.megatron_bridge
@pytest.mark.skipif(not BRIDGE, reason="BISECT_RECOMPUTE_MEGATRON_BRIDGE names no Megatron-Bridge clone")
def test_scripts_of_megatron_bridge(tmp_path):
    done = call("show", "067f987df", "--repo", BRIDGE, "--recipe", "examples/*", "--json", cwd=tmp_path, cache=tmp_path / "cache")
    recipes = json.loads(done.stdout)["recipes"]
    ultra = recipes["examples/models/nemotron/nemotron_3/ultra/slurm_pretrain.sh"]
    assert (ultra["recompute_granularity"]["value"], ultra["pipeline_model_parallel_size"]["value"]) == ("full", 12)
    assert ultra["recompute_method"]["state"] == "unknown"
    omni = recipes["examples/models/nemotron/nemotron_3_omni/slurm_sft_cord_v2.sh"]
    assert omni["recompute_modules"]["value"] == ["core_attn", "mlp", "layernorm", "moe_act", "moe"]
