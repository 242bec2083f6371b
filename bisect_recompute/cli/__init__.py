"""The command line: one module per command, loaded when it is called, so that light commands stay light."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import click

from bisect_recompute.errors import EndpointError, UsageError

COMMANDS = {
    "check": "settings that are invalid, inert or in conflict at a revision",
    "demo": "the main job on a history that comes with the tool, no network, no GPU",
    "diff": "what each commit of a range changes in recompute settings and source",
    "doctor": "what works on this machine, and the fix for what does not",
    "hook": "for `git bisect run`: exit 0 good, 1 bad, 125 skip, 128 or more stop",
    "probe": "one measurement",
    "resume": "go on with a run that was stopped, killed or crashed",
    "run": "the main job: name the first bad commit of GOOD..BAD",
    "schema": "print a JSON Schema",
    "show": "effective recompute settings of every recipe at a revision",
    "ticket": "rewrite the ticket of a finished run",
}


class LazyGroup(click.Group):
    def list_commands(self, ctx):
        return [name for name in sorted(COMMANDS) if importlib.util.find_spec(f"{__name__}.{name}")]

    def get_command(self, ctx, name):
        if name not in self.list_commands(ctx):
            return None
        return importlib.import_module(f"{__name__}.{name}").command

    def format_commands(self, ctx, formatter):
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)] or [("none", "")])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="bisect-recompute")
def group():
    """Names the commit, the setting and the tensor behind a memory or throughput shift in Megatron training."""


def one_line(error: click.ClickException) -> str:
    """What is wrong with the call, and where to read about it."""
    context = getattr(error, "ctx", None)
    see = f" (see {context.command_path} --help)" if context else ""
    return " ".join(error.format_message().split()) + see


def main(args=None):
    """Entry point: maps errors to the documented exit codes, one line each, no traceback."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # a commit's author may be called what the locale cannot write
    try:
        # Without standalone mode click returns the code of ctx.exit().
        code = group.main(args=args, prog_name="bisect-recompute", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        click.echo(f"error: {one_line(error)}", err=True)
        sys.exit(2)
    except click.Abort:
        sys.exit(130)
    except UsageError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except EndpointError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(5)
