"""Forms in which recipes state settings: every claim is compared with a real run of the same source."""

import pytest
from recipe_source import PATH, PRELUDE, contradictions, really, static, statically

from bisect_recompute.differ.recipes.revision import Revision

BODIES = {
    "assignment": "cfg.model.recompute_granularity = 'full'\ncfg.model.recompute_num_layers = 1",
    "last write wins": "cfg.model.recompute_modules = ['mlp']\ncfg.model.recompute_modules = ['moe']",
    "helper with default and keywords": "put(cfg, layers=3, recompute_method='block')",
    "helper with positional": "put(cfg, 'selective', recompute_modules=TABLE['b200'])",
    "dict merge": "put(cfg, **{**dict(granularity='full'), 'layers': 4})",
    "none sentinel": "m = TABLE['none']\nif m is None:\n    m = ['moe_act']\ncfg.model.recompute_modules = m",
    "known branch": "cfg.model.recompute_num_layers = 8 if BASE.layers > 1 else 2",
    "loop": "for n in ('recompute_method', 'recompute_granularity'):\n    setattr(cfg.model, n, n[:4])",
    "comprehension": "cfg.model.recompute_modules = [m for m in TABLE['b200'] + ['norm'] if m != 'moe']",
    "replace": "s = replace(BASE, layers=7)\ncfg.model.recompute_num_layers = s.layers\ncfg.model.recompute_modules = s.modules",
    "property": "cfg.model.cpu_offloading = BASE.some",
    "deepcopy keeps the original": (
        "s = copy.deepcopy(BASE)\ns.modules.append('x')\ncfg.model.recompute_modules = BASE.modules"
    ),
    "alias of a list": "a = ['mlp']\nb = a\nb.append('moe')\ncfg.model.recompute_modules = a",
    "default factory": "s = Settings()\ns.names.append('q')\ncfg.model.recompute_modules = Settings().names",
    "closure": "def f(n):\n    def g():\n        cfg.model.recompute_num_layers = n\n    return g\nf(5)()",
    "partial": "partial(put, cfg, layers=9)()",
    "lambda": "(lambda c: setattr(c.model, 'recompute_method', 'uniform'))(cfg)",
    "fstring": "cfg.model.recompute_method = f'{\"BLOCK\".lower()}'",
    "getattr with default": "cfg.model.recompute_num_layers = getattr(cfg.model, 'recompute_num_layers', 6)",
    "hasattr": "cfg.model.cpu_offloading = hasattr(cfg.model, 'recompute_granularity')",
    "try except": "try:\n    TABLE['zz']\nexcept KeyError:\n    cfg.model.recompute_method = 'block'",
    "early return": "put(cfg)\nif BASE.some:\n    return cfg\ncfg.model.recompute_granularity = 'selective'",
    "while": "n = 0\nwhile n < 3:\n    n += 1\ncfg.model.recompute_num_layers = n",
    "unpacking": "a, *b = 'full', 'mlp', 'moe'\ncfg.model.recompute_granularity = a\ncfg.model.recompute_modules = b",
    "augmented list": "m = TABLE['h100']\nm += ['moe']\ncfg.model.recompute_modules = TABLE['h100']",
    "walrus": "if (n := len(TABLE)) > 2:\n    cfg.model.recompute_num_layers = n",
    "match": "match BASE.layers:\n    case 2:\n        put(cfg)\n    case _:\n        pass",
    "delete": "cfg.model.recompute_method = 'block'\ndel cfg.model.recompute_method",
    "rebuilt model": "put(cfg, layers=2)\ncfg.model = Model()",
    "finally": "try:\n    put(cfg)\nfinally:\n    cfg.model.recompute_num_layers = 2",
    "sorted set": "cfg.model.recompute_modules = sorted({'b', 'a'})",
    "class attribute": "class Y(Model):\n    recompute_method = 'block'\ncfg.model = Y()\ncfg.model.recompute_num_layers = 1",
    "own __setattr__": (
        "class Y(Model):\n    def __setattr__(self, name, value):\n        object.__setattr__(self, name, value)\n"
        "        if name == 'recompute_method':\n            object.__setattr__(self, 'recompute_num_layers', 5)\n"
        "cfg.model = Y()\ncfg.model.recompute_method = 'block'"
    ),
    "nested function default": "def f(c, n=len(TABLE)):\n    c.model.recompute_num_layers = n\nf(cfg)",
    "chained comparison": "cfg.model.cpu_offloading = 1 < BASE.layers <= 2",
    "star arguments": "put(*[cfg, 'selective'], **{'recompute_modules': []})",
    "zip and enumerate": "for i, (n, v) in enumerate(zip(['recompute_num_layers'], [4])):\n    setattr(cfg.model, n, v + i)",
}


