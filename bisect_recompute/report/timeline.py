"""Memory and throughput of a range as one plot."""

from __future__ import annotations

import io
from pathlib import Path

from bisect_recompute.measurement.journal import write_atomically
from bisect_recompute.report.text import plain
from bisect_recompute.verdict.timeline import Timeline

GIB = 2**30
NAMED = 12
"""Shifts with their commit id beside them, the largest; more would cover each other."""
COLOURS = {"memory": "#3b6fb6", "throughput": "#4f8f4f", "shift": "#b22222", "oom": "#b22222", "none": "#aaaaaa"}


def write_plot(timeline: Timeline, path: Path) -> None:
    """An SVG, the same for the same timeline."""
    import matplotlib

    # Text stays text and is never read as mathematics; no date, no random ids.
    style = {"svg.fonttype": "none", "svg.hashsalt": "bisect-recompute", "text.parse_math": False, "font.size": 9}
    with matplotlib.rc_context(style):
        write_atomically(path, _svg(timeline))


def _svg(timeline: Timeline) -> str:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.5), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    span = timeline.range
    upper.set_title(
        f"{plain(timeline.recipe, 60)} on {plain(span.repository, 60)}, {span.good[:10]}..{span.bad[:10]}", loc="left"
    )
    for axes, metric, scale, label in (
        (upper, "memory", GIB, "peak memory [GiB]"),
        (lower, "throughput", 1, f"throughput [{timeline.throughput_unit}]"),
    ):
        _draw(axes, timeline, metric, scale)
        axes.set_ylabel(label)
        axes.grid(axis="y", alpha=0.3)
        axes.ticklabel_format(axis="y", useOffset=False)
    if upper.get_legend_handles_labels()[0]:
        upper.legend(loc="best", frameon=False)
    _date_axis(lower, timeline)
    out = io.StringIO()
    FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None})
    return out.getvalue()


def _draw(axes, timeline: Timeline, metric: str, scale: float) -> None:
    points = list(enumerate(timeline.points))
    known = [(x, getattr(point, metric) / scale) for x, point in points if getattr(point, metric) is not None]
    axes.plot(*zip(*known) if known else ([], []), color=COLOURS[metric], drawstyle="steps-post", linewidth=1.4)
    out_of_memory = [x for x, point in points if point.status == "oom"]
    missing = [x for x, point in points if point.status in ("failed", "timeout", "unbuildable")]
    for name, colour, places in (("out of memory", "oom", out_of_memory), ("not measurable", "none", missing)):
        if places:
            axes.plot(places, [0.02] * len(places), "|", color=COLOURS[colour], label=name, transform=axes.get_xaxis_transform())
    at = {point.commit: x for x, point in points}
    moved = [(step, getattr(step.metrics, metric)) for step in timeline.shifts if getattr(step.metrics, metric).shifted]
    named = sorted(moved, key=lambda pair: -abs(pair[1].change_pct or 0))[:NAMED]
    for step, number in named:
        sha = step.culprit.commit if step.culprit else step.suspects[-1]
        if number.bad is not None:
            axes.axvline(at[sha], color=COLOURS["shift"], linewidth=0.6, alpha=0.6)
            axes.annotate(
                sha[:8], (at[sha], number.bad / scale), xytext=(3, 3), textcoords="offset points", fontsize=7,
                color=COLOURS["shift"],
            )


def _date_axis(axes, timeline: Timeline) -> None:
    count = len(timeline.points)
    ticks = sorted({round(i * (count - 1) / 8) for i in range(9)})
    axes.set_xticks(ticks, [timeline.points[x].date[:10] for x in ticks])
    axes.set_xlabel("commit (by author date)")
