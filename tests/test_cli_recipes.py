import pytest

from bisect_recompute.cli.recipes import find_recipe, recipe_from_text, recipe_text, with_thresholds
from bisect_recompute.history.repository import Repository
from bisect_recompute.probe.recipe import Recipe, RecipeFunction, Thresholds

FUNCTION = "def pretrain_config():\n    return 1\n"


@pytest.fixture
def find(repo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda spec, revision="HEAD": find_recipe(spec, Repository(repo.path), repo.git("rev-parse", revision))


@pytest.mark.parametrize(
    "path, module",
    [
        ("lab/llama.py", "lab.llama"),
        ("src/lab/recipes/llama.py", "lab.recipes.llama"),
        ("src/lab/recipes/__init__.py", "lab.recipes"),
        ("recipe.py", "recipe"),
    ],
)
def test_a_bare_name_is_found_in_the_repository(repo, find, path, module):
    repo.commit("recipes", {path: FUNCTION, "lab/other.py": "import x\n"})
    assert find("pretrain_config") == RecipeFunction(module, "pretrain_config")
    assert find(f"{module}:pretrain_config") == RecipeFunction(module, "pretrain_config")


def test_the_function_is_looked_up_at_the_revision_given(repo, find):
    repo.commit("here", {"lab/a.py": FUNCTION})
    repo.commit("moved", {"lab/a.py": None, "lab/b.py": FUNCTION})
    assert find("pretrain_config", "HEAD~1").module == "lab.a"
    assert find("pretrain_config").module == "lab.b"


def test_files_that_do_not_parse_and_methods_do_not_count(repo, find):
    repo.commit(
        "recipes",
        {
            "lab/a.py": FUNCTION,
            "lab/broken.py": FUNCTION + "x = (\n",
            "lab/text.py": f'"""\n{FUNCTION}"""\n',
            "lab/c.py": "class C:\n    def pretrain_config(self): pass\n",
        },
    )
    assert find("pretrain_config").module == "lab.a"


def test_a_file_and_a_shipped_recipe_come_first(repo, find, tmp_path):
    repo.commit("recipes", {"lab/a.py": "def tiny():\n    pass\n", "megatron/core/__init__.py": ""})
    assert find("tiny").name == "tiny" and isinstance(find("tiny"), Recipe)
    (tmp_path / "mine.yaml").write_text(
        "model: {num_layers: 1, hidden_size: 8, num_attention_heads: 1, vocab_size: 8}\n"
        "training: {seq_length: 8, global_batch_size: 1}\n"
    )
    assert find("mine.yaml").name == "mine"


@pytest.mark.parametrize("spec", ["tiny", "llama3-70b", "pretrain_config"])
def test_a_manifests_text_gives_the_same_recipe(repo, find, spec):
    repo.commit("recipes", {"lab/a.py": FUNCTION, "megatron/core/__init__.py": ""})
    recipe = with_thresholds(find(spec), Thresholds(memory=2.5, throughput=7))
    again = recipe_from_text(recipe_text(recipe), isinstance(recipe, RecipeFunction), recipe.thresholds)
    assert again == recipe and again.name == recipe.name
    if isinstance(recipe, Recipe):
        assert again.model.stated() == recipe.model.stated()
