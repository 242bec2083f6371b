"""Progress of a run on standard error: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from bisect_recompute.cli.plan import Plan
from bisect_recompute.driver.loop import Event, Narrowed, ProbeAbandoned, ProbeFinished, ProbeStarted, Reused
from bisect_recompute.measurement.shift import METRICS, unit_of, value
from bisect_recompute.probe.result import ProbeResult
from bisect_recompute.report.text import plain
from bisect_recompute.verdict.numbers import amount

COLOURS = {"good": "green", "ok": "green", "bad": "red", "skip": "yellow"}


def screen(plan: Plan, jobs: int, quiet: bool):
    """A context manager; its ``on_event`` takes the events of the run."""
    if quiet:
        return Silent()
    console = Console(stderr=True)
    return Terminal(plan, jobs, console) if console.is_terminal and not console.is_dumb_terminal else Lines(plan, jobs)


class Silent:
    def on_event(self, event: Event) -> None:
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass


class Lines(Silent):
    """One line per answer."""

    def __init__(self, plan: Plan, jobs: int):
        self.progress = Progress(plan, jobs)
        _line(self.progress.heading())

    def on_event(self, event: Event) -> None:
        if self.progress.tells(event):
            _line(f"{event.side:4} {self.progress.sha(event.index)}  {self.progress.answer(event)}")
        if self.progress.take(event):
            _line(self.progress.left())


class Terminal(Silent):
    """Answers scroll by; below them what runs, and what is left."""

    def __init__(self, plan: Plan, jobs: int, console: Console):
        self.progress = Progress(plan, jobs)
        self.console = console
        self.spinner = Spinner("dots")
        self.live = Live(console=console, refresh_per_second=8, transient=True, get_renderable=self.render)

    def __enter__(self):
        self.console.print(Text(self.progress.heading(), style="bold"), no_wrap=True, overflow="ellipsis")
        self.live.start()
        return self

    def __exit__(self, *exc):
        self.live.stop()

    def on_event(self, event: Event) -> None:
        self.progress.take(event)
        if self.progress.tells(event):
            mark = "●" if isinstance(event, ProbeFinished) else "○"
            line = Text.assemble(
                (f"{mark} {event.side:4} ", COLOURS[event.side]),
                f"{self.progress.sha(event.index)}  ",
                (self.progress.answer(event), "dim"),
            )
            self.console.print(line, no_wrap=True, overflow="ellipsis")

    def render(self):
        running = Table.grid(padding=(0, 1))
        for index, began in list(self.progress.running.items()):
            subject = Text(plain(self.progress.plan.commit(index).subject, 60), style="dim")
            running.add_row(
                self.spinner, Text(self.progress.sha(index)), Text(f"{time.monotonic() - began:.0f} s"), subject
            )
        bar = Table.grid(padding=(0, 1))
        bar.add_row(ProgressBar(total=1.0, completed=self.progress.share_done(), width=24), Text(self.progress.left()))
        return Group(running, bar)


class Progress:
    """What is known about how far the run is."""

    def __init__(self, plan: Plan, jobs: int):
        self.plan, self.jobs = plan, jobs
        self.scan = plan.manifest.job == "scan"
        self.running: dict[int, float] = {}
        """Index -> when it began (monotonic seconds)."""
        self.seconds: list[float] = []
        self.reused = 0
        self.commits_left = len(plan.range.commits)
        self.probes_left = 0 if self.scan or self.commits_left < 2 else math.ceil(math.log2(self.commits_left))
        self._told = None

    def take(self, event: Event) -> bool:
        """True when ``left`` says something new."""
        if isinstance(event, ProbeStarted):
            self.running[event.index] = time.monotonic()
        elif isinstance(event, (ProbeFinished, ProbeAbandoned)):
            self.running.pop(event.index, None)
            if isinstance(event, ProbeFinished):
                self.seconds.append(event.result.seconds)
        elif isinstance(event, Reused):
            self.reused += 1
        elif isinstance(event, Narrowed):
            self.commits_left, self.probes_left = event.commits_left, event.expected_probes
            told, self._told = self._told, (self.commits_left, self.probes_left)
            return told != self._told
        return False

    def tells(self, event: Event) -> bool:
        """A scan is not told of each of thousands of commits with the same code."""
        return isinstance(event, ProbeFinished) or isinstance(event, Reused) and not self.scan

    def share_done(self) -> float:
        total = len(self.plan.range.commits)
        if self.scan:
            return 1 - self.commits_left / (total + 1)
        return 1 - math.log2(max(self.commits_left, 1)) / math.log2(total) if total > 1 else 0

    def sha(self, index: int) -> str:
        return self.plan.commit(index).sha[:10]

    def answer(self, event: ProbeFinished | Reused) -> str:
        """``73.61 GiB, 412.3 TFLOP/s/GPU, 3.1 s``"""
        took = "no new probe" if isinstance(event, Reused) else f"{event.result.seconds:.1f} s"
        end = [f"the {event.side} endpoint"] if not self.scan and event.index in (-1, self.plan.last) else []
        return ", ".join([measured(event.result), took, *end])

    def heading(self) -> str:
        span = self.plan.range
        count = len(span.commits)
        return (
            f"{span.good.sha[:10]}..{span.bad.sha[:10]}: {count} commit{'s' * (count != 1)} of "
            f"{plain(span.repository, 60)}, recipe {plain(self.plan.recipe.name, 60)}"
        )

    def left(self) -> str:
        commits, probes = self.commits_left, self.probes_left
        text = f"{commits} commit{'s' * (commits != 1)} left, {len(self.seconds)} probed"
        if self.reused:
            text += f", {self.reused} known"
        if not probes:
            return text
        text += f", about {probes} probe{'s' * (probes != 1)} to go"
        return f"{text}, {self._time_left()}" if self.seconds else text

    def _time_left(self) -> str:
        # jobs probes at once cut what is left into jobs + 1 parts instead of 2; in a scan they only share the work.
        rounds = math.ceil(self.probes_left / (self.jobs if self.scan else math.log2(self.jobs + 1)))
        return f"{rounds * sum(self.seconds) / len(self.seconds):.0f} s"


def measured(result: ProbeResult) -> str:
    """``73.61 GiB, 412.3 TFLOP/s/GPU``, or why there is no measurement."""
    units = (unit_of(metric, result) for metric in METRICS)
    parts = [amount(value(result, unit), unit) for unit in units if value(result, unit) is not None]
    if result.status != "ok":
        parts.append(
            f"{result.status} at {result.stage}: {plain(result.reason, 160)}" if result.reason else result.status
        )
    return ", ".join(parts)


def _line(text: str) -> None:
    click.echo(text, err=True)
    sys.stderr.flush()
