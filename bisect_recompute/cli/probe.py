"""`bisect-recompute probe [REV]`"""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
from pydantic import TypeAdapter
from rich.console import Console
from rich.text import Text

from bisect_recompute.cli import options
from bisect_recompute.cli.recipes import find_recipe
from bisect_recompute.errors import UsageError
from bisect_recompute.history.repository import Repository
from bisect_recompute.history.worktree import cache_dir
from bisect_recompute.measurement.shift import unit_of, value
from bisect_recompute.probe.recipe import RecipeFunction
from bisect_recompute.probe.result import MemoryUse, ProbeResult, Throughput
from bisect_recompute.report.text import plain
from bisect_recompute.verdict.numbers import amount

SHOWN = 8
"""Groups of tensors listed; ``--json`` has all."""


@click.command("probe", short_help="one measurement")
@click.argument("revision", metavar="[REV]", default="HEAD")
@options.repo
@options.recipe
@options.by_name
@options.probe_kind
@options.command_line
@options.torchrun
@options.timeout
@click.option("--snapshot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write the step as a PyTorch memory snapshot (a pickle for pytorch.org/memory_viz).")
@options.as_json
@options.quiet
@click.pass_context
def command(ctx, revision, repo, recipe_spec, submodule_repo, given, probe_kind, command_line, nproc, iterations, hang_after, timeout,
            snapshot, as_json, quiet):
    """Measures one commit (default HEAD): a simulated training step of its code, or what --probe says.

    Exit code: 0 measured (out of memory is a measurement), 2 the call was wrong, 5 the commit cannot be probed.
    """
    from bisect_recompute.cli.interrupt import interruptible
    from bisect_recompute.cli.measurer import measurer_of

    if snapshot and probe_kind != "simulate":
        raise UsageError(f"--snapshot is for --probe simulate; --probe {probe_kind} sees no single tensor")
    if snapshot:
        _check_writable(snapshot)
    repository = Repository(repo)
    commit = repository.commit(revision)
    recipe = find_recipe(recipe_spec, repository, commit.sha, submodule_repo=submodule_repo, given=given, kind=probe_kind,
                         command=command_line)
    torchrun = options.torchrun_settings(probe_kind, recipe, nproc, iterations, hang_after)
    if not quiet:
        click.echo(f"{commit.sha[:10]} {plain(commit.subject, 100)}: recipe {plain(recipe.name, 60)}", err=True)
    log = cache_dir() / "logs" / f"{commit.sha}-{os.getpid()}.log"
    with interruptible(), measurer_of(repository, recipe, recipe_spec, timeout, torchrun) as measurer:
        result = measurer.measure(commit.sha, log, snapshot)
    print(json.dumps(document(result), indent=2)) if as_json else show(result, recipe)
    ctx.exit(0 if result.status in ("ok", "oom") else 5)


def _check_writable(snapshot: Path) -> None:
    """Before minutes of work: raises UsageError where the snapshot cannot be written."""
    kept = snapshot.exists()
    try:
        with open(snapshot, "ab"):
            pass
        if not kept:
            snapshot.unlink()
    except OSError as error:
        raise UsageError(f"--snapshot: cannot write {plain(str(snapshot), 200)}: {error.strerror}") from None


def document(result: ProbeResult) -> dict:
    """What ``probe --json`` prints; bytes, seconds, TFLOP/s/GPU."""
    return TypeAdapter(ProbeResult).dump_python(result, mode="json")


def show(result: ProbeResult, recipe) -> None:
    console = Console(highlight=False, soft_wrap=True)
    if result.memory is None and result.throughput is None:
        console.print(Text(f"{result.status} at {result.stage}: {plain(result.reason, 400)}", style="bold red"))
        console.print(Text(f"  log {result.log}", style="dim"))
        return
    for line in (*_memory(result, recipe), *_throughput(result), *_resident(result), *_breakdown(result.memory), *_proof(result)):
        console.print(line)


