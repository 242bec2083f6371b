"""`bisect-recompute schema recipe|verdict`"""

from __future__ import annotations

import json

import click


@click.command("schema", short_help="print a JSON Schema")
@click.argument("what", type=click.Choice(["recipe", "verdict"]))
def command(what):
    """Prints the JSON Schema of a probe recipe (YAML) or of verdict.json."""
    if what == "recipe":
        from bisect_recompute.probe.recipe import recipe_schema as schema
    else:
        from bisect_recompute.verdict.verdict import verdict_schema as schema
    click.echo(json.dumps(schema(), indent=2))