def recipe(body: str) -> str:
    lines = "\n".join("    " + line for line in body.split("\n"))
    return f"{PRELUDE}\n\ndef demo_config():\n    cfg = base()\n{lines}\n    return cfg\n"


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_form_is_resolved(body):
    source = recipe(body)
    real = really(source)
    assert real is not None
    if "class attribute" in body or "recompute_method = 'block'\ncfg.model = Y()" in body:
        real["recompute_method"] = "<unset>"  # the recipe leaves it to the class
    assert statically(source) == real


UNKNOWN = {
    "branch": "if os.environ.get('A'):\n    put(cfg, 'full', layers=1)",
    "branch with return": "if os.environ.get('A'):\n    return put(cfg, 'selective')",
    "loop over unknown": "for x in os.environ:\n    cfg.model.recompute_granularity = 'full'",
    "while": "while os.environ.get('A'):\n    cfg.model.recompute_granularity = 'full'",
    "passed to outside code": "import json\nfrom somewhere import tune\n\ntune(cfg)",
    "value": "cfg.model.recompute_granularity = os.environ.get('A')",
    "try around outside code": (
        "try:\n    int(os.environ['A'])\n    cfg.model.recompute_granularity = 'full'\nexcept Exception:\n    pass"
    ),
    "unknown attribute name": "setattr(cfg.model, os.environ.get('A', 'recompute_granularity'), 'full')",
}


