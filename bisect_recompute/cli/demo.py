"""`bisect-recompute demo`: the main job on the history that comes with the tool."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path

import click

from bisect_recompute.cli import options
from bisect_recompute.cli.run import command as run
from bisect_recompute.errors import UsageError
from bisect_recompute.history.git import Git, GitFailed
from bisect_recompute.history.worktree import cache_dir


@click.command("demo", short_help="the main job on a history that comes with the tool, no network, no GPU")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="Folder for the files; default: a new one for temporary files.")
@options.as_json
@options.quiet
@click.pass_context
def command(ctx, out, as_json, quiet):
    """Traces a memory shift in a small recipe repository that comes with the tool, on the installed megatron-core.

    One of its commits makes a Llama 3 8B recipe stop recomputing the MLP, without a changed line in the recipe. Exit codes
    are those of `run`.
    """
    folder = demo_folder()
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    repository = unpack(folder / "history.fast-export")
    out = out or Path(tempfile.mkdtemp(prefix="bisect-recompute-demo-"))
    if not quiet:
        click.echo(f"demo history: {repository}; look around with: git -C {repository} log --graph main", err=True)
    ctx.invoke(run, span=f"{manifest['good']}..{manifest['bad']}", repo=repository, recipe_spec=manifest["recipe"], out=out,
               as_json=as_json, quiet=quiet)


def demo_folder() -> Path:
    """Where the shipped history lies: the wheel's copy or a checkout's ``fixtures/demo``."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "shipped" / "fixtures" / "demo", package.parent / "fixtures" / "demo"):
        if folder.is_dir():
            return folder
    raise UsageError("the demo's history is missing from this installation: install bisect-recompute again")


def unpack(stream: Path) -> Path:
    """The bare repository that ``git fast-import`` makes of ``stream``: in the cache, once per content of the stream.

    A fixed place lets a later demo reuse its checkouts, and keeps the command that a ticket names repeatable.
    """
    content = stream.read_bytes()
    target = cache_dir() / "demo" / hashlib.sha256(content).hexdigest()[:12] / "lab-recipes.git"
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            fresh = Path(scratch) / target.name
            Git().run("init", "--quiet", "--bare", "--template=", str(fresh))
            git = Git.at(fresh)
            git.run("fast-import", "--quiet", input=content)
            git.run("symbolic-ref", "HEAD", "refs/heads/main")
            _publish(fresh, target)
    except (OSError, GitFailed) as error:
        raise UsageError(f"cannot unpack the demo's history in {target.parent}: {error}; BISECT_RECOMPUTE_CACHE names "
                         "another folder") from None
    return target


def _publish(fresh: Path, target: Path) -> None:
    try:
        os.rename(fresh, target)
    except OSError:
        if not target.is_dir():  # else another demo was first, with the same content
            raise
