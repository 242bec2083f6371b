"""Tables on a terminal, of text that others wrote: it is shown, never interpreted."""

from __future__ import annotations

import re
from typing import Iterable, Sequence

from rich.console import Console
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


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    made = Table(*header, box=None, pad_edge=False, show_edge=False, header_style="bold")
    for row in rows:
        made.add_row(*map(plain, row))
    return made
