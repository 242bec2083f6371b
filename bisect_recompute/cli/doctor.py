"""`bisect-recompute doctor`"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import click
from rich.console import Console
from rich.text import Text

from bisect_recompute.cli import options
from bisect_recompute.errors import UsageError
from bisect_recompute.history.git import Git, GitFailed
from bisect_recompute.history.worktree import cache_dir

SIMULATE = ("torch", "megatron-core", "transformer-engine", "einops", "numpy")
GPUS = "/proc/driver/nvidia/gpus"
"""The driver's list of them."""
DISK = 2 * 2**30
"""Room in bytes that a few checkouts of Megatron-LM and compiled code want."""


@dataclass(frozen=True)
class Check:
    name: str
    works: bool
    found: str
    fix: str = ""
    """What to do where it does not work."""


@click.command("doctor", short_help="what works on this machine, and the fix for what does not")
@options.as_json
@click.pass_context
def command(ctx, as_json):
    """Checks what the simulated probe needs. Exit code: 0 everything works, 1 something does not."""
    checks = list(examine())
    if as_json:
        print(json.dumps({"checks": [asdict(check) for check in checks]}, indent=2))
    else:
        console = Console(highlight=False, soft_wrap=True)
        for check in checks:
            mark = ("works  ", "green") if check.works else ("missing", "bold red")
            console.print(Text.assemble(mark, f"  {check.name:20} {check.found}"))
            if not check.works:
                console.print(Text(f"         {'':20} fix: {check.fix}"))
    ctx.exit(0 if all(check.works for check in checks) else 1)


def examine() -> Iterator[Check]:
    yield Check("python", sys.version_info >= (3, 10), platform.python_version(), "install Python 3.10 or newer")
    yield _git()
    wanted = _wanted()
    for name in SIMULATE:
        yield _package(name, wanted.get(name))
    yield _torchrun()
    yield from _cache()


def _torchrun() -> Check:
    fix = "pip install 'bisect-recompute[simulate]', with the torch build of your CUDA version for GPUs"
    if importlib.util.find_spec("torch") is None:
        return Check("torchrun probe", False, "torch is not installed", fix)
    gpus = len(os.listdir(GPUS)) if os.path.isdir(GPUS) else 0
    found = f"{gpus} GPU{'s' * (gpus > 1)}" if gpus else "no GPU: trains on the processor with gloo, measures step time but no GPU memory"
    return Check("torchrun probe", True, found)


def _git() -> Check:
    fix = "install git 2.25 or newer"
    try:
        text = Git().line("--version")
    except (UsageError, GitFailed):
        return Check("git", False, "not on PATH", fix)
    version = tuple(int(part) for part in re.findall(r"\d+", text)[:2])
    return Check("git", version >= (2, 25), text.removeprefix("git version "), fix)


def _wanted() -> dict[str, str]:
    """Package -> version that the extra ``simulate`` pins."""
    try:
        stated = importlib.metadata.requires("bisect-recompute") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    return dict(re.findall(r"^([\w-]+)==([\w.]+)", "\n".join(stated), re.M))


def _package(name: str, wanted: str | None) -> Check:
    fix = "pip install 'bisect-recompute[simulate]'"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, False, "not installed", fix)
    # A local label (2.13.0+cpu) is the same release.
    if wanted and version.partition("+")[0] != wanted:
        return Check(name, True, f"{version} (tested with {wanted})")
    return Check(name, True, version)


def _cache() -> Iterator[Check]:
    folder = cache_dir()
    fix = "set BISECT_RECOMPUTE_CACHE to a folder that you can write, on a disk with room"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        yield Check("cache", False, f"{folder}: {error.strerror}", fix)
        return
    yield Check("cache", True, str(folder))
    free = shutil.disk_usage(folder).free
    yield Check("disk", free >= DISK, f"{free / 2**30:.1f} GiB free for checkouts", fix)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Check(
        "cores", True, f"{cores}: {options.default_jobs()} probe{'s' * (options.default_jobs() > 1)} at once by default"
    )
