"""Recipes as people write them: what is wrong is said in one line, with the way out."""

import jsonschema
import pytest
import yaml

from bisect_recompute.errors import UsageError
from bisect_recompute.probe.recipe import LARGEST, load_recipe, parse_recipe, recipe_schema, shipped_recipes

GOOD = shipped_recipes()["tiny"].read_text()


def refused(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse_recipe(text, "r.yaml", "r")
    message = str(caught.value)
    assert message.isprintable() and len(message) < 400
    assert message.startswith("r.yaml")
    return message


@pytest.mark.parametrize("name", ["llama3-8b", "llama3-70b", "gpt3-175b", "tiny", "mixtral-8x7b", "moonlight-16b", "deepseek-v3"])
def test_shipped_recipes_load_and_keep_to_the_published_schema(name):
    assert load_recipe(name).name == name
    assert load_recipe(f"recipes/{name}.yaml") == load_recipe(name)
    jsonschema.validate(yaml.safe_load(shipped_recipes()[name].read_text()), recipe_schema())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("hidden_size:", "hidden_sise:", "unknown field 'model.hidden_sise'; did you mean 'hidden_size'?"),
        ("model:", "model:\n  tensor_model_parallel_size: 2", "it belongs under 'parallel:'"),
        ("model:", "modell:", "unknown field 'modell'; did you mean 'model'?"),
        ("gpu: h100", "gpu: h101", "known are a100"),
        ("data_parallel_size: 1", "data_parallel_size: 1\n  ranks: [1]", "parallel.ranks must lie in 0..0"),
        ("global_batch_size: 4", "global_batch_size: 5", "not a multiple"),
        ("num_layers: 4", "num_layers: true", "model.num_layers: Input should be a valid integer, not True"),
        ("num_layers: 4", "num_layers: '4'", "model.num_layers: Input should be a valid integer, not '4'"),
        ("num_layers: 4", "num_layers: -4", "greater than 0"),
        ("num_layers: 4", "num_layers: 4\n  num_layers: 8", "r.yaml line 5: malformed YAML: 'num_layers' is given twice"),
        ("num_layers: 4", "num_layers: 4\n  7: 1\n  7: 2", "r.yaml line 6: malformed YAML: '7' is given twice"),
        ("num_layers: 4", "num_layers: 4\n  moe_router_topkk: 2", "did you mean 'moe_router_topk'?"),
        ("num_layers: 4", "num_layers: 4\n  zzz: 2", "'bisect-recompute schema recipe' prints the known ones"),
        ("data_parallel_size: 1", "data_parallel_size: 1\n  expert_model_parallel_size: 2", "= 2 does not divide"),
        ("num_layers: 4", "num_layers: 4.0", "valid integer, not 4.0"),
        ("data_parallel_size: 1", "data_parallel_size: 1\n  ranks: [true]", "parallel.ranks.0: Input should be a valid"),
        ("data_parallel_size: 1", "data_parallel_size: 1\n  ranks: [-1]", "parallel.ranks must lie in 0..0"),
        ("data_parallel_size: 1", "data_parallel_size: 1\n  ranks: []", "parallel.ranks must lie in 0..0"),
        ("apply_rope_fusion: false", "apply_rope_fusion: 'no'", "valid boolean, not 'no'"),
        ("apply_rope_fusion: false", "apply_rope_fusion: 0", "valid boolean, not 0"),
        ("hidden_dropout: 0.0", "hidden_dropout: true", "valid number, not True"),
        ("hidden_dropout: 0.0", "hidden_dropout: .nan", "finite number, not nan"),
        ("memory: 1.0", "memory: .inf", "finite number, not inf"),
        ("precision: bf16", "precision: bf61", "training.precision: Input should be 'bf16', 'fp16' or 'fp32', not 'bf61'"),
        ("num_layers: 4", "num_layers: 0x_", "r.yaml line 4: malformed YAML: '0x_' is no value of the kind int"),
        ("num_layers: 4", "num_layers: " + "9" * 5000, "r.yaml line 4: malformed YAML: '999"),
        ("description: ", "description: 2026-13-45 #", "line 2: malformed YAML: '2026-13-45' is no value of the kind"),
        ("model:", '"mo\\u202e\\ndel": 1\nmodel:', r"unknown field 'mo\u202e\ndel'"),
        ("model:", f"{'x' * 500}: 1\nmodel:", "known are name, description, model"),
        ("model:", "1: 2\nmodel:", "Keys should be strings"),
        ("num_layers: 4", "num_layers: [", "malformed YAML"),
        ("num_layers: 4", "num_layers: 4\0", "malformed YAML"),
        ("num_layers: 4", "num_layers: !!python/object/apply:os.getcwd []", "malformed YAML"),
    ],
)
def test_a_slip_is_named(old, new, said):
    assert old in GOOD
    assert said in refused(GOOD.replace(old, new, 1))


@pytest.mark.parametrize("text", ["", "- 1", "[" * 100_000, "{a: " * 3000, "a: &x [*x]"])
def test_what_is_no_recipe_is_refused(text):
    refused(text)


def test_recipes_may_share_parts_and_write_floats_as_yaml_1_2_does():
    text = GOOD.replace("layernorm_epsilon: 1.0e-5", "layernorm_epsilon: 1e-5")
    assert parse_recipe(text, "r.yaml", "tiny") == load_recipe("tiny")
    # An own key wins over one of a shared part; that is no key given twice.
    shared = "<<: {thresholds: {memory: 9}, name: shared}\n" + GOOD
    assert parse_recipe(shared, "r.yaml", "tiny").thresholds.memory == 1
    assert parse_recipe(shared, "r.yaml", "tiny").name == "shared"


def test_the_schema_is_a_json_schema():
    jsonschema.Draft202012Validator.check_schema(recipe_schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(GOOD.replace("num_layers: 4", "num_layers: '4'")), recipe_schema())


@pytest.mark.parametrize("spec", ["x" * 5000, "a/b/tiny", "other/llama3-8b.yaml"])
def test_what_is_neither_a_file_nor_a_shipped_recipe(spec):
    with pytest.raises(UsageError, match="no such recipe"):
        load_recipe(spec)


def test_a_recipe_that_is_no_text(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot read recipe"):
        load_recipe(str(path))


def test_a_recipe_that_is_not_there_and_one_that_is_too_large(tmp_path):
    with pytest.raises(UsageError, match="did you mean 'llama3-70b'"):
        load_recipe("llama-70b")
    large = tmp_path / "large.yaml"
    large.write_text("#" * (LARGEST + 1))
    with pytest.raises(UsageError, match="larger than 1 MiB"):
        load_recipe(str(large))
