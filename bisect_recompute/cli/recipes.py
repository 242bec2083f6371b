"""Which recipe ``--recipe`` means."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import yaml

from bisect_recompute.differ.source.submodule import submodule_clone
from bisect_recompute.errors import UsageError
from bisect_recompute.history.repository import Repository, repository_path
from bisect_recompute.probe.bridge import BridgeRecipe
from bisect_recompute.probe.bridge_commits import SUBMODULE, BridgeCommits
from bisect_recompute.probe.command.run import CommandRecipe
from bisect_recompute.probe.golden import GoldenRecipe, find_golden
from bisect_recompute.probe.recipe import Recipe, RecipeFunction, Thresholds, load_recipe, parse_recipe, shipped_recipes


def find_recipe(
    spec: str, repository: Repository, *revisions: str, submodule_repo: Path | None = None, given: Sequence[str] = (),
    kind: str = "simulate", command: str | None = None,
) -> Recipe | RecipeFunction | GoldenRecipe:
    """A file, a shipped recipe, or a recipe function that the repository has at the last of ``revisions``.

    Where the repository pins Megatron-LM as a submodule, the function's settings are read from its source;
    ``submodule_repo`` is a clone of that (default: the submodule's own), ``given`` are the user's GROUP.FIELD=VALUE.

    Raises UsageError: no such recipe, malformed, several functions of that name (they are listed), what cannot be known at
    one of ``revisions``, or a YAML recipe where one has no Megatron Core: the installed one would be measured.
    """
    if (kind == "command") != (command is not None):
        raise UsageError("--probe command and --command 'TRAIN ...' go together")
    if command is not None and not given and not submodule_repo:
        recipe = CommandRecipe(command, spec)
        recipe.words()
        return recipe
    recipe = (find_golden if kind == "golden" else _find)(spec, repository, revisions[-1])
    pins = _pins(repository, revisions[-1]) if isinstance(recipe, RecipeFunction) else []
    if pins:
        recipe = BridgeRecipe(
            recipe.module, recipe.function, recipe.thresholds, _core(repository, pins[0], submodule_repo), _stated(given)
        )
        commits = BridgeCommits(repository, recipe)
        for revision in revisions:
            commits.at(revision)
        return recipe
    if given or submodule_repo:
        raise UsageError("--set and --submodule-repo are for recipe functions of a repository that pins Megatron-LM as a submodule")
    for revision in revisions if not isinstance(recipe, (RecipeFunction, GoldenRecipe)) else ():
        if not repository.tree(revision, "megatron/core"):
            raise UsageError(
                f"{repository.name} has no megatron/core at {revision[:10]}, and {spec} would measure the installed "
                "one; for a repository of recipes give a recipe function of it: --recipe module:function"
            )
    return recipe


def _find(spec: str, repository: Repository, revision: str) -> Recipe | RecipeFunction:
    if Path(spec).is_file() or spec in shipped_recipes():
        return load_recipe(spec)
    named = _NAME.fullmatch(spec)
    if named is None:
        return load_recipe(spec)
    module, function, cell = named["module"], named["function"], named["cell"] or ""
    if module:
        return _stated_function(module, function, cell, repository, revision)
    found = _functions_named(function, repository, revision)
    if len(found) > 1:
        raise UsageError(f"{len(found)} functions are named {function} at {revision[:10]}, say which: {', '.join(found)}")
    return RecipeFunction(found[0].partition(":")[0], function + cell) if found else load_recipe(spec)


_NAME = re.compile(r"(?:(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*):)?(?P<function>[^\W\d]\w*)(?P<cell>\[[\w,]+\])?")
"""A recipe function; in brackets the cell of a launcher's configuration, as ``show`` writes it."""


def _pins(repository: Repository, revision: str) -> list[str]:
    return sorted(path for path in repository.submodules(revision) if path.rpartition("/")[2] == SUBMODULE)


def _core(repository: Repository, path: str, given: Path | None) -> str:
    clone = Repository(given) if given else submodule_clone(repository, path)
    if clone is None:
        raise UsageError(
            f"the recipe runs on the Megatron-LM that {path} pins, and that submodule is not checked out: "
            "give a clone of Megatron-LM with --submodule-repo PATH"
        )
    return repository_path(clone)


_GROUPS = ("model", "parallel", "training", "hardware", "ddp")


def _stated(given: Sequence[str]) -> tuple[tuple[str, str], ...]:
    pairs = []
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or key.partition(".")[0] not in _GROUPS or not key.partition(".")[2]:
            raise UsageError(f"--set {text[:200]}: write GROUP.FIELD=VALUE, as model.ffn_hidden_size=28672; groups are {', '.join(_GROUPS)}")
        try:
            yaml.safe_load(value)
        except (yaml.YAMLError, ValueError, RecursionError):
            raise UsageError(f"--set {text[:200]}: the value is no YAML") from None
        pairs.append((key, value))
    return tuple(sorted(dict(pairs).items()))


def recipe_options(recipe) -> list[str]:
    """The call's options, besides ``--recipe``, that make the same recipe."""
    if isinstance(recipe, GoldenRecipe):
        return ["--probe", "golden"]
    if isinstance(recipe, CommandRecipe):
        return ["--probe", "command", "--command", recipe.command]
    if not isinstance(recipe, BridgeRecipe):
        return []
    return ["--submodule-repo", recipe.core, *(part for key, value in recipe.given for part in ("--set", f"{key}={value}"))]


def recipe_text(recipe: Recipe | RecipeFunction) -> str:
    """Text from which ``recipe_from_text`` makes the same recipe, whatever happens to its file."""
    if isinstance(recipe, BridgeRecipe):
        return yaml.safe_dump({"recipe": recipe.name, "core": recipe.core, "set": dict(recipe.given)}, sort_keys=False)
    if isinstance(recipe, RecipeFunction):
        return recipe.name
    if isinstance(recipe, GoldenRecipe):
        return yaml.safe_dump({"golden": recipe.path})
    if isinstance(recipe, CommandRecipe):
        return yaml.safe_dump({"command": recipe.command, "recipe": recipe.recipe})
    return yaml.safe_dump(recipe.model_dump(exclude_unset=True, exclude={"thresholds"}), sort_keys=False)


def recipe_from_text(text: str, is_function: bool, thresholds: Thresholds) -> Recipe | RecipeFunction:
    if is_function:
        data = yaml.safe_load(text)
        by_name = isinstance(data, dict) and "core" in data
        module, _, function = (data["recipe"] if by_name else text).partition(":")
        if by_name:
            return BridgeRecipe(module, function, thresholds, data["core"], tuple(data["set"].items()))
        return RecipeFunction(module, function, thresholds)
    data = yaml.safe_load(text)
    if isinstance(data, dict) and "golden" in data:
        return GoldenRecipe(data["golden"], thresholds)
    if isinstance(data, dict) and "command" in data:
        return CommandRecipe(data["command"], data["recipe"], thresholds)
    return with_thresholds(parse_recipe(text, "manifest.json", ""), thresholds)


def with_thresholds(recipe: Recipe | RecipeFunction, thresholds: Thresholds) -> Recipe | RecipeFunction:
    if dataclasses.is_dataclass(recipe):
        return dataclasses.replace(recipe, thresholds=thresholds)
    return recipe.model_copy(update={"thresholds": thresholds})


def _stated_function(module: str, function: str, cell: str, repository: Repository, revision: str) -> RecipeFunction:
    tree = repository.tree(revision)
    path = module.replace(".", "/")
    if not any(f"{root}{path}{end}" in tree for root in ("", "src/") for end in (".py", "/__init__.py")):
        found = [name for name in _functions_named(function, repository, revision)]
        hint = f"; did you mean {found[0]}?" if found else ""
        raise UsageError(f"no such recipe: {repository.name} has no module {module} at {revision[:10]}{hint}")
    return RecipeFunction(module, function + cell)


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