@pytest.mark.parametrize("body", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_what_cannot_be_known_is_unknown(body):
    state = static({PATH: recipe(body)})
    field = state.fields["recompute_granularity"]
    assert field.state == "unknown" and field.reason


def test_equal_on_both_branches_is_known():
    body = "if os.environ.get('A'):\n    put(cfg, 'full', layers=1)\nelse:\n    put(cfg, 'full', layers=2)"
    found = statically(recipe(body))
    assert found["recompute_granularity"] == "full" and found["recompute_num_layers"] == "<unknown>"


def test_branch_that_raises_is_not_taken():
    body = "if os.environ.get('A'):\n    raise ValueError('no')\nput(cfg, layers=1)"
    assert statically(recipe(body))["recompute_num_layers"] == 1


def test_modules_follow_imports_reexports_and_stars():
    package = "src/megatron/bridge/recipes"
    files = {
        f"{package}/__init__.py": "",
        f"{package}/tools/__init__.py": "from .inner import *\nfrom .inner import base as renamed\n",
        f"{package}/tools/inner.py": PRELUDE + "__all__ = ['put']\n",
        PATH: (
            "from megatron.bridge.recipes import tools\nfrom ..tools import put, renamed\n\n"
            "def demo_config():\n    cfg = renamed()\n    put(cfg, layers=2)\n    tools.put(cfg, 'full')\n    return cfg\n"
        ),
    }
    state = static(files)
    assert state.fields["recompute_num_layers"].value == 2
    assert state.fields["recompute_granularity"].value == "full"


def test_opaque_provider_remembers_what_is_written():
    source = (
        "from megatron.bridge import AutoBridge\n\nclass C:\n    pass\n\n"
        "def demo_config():\n    cfg = C()\n    cfg.model = AutoBridge.from_hf_pretrained('x').to_megatron_provider()\n"
        "    cfg.model.recompute_granularity = 'full'\n    return cfg\n"
    )
    state = static({PATH: source})
    assert state.fields["recompute_granularity"].value == "full"
    assert state.fields["recompute_modules"].state == "unset"


@pytest.mark.parametrize(
    "content",
    [b"def demo_config(:\n", b"\xff\xfe\x00", b"x = '\xe9'\n", b"print 'python 2'\n", b"\x00", b"../other.py"],
    ids=["syntax", "utf16", "latin1", "python2", "nul", "symlink"],
)
def test_unreadable_file_is_survived(content):
    assert static({PATH: content}) is None
    broken = "src/megatron/bridge/recipes/demo/other.py"
    source = f"{PRELUDE}\nfrom .other import tune\n\ndef demo_config():\n    cfg = base()\n    tune(cfg)\n    return cfg\n"
    state = static({PATH: source, broken: content})
    assert state.fields["recompute_granularity"].state == "unknown"


def test_recursion_and_endless_loops_end():
    recursive = recipe("demo_config()")
    endless = recipe("while True:\n    pass")
    assert statically(recursive)["recompute_granularity"] == "<unknown>"
    assert statically(endless)["recompute_granularity"] == "<unknown>"


def test_long_and_deep_files_are_read():
    many = "\n".join(f"X{i} = {i}" for i in range(100_000))
    source = f"{PRELUDE}\n{many}\n\ndef demo_config():\n    return put(base(), layers=X99999)\n"
    assert statically(source)["recompute_num_layers"] == 99_999
    deep = f"{PRELUDE}\nX = {'(' * 150}1{')' * 150}\nY = {'-' * 3000}1\n\ndef demo_config():\n    return put(base(), layers=X)\n"
    assert contradictions(deep) == {}


def test_text_at_the_margin_of_a_string_is_no_code():
    source = f'{PRELUDE}\nDOC = """\ndef demo_config():\n    return 1\n"""\n\ndef demo_config():\n    return put(base(), layers=3)\n'
    assert statically(source)["recompute_num_layers"] == 3


def test_a_registry_filled_by_a_decorator_is_full():
    source = (
        f"{PRELUDE}\nREGISTRY = {{}}\n\ndef register(f):\n    REGISTRY[f.__name__] = f\n    return f\n\n"
        "@register\ndef tuned(c):\n    c.model.recompute_num_layers = 6\n\n"
        "def demo_config():\n    cfg = base()\n    REGISTRY['tuned'](cfg)\n    return cfg\n"
    )
    assert really(source)["recompute_num_layers"] == 6
    assert statically(source)["recompute_num_layers"] == 6


def test_a_constant_assigned_twice_has_its_value_at_each_place():
    source = (
        f"{PRELUDE}\nA = replace(BASE, layers=1)\nB = A\nA = replace(BASE, layers=2)\n\n"
        "def demo_config():\n    cfg = base()\n    cfg.model.recompute_num_layers = A.layers * 10 + B.layers\n    return cfg\n"
    )
    assert statically(source)["recompute_num_layers"] == really(source)["recompute_num_layers"] == 21


def test_the_line_is_where_the_value_is_written():
    source = f"{PRELUDE}\n\ndef demo_config():\n    n = 4\n    cfg = base()\n    put(cfg, layers=n)\n    return cfg\n"
    blob = {"0" * 40: source.encode()}
    from bisect_recompute.differ.recipes.revision import Revision

    revision = Revision(blob.get, {PATH: "0" * 40})
    state = revision.recipes["megatron.bridge.recipes.demo.demo:demo_config"].fields["recompute_num_layers"]
    assert revision.world.line(state.origin) == (PATH, source.split("\n").index("    n = 4") + 1)


def test_a_second_name_of_a_recipe_is_a_recipe():
    files = {
        "src/megatron/bridge/recipes/a.py": "from lab import GPT, ConfigContainer\n\n\ndef one_config():\n    cfg = ConfigContainer(model=GPT())\n    "
        "cfg.model.recompute_granularity = 'full'\n    return cfg\n",
        "src/megatron/bridge/recipes/b.py": "from megatron.bridge.recipes.a import one_config\n"
        "SIZE = 3\nsize_config = SIZE\ntwo_config = one_config\nthree_config = size_config\n",
    }
    sources = {path: text.encode() for path, text in files.items()}
    found = Revision(sources.get, {path: path for path in files}).recipes
    assert {key.partition(":")[2] for key in found} == {"one_config", "two_config"}
    state = found["megatron.bridge.recipes.b:two_config"].fields["recompute_granularity"]
    assert (state.value, state.origin[0]) == ("full", "src/megatron/bridge/recipes/a.py")
