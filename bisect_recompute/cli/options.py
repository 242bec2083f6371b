"""Options that commands share, with the contract's names and defaults."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import re
from pathlib import Path

import click

from bisect_recompute.errors import UsageError
from bisect_recompute.measurement.journal import TIMEOUT
from bisect_recompute.probe.recipe import LaunchRecipe, Recipe
from bisect_recompute.probe.torchrun.run import TorchrunSettings, fitted

PROBES = ("simulate", "torchrun", "slurm", "command", "golden")
THERE = ("simulate", "torchrun", "command", "golden")
PACKAGES = ("bisect-recompute", "torch", "transformer-engine", "megatron-core")
MAX_JOBS = 256
RUNS = Path("bisect-recompute-out")


class Finite(click.FloatRange):
    """A range of numbers; to click "not a number" is in every one."""

    def convert(self, value, param, ctx):
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value} is not a finite number.", param, ctx)


_UNITS = {"": 1, "B": 1, "GIB": 2**30, "GB": 10**9, "MIB": 2**20, "MB": 10**6}


class Size(click.ParamType):
    """80GiB, 80GB, 85899345920"""

    name = "size"

    def convert(self, value, param, ctx):
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", str(value))
        if not found or found[2].upper() not in _UNITS or float(found[1]) <= 0:
            self.fail(f"{value} is no size of memory: write 80GiB or 80GB", param, ctx)
        return int(float(found[1]) * _UNITS[found[2].upper()])


def _there(ctx, param, kind: str) -> str:
    if kind not in THERE:
        raise UsageError(f"--probe {kind} is not there yet; this version has {', '.join(THERE)}")
    return kind


repo = click.option(
    "--repo",
    type=click.Path(path_type=Path),
    default=".",
    metavar="PATH",
    help="The clone; default: the repository of the working directory.",
)
recipe = click.option(
    "--recipe",
    "recipe_spec",
    required=True,
    metavar="R",
    help="What to train: a YAML file, a shipped recipe's name, or a recipe function of the repository "
    "(module:function, or its bare name).",
)
probe_kind = click.option(
    "--probe",
    "probe_kind",
    type=click.Choice(PROBES),
    default="simulate",
    show_default=True,
    callback=_there,
    help="How to measure a commit: simulate a step of it, train it for real on this machine, run a command on it, or read the golden "
    "values of its tests.",
)


command_line = click.option(
    "--command",
    "command_line",
    metavar="'TRAIN ...'",
    help="With --probe command: what to run in the commit's files. {commit}, {worktree}, {out} and {recipe} are filled in.",
)


def torchrun(function):
    """--nproc, --iterations and --hang-after: of --probe torchrun."""
    for option in (
        click.option("--hang-after", type=Finite(*TIMEOUT), metavar="SECONDS",
                     help="With --probe torchrun: a run that gives no sign of life for so long is ended; default 60."),
        click.option("--iterations", type=click.IntRange(4, 10_000), metavar="N",
                     help="With --probe torchrun: iterations to train, the first half is warm-up; default 20."),
        click.option("--nproc", type=click.IntRange(1, 64), metavar="N",
                     help="With --probe torchrun: processes, one per GPU; default: the recipe's own number."),
    ):
        function = option(function)
    return function


repeats = click.option(
    "--repeats", type=click.IntRange(1, 100), default=1, show_default=True, metavar="N",
    help="Measure each commit N times, where measuring is noisy: a shift must then be more than chance (95 %).",
)


def torchrun_settings(
    kind: str, recipe, nproc: int | None = None, iterations: int | None = None, hang_after: float | None = None
) -> TorchrunSettings | None:
    """None for other kinds of probes. Raises UsageError: the options do not fit the kind or the recipe."""
    if kind != "torchrun":
        if (nproc, iterations, hang_after) != (None, None, None):
            raise UsageError("--nproc, --iterations and --hang-after are for --probe torchrun")
        return None
    if isinstance(recipe, LaunchRecipe):
        raise UsageError("--probe torchrun trains model recipes; run a launch command with --probe command --command 'torchrun ...'")
    if isinstance(recipe, Recipe):
        fitted(recipe, nproc)
    return TorchrunSettings(nproc, iterations or TorchrunSettings.iterations, hang_after or TorchrunSettings.hang_after)


def by_name(function):
    """--submodule-repo and --set: of recipes of Megatron Bridge."""
    for option in (
        click.option(
            "--set", "given", multiple=True, metavar="GROUP.FIELD=VALUE",
            help="States what the source of a recipe function leaves open, as model.ffn_hidden_size=28672.",
        ),
        click.option(
            "--submodule-repo", type=click.Path(path_type=Path), metavar="PATH",
            help="A clone of the Megatron-LM that the repository pins; default: the submodule's own.",
        ),
    ):
        function = option(function)
    return function


as_json = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on standard output, nothing else there."
)
quiet = click.option("--quiet", is_flag=True, help="No progress.")
no_cache = click.option(
    "--no-cache", is_flag=True, help="Measure everything in this run: take nothing from earlier ones."
)
out = click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help=f"Folder for the files; default {RUNS}/<run>.",
)
jobs = click.option(
    "--jobs", type=click.IntRange(1, MAX_JOBS), metavar="N", help="Probes at once; default 2, 1 on a single core."
)
timeout = click.option(
    "--timeout",
    type=Finite(*TIMEOUT),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="Time limit of one probe, from 1 s to a day.",
)


def questions(direction: str = "worse"):
    """--metric, --threshold and --direction, with that default."""

    def add(function):
        for option in (
            click.option(
                "--direction",
                type=click.Choice(["worse", "better", "any"]),
                default=direction,
                show_default=True,
                help="Worse: memory up or throughput down.",
            ),
            click.option(
                "--threshold",
                type=Finite(min=0),
                metavar="PCT",
                help="Smallest change that counts, in percent; default: the recipe's, else memory 1, throughput 5.",
            ),
            click.option(
                "--metric", type=click.Choice(["memory", "throughput", "any"]), default="any", show_default=True
            ),
        ):
            function = option(function)
        return function

    return add


question = questions()


def default_jobs() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 2 if cores >= 2 else 1


def versions() -> dict[str, str]:
    """Of python, this tool and the packages that probes execute; those that are not installed are left out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return found


def over_a_range(direction: str):
    """What `run` and `scan` have in common, with this default of --direction."""

    def add(function):
        for option in (
            quiet, as_json, out, timeout, no_cache, jobs, questions(direction), repeats, torchrun, command_line, probe_kind, by_name, recipe, repo,
        ):
            function = option(function)
        return function

    return add