def _memory(result: ProbeResult, recipe) -> list[Text]:
    memory = result.memory
    if memory is None:
        return []
    lines = [Text.assemble((f"peak memory {amount(memory.peak_bytes, 'bytes')}", "bold"), _capacity(memory, recipe))]
    if memory.reserved_bytes is not None:
        lines.append(Text(f"reserved    {amount(memory.reserved_bytes, 'bytes')}"))
    if memory.reserved_at_peak_bytes is not None:
        idle = memory.reserved_at_peak_bytes - memory.peak_bytes
        lines[-1] += Text(f"; {amount(idle, 'bytes')} of what was reserved lay idle at the peak (fragmentation)")
    return lines


def _capacity(memory: MemoryUse, recipe) -> str:
    if memory.capacity_bytes is None:
        return ""
    fits = "more than" if memory.peak_bytes > memory.capacity_bytes else f"{memory.peak_bytes / memory.capacity_bytes:.0%} of"
    gpu = "" if isinstance(recipe, RecipeFunction) else f" {recipe.hardware.gpu}"
    return f", {fits} the {amount(memory.capacity_bytes, 'bytes')} of one{gpu}"


def _throughput(result: ProbeResult) -> list[Text]:
    if result.throughput is None:
        return []
    unit = unit_of("throughput", result)
    how = f" (a model): {_split(result.throughput)}" if result.probe == "simulate" else ""
    return [Text(f"throughput  {amount(value(result, unit), unit)}, {result.throughput.step_seconds:.3g} s a step{how}")]


def _resident(result: ProbeResult) -> list[Text]:
    ranks = ", ".join(f"{rank}: {amount(size, 'bytes')}" for rank, size in result.resident_bytes.items())
    return [Text(f"host memory {ranks} (peak resident set size, by rank)")] if ranks else []


def _split(throughput: Throughput) -> str:
    parts = {**throughput.seconds_by_kind, "recomputed": throughput.recomputed_seconds}
    return ", ".join(
        f"{kind.replace('_', ' ')} {seconds / throughput.step_seconds:.0%}" for kind, seconds in parts.items() if seconds
    )


def _breakdown(memory: MemoryUse | None) -> list[Text]:
    return [*_categories(memory), *_tensors(memory)] if memory and memory.by_rank else []


def _categories(memory: MemoryUse) -> list[Text]:
    hottest = max(memory.by_rank, key=memory.by_rank.get)
    lines = [Text(f"\n  at the peak of rank {hottest}", style="dim")]
    for name, size in sorted(memory.by_category.items(), key=lambda item: -item[1]):
        share = size / max(memory.peak_bytes, 1)
        lines.append(
            Text.assemble(f"  {name:16}{amount(size, 'bytes'):>12}  {share:6.1%}  ", ("█" * round(24 * share), "cyan"))
        )
    if len(memory.by_rank) > 1:
        lines.append(
            Text(
                "  ranks: " + ", ".join(f"{rank}: {amount(size, 'bytes')}" for rank, size in memory.by_rank.items()),
                style="dim",
            )
        )
    return lines


def _tensors(memory: MemoryUse) -> list[Text]:
    if not memory.tensors:
        return []
    lines = [Text("\n  largest tensors alive", style="dim")]
    for t in sorted(memory.tensors, key=lambda t: -t.bytes)[:SHOWN]:
        shape = f"{t.count:>5} x {list(t.shape)} {plain(t.dtype, 12)}"
        lines.append(
            Text.assemble(
                f"  {amount(t.bytes, 'bytes'):>12} {shape:42} {plain(t.module, 60)}",
                (f"  {plain(t.file, 80)}:{t.line}", "dim"),
            )
        )
    return lines


def _proof(result: ProbeResult) -> list[Text]:
    proof = result.provenance
    if proof is None:
        return []
    if result.probe != "simulate":
        return [Text(f"\n  {plain(note, 300)}", style="dim") for note in result.notes]
    packages = ", ".join(f"{name} {version}" for name, version in sorted(proof.packages.items()))
    return [
        Text(
            f"\n  {len(proof.modules)} modules from the commit ({proof.megatron_source}), {packages}, "
            f"attention backend {proof.attention_backend}; {result.seconds:.1f} s; log {Path(result.log or '')}",
            style="dim",
        )
    ]
