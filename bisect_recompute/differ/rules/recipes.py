"""Settings of a repository's recipes for the rules, from the recipe resolver."""

from __future__ import annotations

from typing import Iterator

from bisect_recompute.differ.recipes.recipes import RecipeState, plain
from bisect_recompute.differ.recipes.revision import Revision
from bisect_recompute.differ.recipes.values import NotKnown, Obj
from bisect_recompute.differ.rules.settings import Setting, precision_fields
from bisect_recompute.history.repository import Repository

# What decides over an effect and is no setting that `show` follows.
_SHAPE = (
    "num_layers",
    "num_moe_experts",
    "moe_layer_freq",
    "moe_grouped_gemm",
    "multi_latent_attention",
    "attention_backend",
    "transformer_impl",
    "moe_paged_stash",
    "hybrid_layer_pattern",
    "hybrid_override_pattern",
    "moe_shared_expert_intermediate_size",
    "attention_dropout",
    "hidden_dropout",
    "moe_flex_dispatcher_backend",
    "moe_token_dispatcher_type",
    "mtp_num_layers",
)


def recipe_settings(repository: Repository, sha: str) -> Iterator[tuple[str, dict[str, Setting]]]:
    """(recipe, its fields) of every recipe with a model at ``sha``; those that cannot be followed are left out."""
    revision = Revision(repository.read_blob, repository.tree(sha))
    for key, state in sorted(revision.recipes.items()):
        if state.has_model and not state.failed:
            yield key, _fields(revision, state)


def _fields(revision: Revision, state: RecipeState) -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for name, field in state.fields.items():
        if field.state == "set":
            found[name] = Setting("set", field.value, *revision.world.line(field.origin))
        elif field.state == "unset" and field.default is not None:
            found[name] = Setting("set", field.default)
        else:
            found[name] = Setting(field.state)
    found.update(_shape(revision, state))
    found.update(precision_fields(found["mixed_precision"].value))
    return found


def _shape(revision: Revision, state: RecipeState) -> dict[str, Setting]:
    """Fields of the model's shape as far as the recipe itself states them."""
    found: dict[str, Setting] = {}
    if state.cell.command_line is not None:
        return found

    def read():
        config = revision.interpreter.call_recipe(state.cell.path, state.cell.name, {})
        model = config.attrs["model"][0]
        for name in _SHAPE:
            slot = model.attrs.get(name) if isinstance(model, Obj) else None
            if slot is not None and not slot[2]:
                try:
                    found[name] = Setting("set", plain(slot[0]), *revision.world.line(slot[1]))
                except NotKnown:
                    found[name] = Setting("unknown")

    revision.interpreter.evaluate(read)
    return found
