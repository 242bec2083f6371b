"""What one revision's own validation refuses, read from its source."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Mapping

from bisect_recompute.differ.rules.literals import UNKNOWN, evaluate
from bisect_recompute.differ.source.chunks import Chunk, chunks
from bisect_recompute.differ.source.conditions import Condition
from bisect_recompute.differ.source.items import items, parsed
from bisect_recompute.differ.source.syntax import default_of, last
from bisect_recompute.differ.source.words import may_speak
from bisect_recompute.history.repository import Repository

_FILES = (
    "megatron/core/model_parallel_config.py",
    "megatron/core/transformer/transformer_config.py",
    "src/megatron/bridge/training/comm_overlap.py",
    "src/megatron/bridge/training/config.py",
)
_CONFIGURATIONS = ("ModelParallelConfig", "TransformerConfig")
_VALIDATES = re.compile(r"post_init|valid|_get_model_comm_overlap_cfgs")


@dataclass(frozen=True)
class Check:
    """The revision raises when ``condition`` holds."""

    condition: Condition
    file: str
    line: int


@dataclass(frozen=True)
class Fill:
    """Validation itself sets ``field`` to ``value`` (source) when ``condition`` holds."""

    field: str
    value: str
    condition: Condition
    file: str
    line: int


@dataclass(repr=False)
class Validator:
    name: str
    """Repository and abbreviated commit: where file and line are."""
    checks: list[Check] = field(default_factory=list)
    labels: dict[str, frozenset[str]] = field(default_factory=dict)
    """Field -> labels that it accepts."""
    places: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Field -> file and line of its list of labels, or of its definition."""
    defaults: dict[str, object] = field(default_factory=dict)
    """Field -> default of the configuration classes (UNKNOWN where it is no constant)."""
    fills: list[Fill] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    """Local names of the validators and the expressions that they stand for."""

    def has(self, name: str) -> bool:
        return name in self.defaults


def read_validator(repository: Repository, sha: str) -> Validator:
    """The validation of Megatron Core, and of Megatron Bridge where the tree has it; empty where it has neither."""
    found = Validator(f"{repository.name}@{sha[:10]}")
    tree: Mapping[str, str] = repository.tree(sha)
    for path in _FILES:
        source = repository.read_blob(tree[path]) if path in tree else None
        for chunk in chunks(source.decode("utf-8", "replace").replace("\r\n", "\n")) if source else ():
            try:
                _read(chunk, path, found)
            except SyntaxError:
                continue
    return found


def merged(first: Validator, second: Validator) -> Validator:
    """Both at once: Bridge's own checks and those of the Megatron-LM that it pins."""
    return Validator(
        f"{first.name} with {second.name}",
        first.checks + second.checks,
        {**first.labels, **second.labels},
        {**first.places, **second.places},
        {**first.defaults, **second.defaults},
        first.fills + second.fills,
        {**first.names, **second.names},
    )


def _read(chunk: Chunk, path: str, found: Validator) -> None:
    owner, _, name = chunk.symbol.rpartition(".")
    if chunk.in_class and owner in _CONFIGURATIONS:
        _read_default(chunk, path, name, found)
    if not may_speak(chunk.text) or not _VALIDATES.search(chunk.symbol):
        return
    if owner.endswith("Config") and owner not in (*_CONFIGURATIONS, "CommOverlapConfig"):
        return  # a subclass validates only its own models
    for item in items(chunk):
        if item.role == "fail":
            found.checks.append(Check(item.guard, path, item.line))
        elif item.role == "fill":
            found.fills.append(Fill(item.subject, item.content, item.guard, path, item.line))
        elif item.role == "labels":
            found.labels[item.subject] = frozenset(item.content.split())
            found.places[item.subject] = path, item.line
        elif item.role == "decision" and item.content.startswith(("{", "set(")):
            found.names[item.subject] = item.content


def _read_default(chunk: Chunk, path: str, name: str, found: Validator) -> None:
    body, offset = parsed(chunk)
    node = body[0]
    if isinstance(node, ast.AnnAssign) and node.value is not None and last(node.target) == name:
        found.defaults[name] = evaluate(default_of(node.value), lambda _: UNKNOWN)
        found.places.setdefault(name, (path, node.lineno + offset))
