"""What a scan says on standard output."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from bisect_recompute.cli.tables import console, say, table
from bisect_recompute.measurement.shift import METRICS
from bisect_recompute.report.ticket import probe_count
from bisect_recompute.verdict.numbers import amount, percent, signed
from bisect_recompute.verdict.timeline import Timeline
from bisect_recompute.verdict.verdict import Metric, Step


def show(found: Timeline, out: Path) -> None:
    screen, span = console(), found.range
    count = len(found.shifts)
    say(screen, f"{count} shift{'s' * (count != 1)} in {span.good[:10]}..{span.bad[:10]}", style="bold")
    if found.shifts:
        rows = [row for step in found.shifts for row in _rows(step, found)]
        screen.print(table(["commit", "date", "metric", "before", "after", "change", "subject"], rows))
    ends = (f"recipe   {found.recipe}", f"probes   {probe_count(found)}")
    for line in (*_net(found), *_rest(found), _points(found), *ends):
        say(screen, line, 2)
    say(screen, f"files    {out}/  scan.json, timeline.svg, probes.jsonl, logs/", 2)


def _rows(step: Step, found: Timeline):
    sha = step.culprit.commit if step.culprit else step.suspects[-1]
    point = next(point for point in found.points if point.commit == sha)
    subject = point.subject
    if not step.culprit:
        others = len(step.suspects) - 1
        subject = f"or one of the {others} before it that cannot be measured: {subject}"
    for name in METRICS:
        metric: Metric = getattr(step.metrics, name)
        if metric.shifted:
            before, after = amount(metric.good, metric.unit), amount(metric.bad, metric.unit)
            yield sha[:10], point.date[:10], name, before, after, percent(metric.change_pct), subject


def _net(found: Timeline):
    if found.metrics is None:
        return
    for name in METRICS:
        metric = getattr(found.metrics, name)
        if None not in (metric.good, metric.bad):
            moved = f"{signed(metric.bad - metric.good, metric.unit)}, {percent(metric.change_pct)}"
            yield f"net      {name} {amount(metric.good, metric.unit)} -> {amount(metric.bad, metric.unit)}, {moved}"


def _rest(found: Timeline):
    """What the shifts listed leave of the net."""
    for name in METRICS if found.metrics and found.complete else ():
        net = getattr(found.metrics, name)
        parts = [getattr(step.metrics, name) for step in found.shifts]
        numbers = [n for part in (net, *parts) for n in (part.good, part.bad)]
        if parts and None not in numbers:
            rest = (net.bad - net.good) - sum(part.bad - part.good for part in parts)
            if abs(rest) > 1e-6 * abs(net.good):
                yield f"rest     {name} {signed(rest, net.unit)} in changes under the threshold"


def _points(found: Timeline) -> str:
    counts = Counter(point.status for point in found.points)
    named = {"ok": "measured", "oom": "out of memory", "open": "not asked yet"}
    parts = [f"{n} {named.get(status, status)}" for status, n in counts.most_common()]
    return f"range    {found.range.commits} commits of {found.range.repository}: {', '.join(parts)}"
