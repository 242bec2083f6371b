"""Which recipe ``--recipe`` means."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import yaml

from bisect_recompute.errors import UsageError
from bisect_recompute.history.repository import Repository
from bisect_recompute.probe.recipe import Recipe, RecipeFunction, Thresholds, load_recipe, parse_recipe, shipped_recipes


def find_recipe(spec: str, repository: Repository, *revisions: str) -> Recipe | RecipeFunction:
    """A file, a shipped recipe, or a recipe function that the repository has at the last of ``revisions``.

    Raises UsageError: no such recipe, malformed, several functions of that name (they are listed), or a YAML recipe
    where one of ``revisions`` has no Megatron Core: the installed one would be measured.
    """
    recipe = _find(spec, repository, revisions[-1])
    for revision in revisions if not isinstance(recipe, RecipeFunction) else ():
        if not repository.tree(revision, "megatron/core"):
            raise UsageError(
                f"{repository.name} has no megatron/core at {revision[:10]}, and {spec} would measure the installed "
                "one; for a repository of recipes give a recipe function of it: --recipe module:function"
            )
    return recipe


def _find(spec: str, repository: Repository, revision: str) -> Recipe | RecipeFunction:
    module, colon, function = spec.partition(":")
    if Path(spec).is_file() or spec in shipped_recipes():
        return load_recipe(spec)
    if colon and function.isidentifier() and all(part.isidentifier() for part in module.split(".")):
        return _stated_function(module, function, repository, revision)
    if spec.isidentifier():
        found = _functions_named(spec, repository, revision)
        if len(found) > 1:
            raise UsageError(
                f"{len(found)} functions are named {spec} at {revision[:10]}, say which: {', '.join(found)}"
            )
        if found:
            return RecipeFunction(found[0].partition(":")[0], spec)
    return load_recipe(spec)


def recipe_text(recipe: Recipe | RecipeFunction) -> str:
    """Text from which ``recipe_from_text`` makes the same recipe, whatever happens to its file."""
    if isinstance(recipe, RecipeFunction):
        return recipe.name
    return yaml.safe_dump(recipe.model_dump(exclude_unset=True, exclude={"thresholds"}), sort_keys=False)


def recipe_from_text(text: str, is_function: bool, thresholds: Thresholds) -> Recipe | RecipeFunction:
    if is_function:
        module, _, function = text.partition(":")
        return RecipeFunction(module, function, thresholds)
    return with_thresholds(parse_recipe(text, "manifest.json", ""), thresholds)


def with_thresholds(recipe: Recipe | RecipeFunction, thresholds: Thresholds) -> Recipe | RecipeFunction:
    if isinstance(recipe, RecipeFunction):
        return dataclasses.replace(recipe, thresholds=thresholds)
    return recipe.model_copy(update={"thresholds": thresholds})


def _stated_function(module: str, function: str, repository: Repository, revision: str) -> RecipeFunction:
    tree = repository.tree(revision)
    path = module.replace(".", "/")
    if not any(f"{root}{path}{end}" in tree for root in ("", "src/") for end in (".py", "/__init__.py")):
        found = [name for name in _functions_named(function, repository, revision)]
        hint = f"; did you mean {found[0]}?" if found else ""
        raise UsageError(f"no such recipe: {repository.name} has no module {module} at {revision[:10]}{hint}")
    return RecipeFunction(module, function)


def _functions_named(name: str, repository: Repository, revision: str) -> list[str]:
    """``module:function`` of every module-level ``def name(``."""
    line = re.compile(rb"^(?:async )?def " + re.escape(name.encode()) + rb"\s*\(", re.M)
    found = []
    for path, blob in repository.tree(revision).items():
        if path.endswith(".py"):
            source = repository.read_blob(blob)
            if source and line.search(source) and _defines(source, name):
                found.append(f"{_module_of(path)}:{name}")
    return sorted(found)


def _defines(source: bytes, name: str) -> bool:
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return False
    return any(isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name for node in body)


def _module_of(path: str) -> str:
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
