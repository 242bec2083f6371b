"""Random recipe source, and random edits of it: never a crash, never a claim that a real run contradicts."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from recipe_source import DEFECT, FIELDS, PATH, PRELUDE, contradictions, static

LISTS = ["['mlp']", "[]", "TABLE['b200']", "list(BASE.modules)", "None", "names", "names + ['x']", "[*names]", "names[:1]"]
NUMBERS = ["1", "BASE.layers", "n", "n + 1", "len(names)", "int('3')", "max(n, 2)", "n * 2 - 1", "-n", "len(TABLE)"]
TEXTS = ["'full'", "'selective'", "None", "g", "g or 'full'", "f'{n}'", "str(n)", "'a,b'.split(',')[n % 2]"]
KNOWN = ["n > 1", "names", "g is None", "not names", "'mlp' in names", "BASE.some", "n == 2 or g", "isinstance(n, int)",
         "len(names) >= n", "hasattr(cfg.model, 'recompute_method')", "g != 'full' and n < 5"]
OPEN = ["os.environ.get('NOT_SET_ANYWHERE')", "os.getpid() > 0", "os.path.exists('/')", "os.cpu_count() > 10_000"]


class Writer:
    """Writes a random recipe. Names n (number), names (list), g (text or None) and cfg always exist."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.counter = 0

    def pick(self, options):
        return self.rng.choice(options)

    def condition(self) -> str:
        return self.pick(OPEN if self.rng.random() < 0.35 else KNOWN)

    def block(self, depth: int, size: int) -> list[str]:
        lines: list[str] = []
        for _ in range(self.rng.randint(1, size)):
            lines += self.statement(depth)
        return lines

    def statement(self, depth: int) -> list[str]:
        simple = [
            lambda: [f"n = {self.pick(NUMBERS)}"],
            lambda: [f"names = {self.pick(LISTS[:4] + LISTS[5:])} or ['z']"],
            lambda: [f"g = {self.pick(TEXTS)}"],
            lambda: [f"cfg.model.recompute_granularity = {self.pick(TEXTS)}"],
            lambda: [f"cfg.model.recompute_method = {self.pick(TEXTS)}"],
            lambda: [f"cfg.model.recompute_num_layers = {self.pick(NUMBERS)}"],
            lambda: [f"cfg.model.recompute_modules = {self.pick(LISTS)}"],
            lambda: [f"cfg.model.cpu_offloading = bool({self.condition()})"],
            lambda: [f"put(cfg, {self.pick(TEXTS)}, layers={self.pick(NUMBERS)})"],
            lambda: [f"put(cfg, **{{'recompute_modules': {self.pick(LISTS)}}})"],
            lambda: [f"names.{self.pick(['append', 'insert', 'extend', 'remove'])}({self.pick(['0, ', ''])}'q')"],
            lambda: ["names.pop()"],
            lambda: [f"names = [m + 'x' for m in names if {self.pick(['m', 'm != ' + chr(39) + 'mlp' + chr(39), 'n > 1'])}]"],
            lambda: [f"s = replace(BASE, layers={self.pick(NUMBERS)})", "n = s.layers"],
            lambda: ["cfg = copy.deepcopy(cfg)"],
            lambda: ["other = cfg.model", "other.recompute_num_layers = n"],
            lambda: [f"n = {self.pick(NUMBERS)} if {self.condition()} else {self.pick(NUMBERS)}"],
            lambda: ["n += 1"],
            lambda: ["names += ['y']"],
            lambda: [f"n, g = {self.pick(NUMBERS)}, {self.pick(TEXTS)}"],
            lambda: [f"d = {{'a': n, **{{'b': {self.pick(NUMBERS)}}}}}", "n = d.get('b', 0) + d['a']"],
            lambda: ["cfg.model.recompute_modules = getattr(cfg.model, 'recompute_modules', ['d'])"],
            lambda: [f"assert {self.condition()}"],
            lambda: ["del cfg.model.recompute_method"],
            lambda: [f"BASE.modules.append('{self.pick('abc')}')", "names = BASE.modules"],
            lambda: [f"cfg.model.recompute_num_layers = (lambda q, r={self.pick(NUMBERS)}: q * 10 + r)(n)"],
        ]
        nested = [self.branch, self.loop, self.attempt, self.helper, self.while_loop]
        if depth < 3 and self.rng.random() < 0.35:
            return self.pick(nested)(depth)
        return self.pick(simple)()

    def branch(self, depth):
        lines = [f"if {self.condition()}:", *self.indent(self.block(depth + 1, 3))]
        if self.rng.random() < 0.15:
            lines.append("    return cfg")
        if self.rng.random() < 0.1:
            lines.append("    raise ValueError('no')")
        if self.rng.random() < 0.5:
            lines += ["else:", *self.indent(self.block(depth + 1, 3))]
        return lines

    def loop(self, depth):
        source = self.pick(["range(3)", "list(names)", "enumerate(list(names))", "sorted(TABLE)", "os.environ", "range(os.getpid() % 3)"])
        lines = [f"for item in {source}:", *self.indent(self.block(depth + 1, 2))]
        if self.rng.random() < 0.3:
            lines += [f"    if {self.condition()}:", f"        {self.pick(['break', 'continue'])}"]
            lines += self.indent(self.block(depth + 1, 2))
        if self.rng.random() < 0.2:
            lines += ["else:", *self.indent(self.block(depth + 1, 1))]
        return lines

    def while_loop(self, depth):
        self.counter += 1
        name = f"w{self.counter}"
        limit = self.pick(["2", "os.getpid() % 3"])
        return [f"{name} = 0", f"while {name} < {limit}:", f"    {name} += 1", *self.indent(self.block(depth + 1, 2))]

    def attempt(self, depth):
        risky = self.pick(["TABLE['zz']", "int('x')", "int(os.environ['NOT_SET_ANYWHERE'])", "None.x", "names[9]", "os.getpid()"])
        body = [*self.block(depth + 1, 2), risky, *self.block(depth + 1, 2)]
        caught = self.pick(["Exception", "KeyError", "(KeyError, ValueError)", "IndexError"])
        lines = ["try:", *self.indent(body), f"except {caught}:", *self.indent(self.block(depth + 1, 2))]
        if self.rng.random() < 0.3:
            lines += ["finally:", *self.indent(self.block(depth + 1, 1))]
        return lines

    def helper(self, depth):
        self.counter += 1
        name = f"f{self.counter}"
        body = [*self.block(depth + 1, 3), self.pick(["return n", "return", "pass"])]
        spec = self.pick(["cfg, n, names, g", "cfg, n=1, *, names=(), g=None", "cfg, *args, n=2, names=('t',), g='u', **more"])
        lines = [f"def {name}({spec}):", *self.indent(["names = list(names)", *body])]
        return [*lines, f"n = {name}(cfg, n=n, names=names, g=g) or 1"]

    @staticmethod
    def indent(lines):
        return ["    " + line for line in lines]


