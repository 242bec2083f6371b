"""The command line: one module per command, loaded when it is called, so that light commands stay light."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys

import click

from bisect_recompute.cli import streams
from bisect_recompute.cli.trouble import Failed, one_line_of_trouble
from bisect_recompute.errors import EndpointError, UsageError

COMMANDS = {
    "cache": "what the tool keeps on disk, and removing it",
    "calibrate": "the simulator against measured runs: error per case, median, 90th percentile",
    "check": "settings that are invalid, inert or in conflict at a revision",
    "demo": "the main job on a history that comes with the tool, no network, no GPU",
    "diff": "what each commit of a range changes in recompute settings and source",
    "doctor": "what works on this machine, and the fix for what does not",
    "hook": "for `git bisect run`: exit 0 good, 1 bad, 125 skip, 128 or more stop",
    "probe": "one measurement",
    "resume": "go on with a run that was stopped, killed or crashed",
    "run": "the main job: name the first bad commit of GOOD..BAD",
    "scan": "measure every revision of A..B: the timeline, all shifts in it",
    "schema": "print a JSON Schema",
    "show": "effective recompute settings of every recipe at a revision",
    "sweep": "what each recompute choice costs and saves at a revision",
    "ticket": "rewrite the ticket of a finished run",
}
STOP = 128
"""Of `hook`: to `git bisect run` 1 to 127 are answers (bad, skip), so whatever goes wrong must be more than that."""


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

    def invoke(self, ctx):
        with one_line_of_trouble():  # click would end on a broken pipe of git's as on one of its own
            return super().invoke(ctx)


def _show_version(ctx, param, wanted):
    if wanted:
        try:
            version = importlib.metadata.version("bisect-recompute")
        except importlib.metadata.PackageNotFoundError:
            version = "unknown (run from its source, not installed)"
        click.echo(f"bisect-recompute, version {version}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version,
              help="Show the version and exit.")
def group():
    """Names the commit, the setting and the tensor behind a memory or throughput shift in Megatron training."""


def one_line(error: click.ClickException) -> str:
    """What is wrong with the call, and where to read about it."""
    context = getattr(error, "ctx", None)
    see = f" (see {context.command_path} --help)" if context else ""
    return " ".join(error.format_message().split()) + see


def main(args=None):
    """Entry point: maps errors to the documented exit codes, one line each, no traceback."""
    streams.open_streams()
    args = sys.argv[1:] if args is None else list(args)
    hook = next((arg for arg in args if not arg.startswith("-")), None) == "hook"
    wrong, endpoint, failed = (STOP, STOP, STOP) if hook else (2, 5, 1)
    try:
        code = _called(args, wrong, endpoint, failed)
        sys.stdout.flush()
    except streams.OutputLost as error:
        streams.drop_output()
        code = _said(failed, f"cannot write to standard output: {error}")
    sys.exit(code)


def _called(args: list[str], wrong: int, endpoint: int, failed: int) -> int:
    try:
        # Without standalone mode click returns the code of ctx.exit().
        code = group.main(args=args, prog_name="bisect-recompute", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except streams.OutputLost:
        raise
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return wrong
    except click.ClickException as error:
        return _said(wrong, one_line(error))
    except click.Abort:
        return 130
    except UsageError as error:
        return _said(wrong, error)
    except EndpointError as error:
        return _said(endpoint, error)
    except Failed as error:
        return _said(failed, error)
    except Exception as error:
        sys.excepthook(*sys.exc_info())
        return _said(failed, f"a fault of bisect-recompute itself: {type(error).__name__}")


def _said(code: int, message: object) -> int:
    click.echo(f"error: {message}", err=True)
    return code
