"""`bisect-recompute schema recipe|scan|verdict`"""

from __future__ import annotations

import json

import click


@click.command("schema", short_help="print a JSON Schema")
@click.argument("what", type=click.Choice(["recipe", "scan", "verdict"]))
def command(what):
    """Prints the JSON Schema of a probe recipe (YAML), of scan.json or of verdict.json."""
    if what == "recipe":
        from bisect_recompute.probe.recipe import recipe_schema as schema
    elif what == "scan":
        from bisect_recompute.verdict.timeline import timeline_schema as schema
    else:
        from bisect_recompute.verdict.verdict import verdict_schema as schema
    click.echo(json.dumps(schema(), indent=2))
