"""Recipe changes of commits, kept between runs by the content of the two trees they compare."""

from __future__ import annotations

from typing import Sequence

from bisect_recompute.differ.recipes.timeline import RecipeChanges, walk
from bisect_recompute.history.commit import Commit
from bisect_recompute.history.repository import Repository


def recipe_changes(repository: Repository, commits: Sequence[Commit], use_cache: bool = True) -> list[RecipeChanges]:
    """One entry per commit, in order."""
    return list(walk(repository, commits))
