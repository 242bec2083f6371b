"""`bisect-recompute ticket RUN`"""

from __future__ import annotations

import json
from pathlib import Path

import click

from bisect_recompute.cli import options
from bisect_recompute.report.archive import write_archive
from bisect_recompute.report.files import read_verdict, write_ticket
from bisect_recompute.report.ticket import FORMATS


@click.command("ticket", short_help="rewrite the ticket of a finished run")
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
@click.option("--format", "form", type=click.Choice(list(FORMATS)), default="github", show_default=True)
@options.as_json
def command(run, form, as_json):
    """Writes the ticket of the finished run in folder RUN again, and prints where it is."""
    path = write_ticket(run, read_verdict(run), form)
    write_archive(run)
    click.echo(json.dumps({"format": form, "file": str(path)}) if as_json else path)
