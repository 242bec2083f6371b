"""Measurements of all runs, kept in the user's cache: equal code is never probed again, whichever run asks."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import sys
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

import bisect_recompute
from bisect_recompute.measurement.same_code import Footprint, own_fingerprint
from bisect_recompute.probe.result import ProbeResult

FILE = "measurements.sqlite"
T = TypeVar("T")
_RESULT = TypeAdapter(ProbeResult)
_TABLES = """
CREATE TABLE IF NOT EXISTS footprints (id INTEGER PRIMARY KEY, key TEXT, digest TEXT, content BLOB, UNIQUE (key, digest));
CREATE TABLE IF NOT EXISTS results (key TEXT, footprint INTEGER, fingerprint TEXT, content BLOB, used REAL,
                                    PRIMARY KEY (key, footprint, fingerprint));
"""
# Read by the packages that a probe executes.
_VARIABLES = ("NVTE_", "TORCH_", "PYTORCH_", "CUDA_", "NCCL_", "MEGATRON_")


def environment_key() -> str:
    """Of all beside commit and recipe that decides a measurement: Python, the installed packages, the source of the probe
    itself, and the environment variables that steer the packages."""
    folders = [folder for folder in dict.fromkeys(sys.path) if os.path.isdir(folder)]
    installed = sorted({name for folder in folders for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-info"))})
    probe = Path(bisect_recompute.__file__).parent / "probe"
    source = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((*probe.rglob("*.py"), *probe.rglob("*.yaml")))]
    variables = sorted((name, value) for name, value in os.environ.items() if name.startswith(_VARIABLES))
    return _digest([sys.version, *installed, *source, *map("=".join, variables)])


class Store:
    """The measurements of one recipe in this environment. Thread-safe.

    A cache: whatever is wrong with its file (full disk, damage, another process at work for long) makes it forget, never
    fail. A damaged file is removed.
    """

    def __init__(self, cache: Path, recipe: str):
        """``recipe``: the text of it, complete."""
        self._path = Path(cache) / FILE
        self._key = _digest([recipe, environment_key()])
        self._lock = threading.Lock()

    def entries(self) -> list[tuple[Footprint, str, Callable[[], ProbeResult | None]]]:
        """(footprint, fingerprint, what reads the measurement) of all that is kept, newest first."""

        def read(db):
            contents = db.execute("SELECT id, content FROM footprints WHERE key = ?", (self._key,))
            footprints = {number: _footprint(content) for number, content in contents}
            rows = db.execute("SELECT footprint, fingerprint FROM results WHERE key = ? ORDER BY used DESC", (self._key,))
            return [(footprints[n], print_, self._reader(n, print_)) for n, print_ in rows if n in footprints]

        return self._with(read) or []

    def add(self, result: ProbeResult) -> None:
        footprint = Footprint.of(result)
        if footprint is None:
            return
        shape = json.dumps(asdict(footprint)).encode()
        name = hashlib.sha256(shape).hexdigest()
        content = zlib.compress(json.dumps(_RESULT.dump_python(result, mode="json")).encode())

        def write(db):
            row = (self._key, name)
            db.execute("INSERT OR IGNORE INTO footprints (key, digest, content) VALUES (?, ?, ?)", (*row, zlib.compress(shape)))
            (number,) = db.execute("SELECT id FROM footprints WHERE key = ? AND digest = ?", row).fetchone()
            values = (self._key, number, own_fingerprint(result), content, time.time())
            db.execute("INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?, ?)", values)

        self._with(write)

    def _reader(self, footprint: int, fingerprint: str) -> Callable[[], ProbeResult | None]:
        row, where = (self._key, footprint, fingerprint), "WHERE key = ? AND footprint = ? AND fingerprint = ?"

        def read(db):
            found = db.execute(f"SELECT content FROM results {where}", row).fetchone()
            db.execute(f"UPDATE results SET used = ? {where}", (time.time(), *row))
            return _RESULT.validate_json(zlib.decompress(found[0])) if found else None

        return lambda: self._with(read)

    def _with(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """What ``work`` returns, in one transaction; None where the file cannot be used."""
        with self._lock:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with closing(connect(self._path)) as db, db:
                    return work(db)
            except (sqlite3.OperationalError, OSError):  # locked, full, not writable
                return None
            except (sqlite3.DatabaseError, ValueError, TypeError, zlib.error):
                remove(self._path)
                return None


def connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=10)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.executescript(_TABLES)
    except BaseException:
        db.close()
        raise
    return db


def remove(path: Path) -> None:
    for end in ("", "-wal", "-shm"):
        with suppress(OSError):
            Path(f"{path}{end}").unlink()


def prune(path: Path, oldest: float, largest: int) -> None:
    """Drops what was used before ``oldest`` (seconds since the epoch), then the least used over ``largest`` bytes.

    Raises sqlite3.Error.
    """
    with closing(connect(path)) as db:
        with db:
            db.execute("DELETE FROM results WHERE used < ?", (oldest,))
            total = 0
            for rowid, size in db.execute("SELECT rowid, length(content) FROM results ORDER BY used DESC").fetchall():
                total += size
                if total > largest:
                    db.execute("DELETE FROM results WHERE rowid = ?", (rowid,))
            db.execute("DELETE FROM footprints WHERE id NOT IN (SELECT footprint FROM results)")
        db.execute("VACUUM")


def _footprint(content: bytes) -> Footprint:
    fields = json.loads(zlib.decompress(content))
    return Footprint(**{name: tuple(values) for name, values in fields.items()})


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()
