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
    """Text without meaning in Jira's wiki markup.

    A backslash works before these marks only; before others Jira shows it. Where one of the others would have a
    meaning (a backslash itself, an entity, an address that becomes a link, ``:D``), an entity stands for it.
    """
    line = re.sub(r"&(?=#?\w+;)", "&amp;", plain(text, limit))
    line = re.sub(r":(?=//|[DP]\b)|(?<=mailto):", "&#58;", line, flags=re.I).replace("\\", "&#92;")
    return re.sub(r"([{}\[\]|*_\-+^~!?%@()])", r"\\\1", line)


def jira_block(command: str) -> str:
    """A block that shows a shell command as it is, to be pasted. ``command`` comes from ``shlex.join``.

    A ``{noformat}`` in it would end the block: ``''`` inside it keeps the shell's meaning, as ``{`` is always quoted.
    """
    shown = re.sub(r"\{(?=noformat)", "{''", plain(command), flags=re.I)
    return f"{{noformat}}\n{shown}\n{{noformat}}"
