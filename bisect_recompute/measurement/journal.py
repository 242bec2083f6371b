"""The record of a run on disk: what decides it (``manifest.json``) and every finished probe (``probes.jsonl``).

A probe is flushed to the disk before anybody is told of it, so that a run killed at any moment loses no finished probe.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from bisect_recompute.errors import UsageError
from bisect_recompute.probe.result import ProbeResult

MANIFEST, PROBES, LOCK = "manifest.json", "probes.jsonl", ".lock"
_RESULT = TypeAdapter(ProbeResult)


@dataclass(frozen=True)
class Manifest:
    """Everything that decides what a run finds: two runs with equal manifests find the same."""

    repository: str
    """The clone's git directory."""
    good: str
    bad: str
    first_parent: bool
    recipe: str
    """Name to show."""
    recipe_text: str
    """The recipe's YAML as it was when the run began, or ``module:function``."""
    recipe_function: bool
    probe: str
    metric: str
    direction: str
    memory_threshold: float
    """Percent of the good value; so is the next."""
    throughput_threshold: float
    timeout: float
    """Seconds that one probe may take."""
    versions: dict[str, str] = field(default_factory=dict)
    """bisect-recompute, python and the packages that probes execute."""
    recipe_spec: str = field(default="", compare=False)
    """As it was given in the call."""
    reproduce: str = field(default="", compare=False)
    """A command line that repeats the run."""

    @property
    def environment(self) -> str:
        """Key of the versions: measurements compare only where it is equal."""
        return hashlib.sha256(json.dumps(self.versions, sort_keys=True).encode()).hexdigest()[:12]


class Journal:
    """The open record of one run; ``results`` holds what is on disk, by commit."""

    def __init__(self, out: Path, manifest: Manifest):
        self.out, self.manifest = out, manifest
        self.results = read_results(out)
        self._lock = threading.Lock()
        self._file = _append_to(out / PROBES)

    def append(self, result: ProbeResult) -> None:
        """On disk (fsync) when it returns. Thread-safe; what comes after ``close`` is dropped.

        Raises UsageError when the disk is full.
        """
        line = {"commit": result.revision, "environment": self.manifest.environment}
        line |= _RESULT.dump_python(result, mode="json")
        data = (json.dumps(line) + "\n").encode()
        with self._lock:
            if self._file.closed:
                return
            try:
                self._file.write(data)
                self._file.flush()
                os.fsync(self._file.fileno())
            except OSError as error:
                raise UsageError(
                    f"cannot write {self.out / PROBES}: {error.strerror}; make room, then resume"
                ) from None
            self.results[result.revision] = result

    def close(self) -> None:
        with self._lock:
            self._file.close()


@contextmanager
def new_journal(out: Path, manifest: Manifest) -> Iterator[Journal]:
    """Begins a run in ``out`` and holds its lock. Raises UsageError when the folder is taken, and says the way out."""
    _refuse_foreign(out)
    with _alone(out):
        if (out / MANIFEST).exists():
            raise UsageError(_taken(out, manifest))
        write_atomically(out / MANIFEST, json.dumps(asdict(manifest), indent=2) + "\n")
        yield from _opened(out, manifest)


@contextmanager
def open_journal(out: Path, versions: Mapping[str, str] | None = None) -> Iterator[Journal]:
    """Goes on with the run in ``out`` and holds its lock.

    Raises UsageError when there is no run, when another process works on it, or when ``versions`` are not those that it
    began with: its measurements would not compare.
    """
    manifest = read_manifest(out)
    for name, version in (versions or manifest.versions).items():
        before = manifest.versions.get(name)
        if before != version:
            raise UsageError(
                f"the run in {out} began with {name} {before or '(none)'}, here is {version or '(none)'}: measurements "
                "would not compare; start a new run"
            )
    with _alone(out):
        yield from _opened(out, manifest)


def read_manifest(out: Path) -> Manifest:
    try:
        return TypeAdapter(Manifest).validate_json((out / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise UsageError(f"no run in {out}: it has no {MANIFEST}") from None
    except (OSError, ValidationError) as error:
        raise UsageError(f"cannot read {out / MANIFEST}: {str(error).splitlines()[0]}") from None


def read_results(out: Path) -> dict[str, ProbeResult]:
    """Every finished probe by commit; a last line cut short by a kill is left out."""
    path, results = out / PROBES, {}
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            result = _RESULT.validate_python({k: v for k, v in record.items() if k not in ("commit", "environment")})
        except (ValueError, AttributeError) as error:
            raise UsageError(
                f"{path} line {number} is damaged: {str(error).splitlines()[0]}; start a new run"
            ) from None
        results[result.revision] = result
    return results


def write_atomically(path: Path, text: str) -> None:
    """The old file or the new one, never half of it, whatever kills us."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", errors="backslashreplace", dir=path.parent, prefix=path.name, suffix=".tmp", delete=False
    ) as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            os.unlink(file.name)
            raise
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def _opened(out: Path, manifest: Manifest) -> Iterator[Journal]:
    journal = Journal(out, manifest)
    try:
        yield journal
    finally:
        journal.close()


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = FileLock(out / LOCK)
        lock.acquire(timeout=0)
    except Timeout:
        raise UsageError(
            f"another bisect-recompute is at work in {out}; wait for it, or give another folder with --out"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot use {out}: {error.strerror}; give another folder with --out") from None
    try:
        yield
    finally:
        lock.release()


def _refuse_foreign(out: Path) -> None:
    names = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    # What a run killed before its manifest was in place leaves behind is no obstacle.
    others = [name for name in names if name != LOCK and not name.startswith(MANIFEST)]
    if others and MANIFEST not in names:
        raise UsageError(f"{out} is not empty ({others[0]} is there) and holds no run; give another folder with --out")


def _taken(out: Path, manifest: Manifest) -> str:
    before = read_manifest(out)
    if before != manifest:
        what = f"{before.good[:10]}..{before.bad[:10]}, {before.recipe}"
        return f"{out} holds another run ({what}); give another folder with --out"
    if (out / "verdict.json").exists():
        return f"{out} holds this run already, finished; see {out / 'ticket.md'}, or give another folder with --out"
    return f"{out} holds this run, unfinished; go on with it: bisect-recompute resume {shlex.quote(str(out))}"


def _append_to(path: Path):
    """Opened for appending behind the last whole line."""
    file = open(path, "a+b")
    file.seek(0)
    data = file.read()
    if not data.endswith(b"\n"):
        file.truncate(data.rfind(b"\n") + 1)
    return file
