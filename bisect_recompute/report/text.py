"""Text from commits, logs and recipes made harmless for where it is shown."""

from __future__ import annotations

import re
import unicodedata

# Control characters, format characters (bidi overrides, zero-width, tags), separators that break lines, surrogates.
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def plain(text: object, limit: int = 0) -> str:
    """One line; control, bidi and invisible characters are spelled out: ``\\u202e``. Cut to ``limit`` characters."""
    line = " ".join(re.split(r"[\r\n\t]+", str(text).strip()))
    line = "".join(_visible(char) for char in line)
    return line[: limit - 1] + "…" if limit and len(line) > limit else line


def _visible(char: str) -> str:
    kind = unicodedata.category(char)
    if kind not in _HIDDEN:
        return " " if kind == "Zs" else char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def code(text: object, limit: int = 300) -> str:
    """A Markdown code span. Nothing in it is Markdown, HTML, a mention, an issue reference or a link."""
    line = plain(text, limit) or " "
    fence = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    pad = " " if line[0] in "` " or line[-1] in "` " else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def cell(text: object, limit: int = 200) -> str:
    """A code span for a table cell, where a bar would end the cell even inside a code span."""
    return code(str(text).replace("|", "\u2223"), limit)


def jira(text: object, limit: int = 300) -> str:
    """Text without meaning in Jira's wiki markup."""
    return re.sub(r"([\\{}\[\]|*_\-+^~!?#@<>&:/()])", r"\\\1", plain(text, limit))
