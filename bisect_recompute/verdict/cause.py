"""Why the culprit shifts the measurement."""

from __future__ import annotations

from bisect_recompute.differ.evidence import CommitChanges, SettingChange
from bisect_recompute.differ.recipes.fields import EFFECTIVE
from bisect_recompute.probe.recipe import RecipeFunction
from bisect_recompute.probe.result import ProbeResult
from bisect_recompute.verdict.findings import Findings
from bisect_recompute.verdict.tensors import tensor_changes
from bisect_recompute.verdict.verdict import Cause, Change, Tensor


def cause_of(f: Findings) -> Cause:
    # A commit that records a value need not be the one that moved it.
    if f.culprit is None or f.results[f.culprit].probe == "golden":
        return Cause(kind="unknown")
    changes = next((c for c in f.changes if c.commit.sha == f.commit(f.culprit).sha), None)
    settings = relevant_settings(f, changes) if changes else ()
    executed = executed_changes(f)
    settings = [s for s in settings if s.field in executed or not _executed(f, s.field)]
    settings.sort(key=lambda s: s.field not in EFFECTIVE)  # recompute and offload first, else as they come
    return Cause(
        kind=_kind(changes, settings or executed), changes=[change_of(s) for s in settings], tensors=_tensors(f)
    )


def executed_changes(f: Findings) -> dict[str, tuple]:
    """Field -> (value before, value after) of the settings that the code of the culprit and of its good neighbour
    really ended up with, where both know the field."""
    good, bad = f.results[f.last_good].settings, f.results[f.culprit].settings
    return {name: (good[name], bad[name]) for name in good if name in bad and good[name] != bad[name]}


def _executed(f: Findings, name: str) -> bool:
    return name in f.results[f.last_good].settings and name in f.results[f.culprit].settings


def change_of(change: SettingChange) -> Change:
    return Change(
        recipe=change.recipe,
        field=change.field,
        old=plain_value(change.old),
        new=plain_value(change.new),
        file=change.file,
        line=change.line,
    )


def plain_value(value):
    """As JSON knows it: sets sorted, tuples as lists, anything unknown as its text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (set, frozenset)):
        return sorted((plain_value(item) for item in value), key=repr)
    if isinstance(value, (list, tuple)):
        return [plain_value(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain_value(item) for key, item in value.items()}
    return str(value)


def relevant_settings(f: Findings, changes: CommitChanges) -> tuple[SettingChange, ...]:
    """Changes that can reach what was probed: of the probed recipe function, and of the defaults that the recipe leaves
    to the commit. What a commit changes in other recipes is no cause."""
    # A launch script's own name is its path.
    defaults = tuple(s for s in changes.changes if ":" not in s.recipe and s.recipe != s.file)
    if isinstance(f.recipe, RecipeFunction):
        # A package may offer the function under a shorter path than that of its module.
        named = [s for s in changes.changes if s.recipe.rpartition(":")[2] == f.recipe.function]
        return (*([s for s in named if s.recipe == f.recipe.name] or named), *defaults)
    stated = f.recipe.stated_fields()
    return tuple(s for s in defaults if s.field not in stated)


def _kind(changes: CommitChanges | None, settings) -> str:
    kinds = set(changes.kinds) if changes else set()
    if settings:
        return "setting"
    if "checkpoint-site" in kinds:
        return "recompute-source"
    return "dependency" if "submodule" in kinds else "other-source"


def _tensors(f: Findings) -> list[Tensor]:
    good, bad = f.results[f.last_good], f.results[f.culprit]
    if not good.memory or not bad.memory:
        return []
    return tensor_changes(good.memory.tensors, bad.memory.tensors, _lines(f, good), _lines(f, bad))


def _lines(f: Findings, result: ProbeResult):
    return lambda file, line: f.source_line(result.revision, file, line)
