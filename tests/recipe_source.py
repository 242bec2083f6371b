"""Recipe source for tests: evaluated statically, and executed for comparison (it is the tests' own source)."""

from __future__ import annotations

import sys
from typing import Any

from bisect_recompute.differ.recipes.interpreter import DEFECT
from bisect_recompute.differ.recipes.revision import Revision

PATH = "src/megatron/bridge/recipes/demo/demo.py"
MODULE = "megatron.bridge.recipes.demo.demo"
FIELDS = ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules", "cpu_offloading")
PRELUDE = '''
import copy
import os
from dataclasses import dataclass, field, replace
from functools import partial


class Model:
    pass


class Train:
    def __init__(self, micro_batch_size=1):
        self.micro_batch_size = micro_batch_size


@dataclass
class Settings:
    modules: list = None
    layers: int = 0
    names: list = field(default_factory=list)

    @property
    def some(self):
        return bool(self.layers > 1)


class ConfigContainer:
    def __init__(self, model=None, train=None):
        self.model = model
        self.train = train


def base():
    cfg = ConfigContainer(model=Model(), train=Train())
    cfg.model.recompute_granularity = None
    return cfg


def put(cfg, granularity="full", *, layers=None, **more):
    cfg.model.recompute_granularity = granularity
    if layers is not None:
        cfg.model.recompute_num_layers = layers
    for name, value in more.items():
        setattr(cfg.model, name, value)
    return cfg


TABLE = {"h100": ["core_attn"], "b200": ["mlp", "moe"], "none": None}
BASE = Settings(modules=["mlp"], layers=2)
'''


def static(files: dict[str, str | bytes], name: str = "demo_config", module: str = MODULE):
    """RecipeState of a recipe in files given as path -> source; None where there is no such recipe."""
    blobs = {f"{i:040x}": (s.encode() if isinstance(s, str) else s) for i, s in enumerate(files.values())}
    revision = Revision(blobs.get, dict(zip(files, blobs)))
    return revision.recipes.get(f"{module}:{name}")


def statically(source: str, name: str = "demo_config") -> dict[str, Any]:
    """Field -> value, "<unset>", or "<unknown>" of a one-file recipe."""
    state = static({PATH: source}, name)
    assert state is None or DEFECT not in state.failed, state.failed
    if state is None or state.failed:
        return dict.fromkeys(FIELDS, "<unknown>")
    return {f: state.fields[f].shown() for f in FIELDS}


def really(source: str, name: str = "demo_config") -> dict[str, Any] | None:
    """The same by running it; None where it raises or does not end."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    left = [20_000]

    def count(frame, event, argument):
        left[0] -= 1
        if left[0] < 0:
            raise TimeoutError
        return count

    outer = sys.gettrace()
    try:
        exec(compile(source, "<demo>", "exec"), namespace)  # noqa: S102 - the tests' own source
        sys.settrace(count)
        model = namespace[name]().model
        return {f: getattr(model, f, "<unset>") for f in FIELDS} if left[0] > 0 else None
    except Exception:
        return None
    finally:
        sys.settrace(outer)


def contradictions(source: str, name: str = "demo_config") -> dict[str, tuple]:
    """Fields for which a static claim and a real run differ: field -> (claimed, real)."""
    real = really(source, name)
    if real is None:
        return {}
    claimed = statically(source, name)
    return {f: (claimed[f], real[f]) for f in FIELDS if claimed[f] != "<unknown>" and not equal(claimed[f], real[f])}


def equal(claimed: Any, real: Any) -> bool:
    if isinstance(real, (tuple, set, frozenset)):
        real = sorted(real) if not isinstance(real, tuple) else list(real)
    return claimed == real and type(claimed) is type(real)


__all__ = ["FIELDS", "MODULE", "PATH", "PRELUDE", "contradictions", "really", "static", "statically"]
