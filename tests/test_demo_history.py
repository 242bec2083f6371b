"""The history that the demo traces is what its manifest says: asked of git and of the recipe functions themselves."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[1] / "fixtures" / "demo"
MANIFEST = json.loads((DEMO / "manifest.json").read_text())
MODULE, FUNCTION = MANIFEST["recipe"].split(":")
PRINT_MODEL = """
import dataclasses, importlib, json, sys
sys.path.insert(0, sys.argv[1])
print(json.dumps(dataclasses.asdict(getattr(importlib.import_module(sys.argv[2]), sys.argv[3])().model)))
"""


@pytest.fixture(scope="module")
def git(tmp_path_factory):
    repository = tmp_path_factory.mktemp("demo") / "recipes.git"
    subprocess.run(["git", "init", "-q", "--bare", str(repository)], check=True)

    def run(*args, text=True, **more):
        done = subprocess.run(["git", "-C", str(repository), *args], check=True, capture_output=True, text=text, **more)
        return done.stdout.strip()

    run("fast-import", "--quiet", input=(DEMO / "history.fast-export").read_bytes(), text=False)
    return run


@pytest.fixture(scope="module")
def executed(git, tmp_path_factory):
    """(revision) -> the model fields that the recipe function really sets there, or its error's last line."""
    answers = {}

    def execute(revision):
        tree = git("rev-parse", f"{revision}:lab_recipes")
        if tree not in answers:
            folder = tmp_path_factory.mktemp("tree")
            subprocess.run(["tar", "x", "-C", str(folder)], input=git("archive", revision, text=False), check=True)
            command = [sys.executable, "-B", "-c", PRINT_MODEL, str(folder), MODULE, FUNCTION]
            done = subprocess.run(command, capture_output=True, text=True)
            answers[tree] = json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip().splitlines()[-1]
        return answers[tree]

    return execute


def test_stream_imports_to_the_stated_commits(git):
    assert git("rev-parse", MANIFEST["good"], MANIFEST["bad"]).split() == [MANIFEST["good_sha"], MANIFEST["bad_sha"]]
    assert 30 <= int(git("rev-list", "--count", "--all")) <= 60
    assert len(git("rev-list", "--merges", MANIFEST["bad"]).split()) == 2
    assert len(set(git("log", "--all", "--format=%ae").split())) == 5
    git("fsck", "--strict")


def test_only_the_culprit_changes_the_recipe_of_the_demo(git, executed):
    candidates = git("rev-list", "--first-parent", "--reverse", f"{MANIFEST['good']}..{MANIFEST['bad']}").split()
    sound = [sha for sha in candidates if sha != MANIFEST["does_not_import"]]
    states = [executed(sha)["recompute_modules"] for sha in [MANIFEST["good_sha"], *sound]]
    changed_at = [sha for sha, old, new in zip(sound, states, states[1:]) if old != new]
    assert changed_at == [MANIFEST["culprit"]]
    assert states[0] == ["core_attn", "mlp"] and states[-1] == ["core_attn"]

    change = MANIFEST["culprit_change"]
    before, after = executed(MANIFEST["culprit"] + "^"), executed(MANIFEST["culprit"])
    assert {key for key in after if before[key] != after[key]} == {change["field"]}
    assert (before[change["field"]], after[change["field"]]) == (change["old"], change["new"])


def test_nothing_else_of_the_model_changes_in_the_range(executed):
    good, bad = executed(MANIFEST["good"]), executed(MANIFEST["bad"])
    ignored = {"recompute_modules", "qk_layernorm", "kv_channels"}
    assert {k: v for k, v in good.items() if k not in ignored} == {k: v for k, v in bad.items() if k not in ignored}
    # Fields that came in between, with Megatron Core's own defaults.
    assert not bad["qk_layernorm"] and bad["kv_channels"] is None


def test_culprit_touches_no_line_of_the_recipe_function(git):
    def source(revision):
        text = git("show", f"{revision}:lab_recipes/llama/llama3.py")
        found = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == FUNCTION]
        return ast.get_source_segment(text, found[0])

    assert source(MANIFEST["culprit"]) == source(MANIFEST["culprit"] + "^")
    assert "recompute" not in git("log", "-1", "--format=%B", MANIFEST["culprit"])


@pytest.mark.parametrize("decoy", MANIFEST["decoys"])
def test_decoys_touch_recompute_lines_and_change_no_value(git, executed, decoy):
    diff = git("show", "-U0", "--format=", decoy, "--", "lab_recipes")
    touched = [line for line in diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert any(word in line for line in touched for word in ("recompute", "core_attn", "layernorm"))
    assert executed(decoy) == executed(decoy + "^")


def test_one_commit_does_not_import_and_the_next_one_does(git, executed):
    broken = MANIFEST["does_not_import"]
    assert "ImportError" in executed(broken)
    following = git("rev-list", "--first-parent", "--reverse", f"{broken}..{MANIFEST['bad']}").split()[0]
    assert executed(following)["recompute_modules"] == ["core_attn", "mlp"]
