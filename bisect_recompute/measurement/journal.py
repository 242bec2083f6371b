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
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Optional

from filelock import FileLock, Timeout
from pydantic import Field, TypeAdapter, ValidationError

from bisect_recompute.errors import UsageError
from bisect_recompute.probe.result import ProbeResult
from bisect_recompute.probe.torchrun.run import TorchrunSettings

MANIFEST, PROBES, LOCK = "manifest.json", "probes.jsonl", ".lock"
TIMEOUT = (1, 86_400)
"""Seconds: no probe ends in less than the one, and nobody waits for more than the other."""
_RESULT = TypeAdapter(ProbeResult)
_OF_A_LINE = ("commit", "environment", "earlier")
"""Keys of a line beside those of the result."""
_Id = Annotated[str, Field(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")]
_Percent = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Manifest:
    """Everything that decides what a run finds: two runs with equal manifests find the same."""

    repository: str
    """The clone's git directory."""
    good: _Id
    bad: _Id
    first_parent: bool
    recipe: str
    """Name to show."""
    recipe_text: str
    """The recipe's YAML as it was when the run began, or ``module:function``."""
    recipe_function: bool
    probe: Literal["simulate", "torchrun", "command", "golden"]
    metric: Literal["memory", "throughput", "any"]
    direction: Literal["worse", "better", "any"]
    memory_threshold: _Percent
    """Percent of the good value; so is the next."""
    throughput_threshold: _Percent
    timeout: Annotated[float, Field(ge=TIMEOUT[0], le=TIMEOUT[1])]
    """Seconds that one probe may take."""
    torchrun: Optional[TorchrunSettings] = None
    """Of that kind of probe."""
    repeats: Annotated[int, Field(ge=1)] = 1
    """Times that each commit is measured."""
    job: Literal["run", "scan"] = "run"
    """The command that began it, and that `resume` goes on with."""
    reuse: bool = True
    """What earlier runs measured is taken where the code is the same."""
    all_shifts: bool = False
    """Each shift is asked for, not only one."""
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
    """The open record of one run; ``results`` holds what is on disk, by commit; ``damaged`` lines were skipped;
    ``earlier``: the commits whose answer comes from a measurement of an earlier run."""

    def __init__(self, out: Path, manifest: Manifest):
        self.out, self.manifest = out, manifest
        self.results, self.damaged, self.earlier = _read(out)
        self._lock = threading.Lock()
        self._file = _append_to(out / PROBES)

    @property
    def probed(self) -> tuple[ProbeResult, ...]:
        """The results of this run's own probes."""
        return tuple(result for sha, result in self.results.items() if sha not in self.earlier)

    def append(self, result: ProbeResult, earlier: bool = False) -> None:
        """On disk (fsync) when it returns. Thread-safe; what comes after ``close`` is dropped.

        Raises OSError when the disk is full.
        """
        line = {"commit": result.revision, "environment": self.manifest.environment}
        line |= {"earlier": True} if earlier else {}
        line |= _RESULT.dump_python(result, mode="json")
        data = (json.dumps(line) + "\n").encode()
        with self._lock:
            if self._file.closed:
                return
            with _naming(self.out / PROBES):
                self._file.write(data)
                self._file.flush()
                os.fsync(self._file.fileno())
            self.results[result.revision] = result
            if earlier:
                self.earlier.add(result.revision)

    def close(self) -> None:
        with self._lock:
            self._file.close()


@contextmanager
def new_journal(out: Path, manifest: Manifest) -> Iterator[Journal]:
    """Begins a run in ``out`` and holds its lock. Raises UsageError when the folder is taken, and says the way out."""
    with ExitStack() as held:
        with _usable(out, "give another folder with --out"):
            _refuse_foreign(out)
            held.enter_context(_alone(out))
            if (out / MANIFEST).exists():
                raise UsageError(_taken(out, manifest))
            write_atomically(out / MANIFEST, json.dumps(asdict(manifest), indent=2) + "\n")
            journal = held.enter_context(closing(Journal(out, manifest)))
        yield journal


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
    with ExitStack() as held:
        with _usable(out, "put that right, or start a new run"):
            held.enter_context(_alone(out))
            journal = held.enter_context(closing(Journal(out, manifest)))
        yield journal


def read_manifest(out: Path) -> Manifest:
    path = out / MANIFEST
    try:
        return TypeAdapter(Manifest).validate_json(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"no run in {out}: it has no {MANIFEST}") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except ValidationError as error:
        problem = error.errors()[0]
        where = "".join(f"{part}: " for part in problem["loc"])
        raise UsageError(f"cannot use {path}: {where}{problem['msg']}; put that right, or start a new run") from None


def read_results(out: Path) -> dict[str, ProbeResult]:
    """Every finished probe by commit; lines that are blank, damaged or cut short by a kill are left out."""
    return _read(out)[0]


def write_atomically(path: Path, text: str) -> None:
    """The old file or the new one, never half of it, whatever kills us."""
    with _naming(path):
        file = tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, suffix=".tmp", delete=False)
        try:
            with file:
                file.write(text.encode("utf-8", "backslashreplace"))
                file.flush()
                os.fsync(file.fileno())
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _read(out: Path) -> tuple[dict[str, ProbeResult], int, set[str]]:
    """The results, how many lines hold none, and the commits answered by earlier runs.

    What follows the last line end was cut short by a kill: no damage."""
    path, results, damaged, earlier = out / PROBES, {}, 0, set()
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for line in lines:
        try:
            record = json.loads(line)
            result = _RESULT.validate_python({k: v for k, v in record.items() if k not in _OF_A_LINE})
        except (ValueError, AttributeError, RecursionError):
            damaged += 1
            continue
        results[result.revision] = result
        if record.get("earlier") is True:
            earlier.add(result.revision)
    return results, damaged, earlier


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """A full disk does not say of which file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


@contextmanager
def _usable(out: Path, way_out: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot use {error.filename or out}: {error.strerror}; {way_out}") from None


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    out.mkdir(parents=True, exist_ok=True)
    lock = FileLock(out / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UsageError(
            f"another bisect-recompute is at work in {out}; wait for it, or give another folder with --out"
        ) from None
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
