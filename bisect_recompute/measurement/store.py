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
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

import bisect_recompute
from bisect_recompute.measurement.same_code import proof_of
from bisect_recompute.probe.result import ProbeResult, Provenance

FILE, VERSION = "measurements.sqlite", 2
"""The version of its tables."""
T = TypeVar("T")
_RESULT = TypeAdapter(ProbeResult)
_PROOF = TypeAdapter(Provenance)
_TABLE = """
CREATE TABLE IF NOT EXISTS results (id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, digest TEXT, proof BLOB, content BLOB,
                                    used REAL, UNIQUE (key, digest))
"""
# Read by the packages that a probe executes.
_VARIABLES = ("NVTE_", "TORCH_", "PYTORCH_", "CUDA_", "NCCL_", "MEGATRON_")


def environment_key() -> str:
    """Of all beside commit and recipe that decides a measurement: Python, the installed packages, the source of the
    probe itself, and the environment variables that steer the packages."""
    folders = [folder for folder in dict.fromkeys(sys.path) if os.path.isdir(folder)]
    names = {name for folder in folders for name in os.listdir(folder)}
    installed = sorted(name for name in names if name.endswith((".dist-info", ".egg-info")))
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

    def entries(self) -> list[tuple[Provenance, Callable[[], ProbeResult | None]]]:
        """(what ran, what reads the measurement) of all that is kept, newest first."""

        def read(db):
            rows = db.execute("SELECT id, proof FROM results WHERE key = ? ORDER BY used DESC", (self._key,))
            return [(_PROOF.validate_json(zlib.decompress(proof)), self._reader(number)) for number, proof in rows]

        return self._with(read) or []

    def add(self, result: ProbeResult) -> None:
        proof = proof_of(result)
        if proof is None:
            return
        ran, found = _PROOF.dump_python(proof, mode="json"), _RESULT.dump_python(result, mode="json")
        parts = [json.dumps(part, sort_keys=True).encode() for part in (ran, found)]
        name = hashlib.sha256(parts[0]).hexdigest()
        row = (self._key, name, *map(zlib.compress, parts), time.time())
        self._with(lambda db: db.execute(
            "INSERT OR REPLACE INTO results (key, digest, proof, content, used) VALUES (?, ?, ?, ?, ?)", row
        ))

    def _reader(self, number: int) -> Callable[[], ProbeResult | None]:
        def read(db):
            found = db.execute("SELECT content FROM results WHERE id = ? AND key = ?", (number, self._key)).fetchone()
            db.execute("UPDATE results SET used = ? WHERE id = ?", (time.time(), number))
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
        if db.execute("PRAGMA user_version").fetchone() != (VERSION,):
            db.execute("DROP TABLE IF EXISTS results")  # of another version of the tool
            db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute(_TABLE)
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
            rows = db.execute("SELECT id, length(proof) + length(content) FROM results ORDER BY used DESC").fetchall()
            for number, size in rows:
                total += size
                if total > largest:
                    db.execute("DELETE FROM results WHERE id = ?", (number,))
        db.execute("VACUUM")


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()
