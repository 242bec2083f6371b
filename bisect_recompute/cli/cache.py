"""`bisect-recompute cache`"""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from pathlib import Path

import click

from bisect_recompute.cli import options
from bisect_recompute.errors import UsageError
from bisect_recompute.history.worktree import cache_dir

DAY, MIB = 86_400, 2**20


@click.command("cache", short_help="what the tool keeps on disk, and removing it")
@click.option("--prune", is_flag=True, help="Remove what is older or more than the limits.")
@click.option("--max-age", type=options.Finite(min=0), default=30.0, show_default=True, metavar="DAYS",
              help="With --prune: remove what was not used for so long.")
@click.option("--max-size", type=options.Finite(min=0), default=5120.0, show_default=True, metavar="MIB",
              help="With --prune: then the least used, down to this size. 0 removes all.")
@options.as_json
def command(prune, max_age, max_size, as_json):
    """Shows what lies in the cache directory (BISECT_RECOMPUTE_CACHE, default: the user's), in MiB.

    What is in use is left alone; what is removed is made again when it is needed. Folders of runs (--out) are yours.
    """
    from bisect_recompute.history.kept import PARTS, pieces

    cache = cache_dir()
    removed = _prune(cache, time.time() - max_age * DAY, int(max_size * MIB)) if prune else 0
    parts: Counter = Counter()
    for piece in pieces(cache):
        parts[piece.part] += piece.bytes
    what = {"measurements": "of all runs: equal code is never probed again", **PARTS}
    sizes = {"measurements": _measurements(cache), **{part: parts[part] for part in PARTS}}
    if as_json:
        print(json.dumps({"folder": str(cache), "bytes": sum(sizes.values()), "removed_bytes": removed, "parts": sizes}))
        return
    from bisect_recompute.cli.tables import console, say, table

    out = console()
    say(out, f"{cache}: {sum(sizes.values()) / MIB:,.1f} MiB" + (f", {removed / MIB:,.1f} MiB removed" if prune else ""))
    out.print(table(["part", "MiB", ""], [(part, f"{size / MIB:,.1f}", what[part]) for part, size in sizes.items()]))


def _measurements(cache: Path) -> int:
    from bisect_recompute.measurement.store import FILE

    return sum(path.stat().st_size for path in cache.glob(f"{FILE}*"))


def _prune(cache: Path, oldest: float, largest: int) -> int:
    """Bytes removed. Measurements are small and cost most to make again: they count first and go last."""
    from bisect_recompute.history.kept import outdated, pieces, remove
    from bisect_recompute.measurement.store import FILE, prune

    before, path = _measurements(cache), cache / FILE
    if path.exists():
        try:
            prune(path, oldest, largest)
        except sqlite3.Error as error:
            raise UsageError(f"cannot prune {path}: {error}; when no run is at work, remove the file") from None
    kept = _measurements(cache)
    dropped = outdated(pieces(cache), oldest, max(0, largest - kept))
    return before - kept + sum(piece.bytes for piece in dropped if remove(piece))
