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
    assert "\n" not in message
    assert message.startswith("r.yaml")
    return message


@pytest.mark.parametrize("name", ["llama3-8b", "llama3-70b", "gpt3-175b", "tiny"])
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
        ("num_layers: 4", "num_layers: true", "model.num_layers: True is not a whole number"),
        ("num_layers: 4", "num_layers: '4'", "model.num_layers: '4' is not a whole number"),
        ("num_layers: 4", "num_layers: -4", "greater than 0"),
        ("num_layers: 4", "num_layers: 4\n  num_layers: 8", "'num_layers' is given twice"),
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


def test_a_recipe_that_is_not_there_and_one_that_is_too_large(tmp_path):
    with pytest.raises(UsageError, match="did you mean 'llama3-70b'"):
        load_recipe("llama-70b")
    large = tmp_path / "large.yaml"
    large.write_text("#" * (LARGEST + 1))
    with pytest.raises(UsageError, match="larger than 1 MiB"):
        load_recipe(str(large))
