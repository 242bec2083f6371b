"""Commit text is a stranger's: what it says must stay text."""

import html
import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from bisect_recompute.report.text import cell, code, jira, jira_block, plain

HOSTILE = [
    "# heading",
    "- list",
    "> quote",
    "<script>alert(1)</script>",
    "<img src=x onerror=y>",
    "[x](javascript:alert(1))",
    "`code`",
    "```",
    "``` `` `",
    "@NVIDIA ping",
    "fixes #123",
    "https://evil.example/x",
    "a | b | c",
    "**bold** _it_ ~~gone~~",
    "&amp; &#64;",
    "\\`",
    "`",
    "  spaces  ",
    "\u202egnp.exe",
    "line\nbreak\r\nmore",
    "\x1b[31mred\x07",
    "zero\u200bwidth",
    "x" * 5000,
    "",
    "---\n===",
    "![i](u)",
    "$x$",
    ":tada:",
    "\u2028sep",
    "\ud800",
]


def spans(markdown: str):
    """(texts outside of code, code contents, all token types) as GitHub's parser family sees it."""
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(markdown)
    inline = [child for token in tokens for child in (token.children or [])]
    return (
        "".join(t.content for t in inline if t.type == "text"),
        [t.content for t in inline if t.type == "code_inline"],
        {t.type for t in tokens} | {t.type for t in inline},
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_sees_one_code_span_and_nothing_else(text):
    outside, inside, types = spans(f"by {code(text)} end")
    assert (outside, len(inside)) == ("by  end", 1)
    assert types == {"paragraph_open", "inline", "text", "code_inline", "paragraph_close"}


@given(st.text())
def test_any_text_stays_inside_its_code_span(text):
    outside, inside, _ = spans(f"by {code(text)} end")
    assert outside == "by  end" and len(inside) == 1


@given(st.text(alphabet="`| a\\@#<", max_size=20))
def test_any_text_stays_inside_its_table_cell(text):
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(f"| a | b |\n|---|---|\n| {cell(text)} | last |\n")
    row = [t for t in tokens if t.type == "inline"][2:]
    assert len(row) == 2 and row[1].content == "last"
    assert [t.type for t in row[0].children if t.type != "text" or t.content] == ["code_inline"]


def test_code_shows_the_text_as_it_is():
    assert spans(code("Keep `offset` in <MLP> #12 for @you"))[1] == ["Keep `offset` in <MLP> #12 for @you"]


@given(st.text())
def test_plain_is_one_printable_line(text):
    line = plain(text)
    assert "\n" not in line and line.isprintable()
    assert not re.search("[\u200b-\u200f\u202a-\u202e\u2060-\u2069\x00-\x1f\x7f-\x9f]", line)


def test_plain_shows_what_it_takes_out():
    assert plain("a\u202eb\x1b[31m\tc\nd") == "a\\u202eb\\x1b[31m c d"
    assert plain("müller 漢字 🎉") == "müller 漢字 🎉"
    assert plain("x" * 50, 10) == "x" * 9 + "…"


JIRA_MARKS = "![]^~+?%{}()*_-|@"
"""Before these Jira's renderer takes a backslash away; before any other character it shows it."""


def shown_by_jira(markup: str) -> str:
    return html.unescape(re.sub(rf"\\([{re.escape(JIRA_MARKS)}])", r"\1", markup))


def test_jira_markup_is_escaped():
    assert jira("{code}[~user] *b* !img.png! #1 h1.") == r"\{code\}\[\~user\] \*b\* \!img.png\! #1 h1."
    assert jira("core/mlp.py:12, a<b & c>d") == "core/mlp.py:12, a<b & c>d"
    assert jira(r"C:\new") == "C:&#92;new"
    assert jira("https://evil.example") == "https&#58;//evil.example"


@pytest.mark.parametrize("text", HOSTILE)
def test_jira_shows_hostile_text_as_it_is(text):
    assert shown_by_jira(jira(text)) == plain(text, 300)


@given(st.text() | st.text(alphabet="\\{}[]|*_-+^~!?#@<>&:/();amp#58DP", max_size=20))
def test_jira_finds_no_markup_in_any_text(text):
    markup = jira(text)
    assert shown_by_jira(markup) == plain(text, 300)
    assert not set(re.sub(r"\\.", "", markup)) & set(JIRA_MARKS + "\\")
    assert "://" not in markup


@given(st.lists(st.text(alphabet="{}:'\" acdefmnort", min_size=1) | st.sampled_from(["{noformat}", "x{noFormat:a}{code}"])))
def test_jira_block_is_pasted_as_the_same_command(call):
    first, *shown, last = jira_block(shlex.join(call)).split("\n")
    assert (first, last, len(shown)) == ("{noformat}", "{noformat}", 1)
    assert shlex.split(shown[0]) == call
    assert "{noformat" not in shown[0].lower()
