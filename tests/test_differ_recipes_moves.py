"""Going from revision to revision: what is kept is what a fresh look at each revision finds."""

import random

from hypothesis import example, given, settings
from hypothesis import strategies as st
from recipe_source import FIELDS, MODULE, PATH, PRELUDE

from bisect_recompute.differ.recipes.revision import Revision

SHARED = PATH.replace("demo.py", "shared.py")
PACKAGE = PATH.replace("demo.py", "__init__.py")
SHARED_START = [
    PRELUDE, "N = 1", "L = ['mlp']", "A = N", "B = replace(BASE, layers=N)", "R = {}",
    "def register(f):\n    R[f.__name__] = f\n    return f", "@register\ndef one():\n    return N", "class Sub(Model):\n    extra = A",
    "def size(cfg, n=N):\n    cfg.model.recompute_num_layers = n",
]
SHARED_POOL = [
    *(f"N = {n}" for n in range(2, 9)), "N = len(L) + 20", "L = L + ['moe']", "L.append('q')", "L = ['norm', 'moe']", "A = N", "A = N + 1",
    "B = replace(BASE, layers=N)", "BASE = replace(BASE, layers=N + 4)", "TABLE['b200'] = L", "@register\ndef two():\n    return N",
    "def size(cfg, n=3):\n    cfg.model.recompute_num_layers = n + len(L)", "def one():\n    return N + 30",
    "class Model:\n    recompute_method = 'block'", "class Model:\n    recompute_num_layers = N", "class Sub(Model):\n    recompute_method = str(A)",
    "import os", "__all__ = ['N', 'L', 'base', 'put']", "if N > 3:\n    L = ['norm']",
]
RECIPE_START = ["from .shared import *", "from . import shared", "M = N", "MINE = 7"]
RECIPE_POOL = [
    "from .shared import N as M", "from .shared import put, base, TABLE", "MINE = M", "M = shared.A", "M = N", "L = ['own', *L]", "N = 40",
    "MINE = getattr(__import__('os'), 'x', 8)", "def base():\n    return shared.base()",
]
LINES = [
    "put(cfg, layers=M)", "shared.size(cfg)", "cfg.model.recompute_modules = L", "cfg.model.recompute_num_layers = shared.B.layers",
    "cfg.model = shared.Model()", "cfg.model = shared.Sub()", "cfg.model.recompute_method = str(MINE)",
    "cfg.model.recompute_modules = TABLE['b200']", "cfg.model.cpu_offloading = bool(shared.A)", "cfg = other_config()",
    "cfg.model.recompute_num_layers = shared.one()", "cfg.model.recompute_modules = sorted(shared.R)",
]


def edited(rng: random.Random, lines: list[str], pool: list[str]) -> list[str]:
    lines = list(lines)
    for _ in range(rng.randint(0, 3)):
        at = rng.randint(1, len(lines) or 1)
        match rng.randrange(8):
            case 0 | 1 | 5 | 6:
                lines.insert(at, rng.choice(pool))
            case 2:
                del lines[at : at + 1]
            case 3:
                lines[at:at] = [f"_filler{rng.randrange(99)} = {at}" for _ in range(rng.randint(1, 6))]
            case 4 if lines:
                lines.insert(at, lines.pop(rng.randrange(len(lines))))
    return lines


def function(name: str, lines: list[str]) -> str:
    return "\n".join([f"def {name}():", "    cfg = base()", *("    " + line for line in lines), "    return cfg"])


def history(seed: int) -> list[dict[str, bytes]]:
    rng = random.Random(seed)
    shared, head, body, other = SHARED_START, RECIPE_START, rng.sample(LINES, 3), ["put(cfg)"]
    revisions = []
    for _ in range(6):
        shared, head = edited(rng, shared, SHARED_POOL), edited(rng, head, RECIPE_POOL)
        body, other = edited(rng, body, LINES), edited(rng, other, LINES[:-1])
        files = {
            PACKAGE: "", SHARED: "\n\n".join(shared) + "\n",
            PATH: "\n\n".join([*head, function("demo_config", body), function("other_config", other)]) + "\n",
        }
        if rng.random() < 0.1:
            del files[SHARED]
        revisions.append({path: text.encode() for path, text in files.items()})
    return revisions


def known(revision: Revision) -> dict:
    """Without what is unknown: names that depend on each other in a circle (a list's length decides how the list is made)
    are known or not by the order in which they are asked for. What is known must be the same."""
    return {
        (key, name): (field.shown(), field.state == "set" and revision.world.line(field.origin), state.has_model)
        for key, state in revision.recipes.items() for name in FIELDS for field in [state.fields[name]]
        if field.state != "unknown"
    }


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**40))
@example(0)
def test_what_is_kept_between_revisions_is_what_a_fresh_look_finds(seed):
    revisions = history(seed)
    blobs = {text.decode(): text for files in revisions for text in files.values()}
    trees = [{path: text.decode() for path, text in files.items()} for files in revisions]
    kept = Revision(blobs.get, trees[0])
    for before, after in zip(trees, trees[1:]):
        kept.move([(path, after.get(path)) for path in before.keys() | after.keys()])
        was, now = known(kept), known(Revision(blobs.get, after))
        both = was.keys() & now.keys()
        assert {k: was[k] for k in both} == {k: now[k] for k in both}, "\n=== after:\n".join(str({p: blobs[b].decode() for p, b in t.items()})
                                                              for t in (before, after))


def test_a_constant_that_comes_to_stand_between_two_others():
    """The statement that reads it has not changed, only its place in the file."""
    source = "X = 1\n%sA = X\n\n" + PRELUDE + "\n\ndef demo_config():\n    return put(base(), layers=A)\n"
    blobs = {"a": (source % "").encode(), "b": (source % "P = 0\nQ = 0\nX = 2\n").encode()}
    revision = Revision(blobs.get, {PATH: "a"})
    assert revision.recipes[f"{MODULE}:demo_config"].fields["recompute_num_layers"].value == 1
    revision.move([(PATH, "b")])
    assert revision.recipes[f"{MODULE}:demo_config"].fields["recompute_num_layers"].value == 2
