"""Static settings against values obtained by executing the recipes: fixtures/recipe-settings, two revisions."""

import json
import os
from pathlib import Path

import pytest

from bisect_recompute.differ.recipes.revision import Revision
from bisect_recompute.history.repository import Repository

FIXTURES = sorted((Path(__file__).parents[1] / "fixtures" / "recipe-settings").glob("executed-*.json"))
CLONE = os.environ.get("BISECT_RECOMPUTE_MEGATRON_BRIDGE")


def executed(path: Path) -> tuple[str, dict[tuple[str, str], object]]:
    """(revision, {(recipe, field): value}) of a fixture."""
    document = json.loads(path.read_text())
    values = {}
    for module, functions in document["recipes"].items():
        for function, row in functions.items():
            for field, value in zip(document["fields"], document["rows"][row]):
                values[f"{module}:{function}", field] = value
    return document["revision"], values


@pytest.mark.megatron_bridge
@pytest.mark.skipif(not CLONE, reason="BISECT_RECOMPUTE_MEGATRON_BRIDGE is not set")
@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda p: p.stem)
def test_matches_executed_recipes(fixture):
    revision, values = executed(fixture)
    repository = Repository(Path(CLONE))
    recipes = Revision(repository.read_blob, repository.tree(revision)).recipes
    right, wrong = 0, []
    for (recipe, field), value in values.items():
        state = recipes[recipe].fields[field]
        if state.state == "unknown":
            continue
        found = "<unset>" if state.state == "unset" else state.value
        if found == value and type(found) is type(value):
            right += 1
        else:
            wrong.append((recipe, field, value, found))
    assert not wrong
    assert right >= 0.99 * len(values)


def test_fixtures_cover_both_eras():
    sizes = {path.stem: len({recipe for recipe, _ in executed(path)[1]}) for path in FIXTURES}
    assert sizes == {"executed-2d1581bbd": 646, "executed-6c78fba79": 166}
