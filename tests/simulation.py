"""Helpers for tests that run the simulator on the installed Megatron Core."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import yaml

from bisect_recompute.probe.recipe import Recipe, load_recipe

ROOT = Path(__file__).resolve().parents[1]


def recipe(source: str, **changes) -> Recipe:
    """A recipe with fields changed: ``recipe("tiny", model={"num_layers": 3})``."""
    data = load_recipe(source).model_dump(exclude_unset=True)
    for group, fields in changes.items():
        data.setdefault(group, {}).update(fields)
    return Recipe.model_validate(yaml.safe_load(yaml.safe_dump(data)))


def megatron_core() -> Path:
    """Folder of the installed package, without importing it."""
    return Path(importlib.util.find_spec("megatron").submodule_search_locations[0]) / "core"


def copy_megatron_core(tree: Path):
    """Puts the sources of the installed Megatron Core into ``tree``, as a commit would have them."""
    shutil.copytree(
        megatron_core(), tree / "megatron" / "core", ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.pyc")
    )