def write(seed: int) -> str:
    writer = Writer(random.Random(seed))
    body = ["cfg = base()", "n, names, g = 2, ['mlp'], None", *writer.block(0, 8)]
    return PRELUDE + "\n\ndef demo_config():\n" + "\n".join(Writer.indent([*body, "return cfg"])) + "\n"


SEEDS = st.integers(0, 2**40)


@settings(max_examples=250)
@given(SEEDS)
def test_claims_agree_with_a_real_run(seed):
    source = write(seed)
    assert contradictions(source) == {}, source


@settings(max_examples=250)
@given(SEEDS, st.integers(0, 2**32))
def test_claims_about_edited_source_agree_with_a_real_run(seed, edits):
    rng = random.Random(edits)
    head, _, recipe = write(seed).rpartition("\n\ndef demo_config")
    lines = ("def demo_config" + recipe).split("\n")
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(lines))
        match rng.randrange(5):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, lines[rng.randrange(len(lines))])
            case 2:
                other = rng.randrange(len(lines))
                lines[at], lines[other] = lines[other], lines[at]
            case 3:
                lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
            case 4:
                words = lines[at].split(" ")
                rng.shuffle(words)
                lines[at] = " ".join(words)
        lines = lines or [""]
    source = head + "\n\n" + "\n".join(lines)
    assert contradictions(source) == {}, source


@settings(max_examples=200)
@given(st.binary(max_size=300))
def test_any_bytes_are_survived(content):
    assert static({PATH: content}) is None


@settings(max_examples=200)
@given(SEEDS, st.integers(0, 2**32))
def test_damaged_bytes_are_survived(seed, damage):
    rng = random.Random(damage)
    content = bytearray(write(seed).encode())
    for _ in range(rng.randint(1, 30)):
        content[rng.randrange(len(content))] = rng.randrange(256)
    state = static({PATH: bytes(content)})
    assert state is None or (DEFECT not in state.failed and set(FIELDS) <= set(state.fields))
