"""Splitting a file into blocks without parsing it."""

import ast
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bisect_recompute
from bisect_recompute.differ.source.chunks import chunks, reduced
from bisect_recompute.differ.source.compare import SourceDiffer
from bisect_recompute.history.commit import ChangedPath

OWN = sorted(Path(bisect_recompute.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("path", OWN, ids=lambda p: p.name)
def test_every_block_of_real_code_is_python_with_the_right_names(path):
    source = path.read_text(encoding="utf-8")
    found = chunks(source)
    for chunk in found:
        assert source.split("\n")[chunk.line - 1] == chunk.text.split("\n")[0]
        ast.parse(f"if 1:\n{chunk.text}" if chunk.text[:1] == " " else chunk.text)
    symbols = {chunk.symbol for chunk in found}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            assert node.name in symbols
        elif isinstance(node, ast.ClassDef):
            assert {f"{node.name}.{n.name}" for n in node.body if isinstance(n, ast.FunctionDef)} <= symbols


def test_text_at_the_margin_inside_a_string_opens_no_block():
    source = textwrap.dedent('''
        SOURCE = r"""
        def not_a_function(): it's "text"
        # 'neither
        """  # a comment with """
        x = "a # no comment"; y = '"""'
        class A(
            B,
        ):
            """Doc
        at the margin."""

            @property
            def value(self):
                return """
        def no():
        """
            field: int = 3

        def after(
            a,
        ) -> None:
            pass
        ''')
    assert [c.symbol for c in chunks(source)] == ["", "", "A", "A.value", "A.field", "after"]


@given(st.text(alphabet="ab:()[]{}'\"#\\\n \tdefclass=@,0\u00e9\r\x0c", max_size=200))
def test_no_text_breaks_it(source):
    lines = source.split("\n")
    for chunk in chunks(source):
        assert lines[chunk.line - 1] == chunk.text.split("\n")[0]


@given(
    st.lists(
        st.sampled_from(
            [
                "    if self.recompute_mlp:\n        x = tensor_parallel.checkpoint(self.mlp, False, x)\n",
                "    y = 1\n",
                "    if a:\n        return x\n",
                "    assert not (self.cpu_offloading and self.pp > 1)\n",
                "    z = '''\nat the margin\n'''\n",
                "    def inner():\n        return te_checkpoint(f, x)\n",
                "    # activation recompute\n",
                "    for l in range(3):\n        x = inner()\n",
                "  broken indent\n",
                "    print 'python 2'\n",
                "    match x:\n        case 1:\n            y = 2\n",
                "    while x:\n        break\n",
            ]
        ),
        max_size=40,
    ),
    st.lists(st.integers(0, 39), max_size=6),
)
def test_edits_never_crash_it_and_equal_files_say_nothing(parts, dropped):
    old = "def step(self, x):\n    pass\n" + "".join(parts)
    new = "def step(self, x):\n    pass\n" + "".join(p for i, p in enumerate(parts) if i not in dropped)
    blobs = {"old": old.encode(), "new": new.encode()}
    differ = SourceDiffer(blobs.get)
    _, source = differ.changes([ChangedPath("M", "megatron/core/x.py", "old", "new")])
    if old == new:
        assert source == []
    again = SourceDiffer(blobs.get).changes([ChangedPath("R", "megatron/core/y.py", "old", "old")])
    assert again == ([], [])


def test_a_long_function_is_cut_to_what_differs():
    body = "".join(f"    if self.a{i}:\n        self.b{i} = {i}\n" for i in range(50))
    old, new = (chunks(f"def check(self):\n{body}    assert self.x < {limit}\n")[0] for limit in (1, 2))
    was, now = reduced(old, new)
    assert "x < 1" in was.text and "x < 2" in now.text and "a49" not in now.text
    assert now.text.count("\n") == new.text.count("\n")
    assert now.text.split("\n").index("    assert self.x < 2") == new.text.split("\n").index("    assert self.x < 2")
