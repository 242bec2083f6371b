"""Tables on a terminal, of text that others wrote: it is shown, never interpreted."""

from __future__ import annotations

import re
from typing import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def console() -> Console:
    out = Console(highlight=False, soft_wrap=False)
    if not out.is_terminal:
        # Into a file or a pipe: one record a line, whatever its length.
        out = Console(highlight=False, width=400)
    return out


def plain(text: object) -> Text:
    return Text(_CONTROL.sub("\ufffd", str(text)), overflow="fold")


def say(out: Console, text: object, indent: int = 0, style: str = "") -> None:
    """A paragraph: folded with its indent on a terminal, one line into a file or a pipe."""
    shown = plain(text)
    shown.stylize(style)
    if out.is_terminal:
        out.print(Padding(shown, (0, 0, 0, indent)))
    else:
        out.print(Text(" " * indent) + shown, soft_wrap=True)


def counted(names: Sequence[str], one: str = "recipe") -> str:
    """The name of one, the number of several."""
    return names[0] if len(names) == 1 else f"{len(names)} {one}s"


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    made = Table(*header, box=None, pad_edge=False, show_edge=False, header_style="bold")
    for row in rows:
        made.add_row(*map(plain, row))
    return made
