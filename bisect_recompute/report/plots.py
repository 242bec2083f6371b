"""Charts of a run: over the commits of the range, and what fills the memory. As plotly figures for the page, as SVG for tickets."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bisect_recompute.measurement.journal import write_atomically
from bisect_recompute.measurement.shift import unit_of, value
from bisect_recompute.report.text import plain
from bisect_recompute.verdict.findings import Findings

GIB = 2**30
METRICS = {"memory": "peak memory", "throughput": "throughput"}
HOW = {"probed": "circle", "equal code": "circle-open", "not measurable": "x", "out of memory": "triangle-up"}
"""How a commit's number came about -> plotly's symbol."""
MARKS = {"circle": "o", "circle-open": "o", "x": "x", "triangle-up": "^"}
COLOURS = {"good": "#2f8f5b", "bad": "#c0392b", "skip": "#8a8a8a", "": "#3b6fb6"}
CATEGORIES = {
    "parameters": "#4c72b0", "gradients": "#dd8452", "optimizer_state": "#55a868", "activations": "#c44e52", "temporary": "#8172b3",
}


@dataclass(frozen=True)
class Point:
    """A commit of the range whose measurement is known."""

    index: int
    """Position in the range; -1 is the good endpoint."""
    sha: str
    subject: str
    side: str
    how: str
    memory: float | None
    """GiB."""
    throughput: float | None
    unit: str
    """Of the throughput."""


def points(f: Findings) -> list[Point]:
    run = {result.revision for result in f.probes_run}
    unit, found = unit_of("throughput", *f.results.values()), []
    for index, result in sorted(f.results.items()):
        commit = f.commit(index)
        how = "probed" if commit.sha in run else "equal code"
        how = {"oom": "out of memory", "ok": how}.get(result.status, "not measurable")
        memory, throughput = value(result, "bytes"), value(result, unit)
        side = f.sides.get(index, "skip" if how == "not measurable" else "")
        found.append(Point(index, commit.sha, commit.subject, side, how, memory and memory / GIB, throughput, unit))
    return found


def over_commits(known: Sequence[Point], metric: str):
    """A plotly figure; hovering shows the commit, the legend switches kinds off."""
    import plotly.graph_objects as go

    name, unit = METRICS[metric], _unit(known, metric)
    figure = go.Figure()
    measured = [p for p in known if getattr(p, metric) is not None]
    figure.add_scatter(
        x=[p.index for p in measured], y=[getattr(p, metric) for p in measured], mode="lines", line={"width": 1, "color": "#888"},
        line_shape="hv", hoverinfo="skip", showlegend=False,
    )
    low = min((getattr(p, metric) for p in measured), default=0)
    for how, symbol in HOW.items():
        here = [p for p in known if p.how == how]
        if here:
            figure.add_scatter(
                x=[p.index for p in here], y=[low if getattr(p, metric) is None else getattr(p, metric) for p in here],
                mode="markers", name=how, marker={"symbol": symbol, "size": 11, "color": [COLOURS[p.side] for p in here]},
                text=[_html(f"{p.sha[:10]} {p.side} {plain(p.subject, 90)}") for p in here],
                hovertemplate="%{text}<br>%{y:.2f} " + unit + "<extra></extra>",
            )
    _style(figure, f"{name} [{unit}]", 320)
    figure.update_xaxes(title="commit of the range, oldest first")
    return figure


def by_category(f: Findings, good: int, bad: int):
    """Stacked bars of what is alive at the peak; None where a side has no measurement."""
    import plotly.graph_objects as go

    sides = [(name, f.results[index].memory) for name, index in (("good", good), ("bad", bad)) if _categories(f, index)]
    if len(sides) < 2:
        return None
    figure = go.Figure()
    for category, colour in CATEGORIES.items():
        sizes = [memory.by_category.get(category, 0) / GIB for _, memory in sides]
        figure.add_bar(y=[name for name, _ in sides], x=sizes, name=category, orientation="h", marker_color=colour,
                       hovertemplate=category + " %{x:.3f} GiB<extra></extra>")
    figure.update_layout(barmode="stack")
    _style(figure, "", 220)
    figure.update_xaxes(title="GiB at the peak of the hottest rank")
    figure.update_yaxes(autorange="reversed")
    return figure


def _categories(f: Findings, index: int) -> dict[str, int]:
    memory = f.results[index].memory
    return memory.by_category if memory else {}


def _unit(known: Sequence[Point], metric: str) -> str:
    return "GiB" if metric == "memory" else next((p.unit for p in known), "")


def _style(figure, title: str, height: int) -> None:
    """Colours that can be read on light and on dark paper."""
    figure.update_layout(
        height=height, margin={"l": 60, "r": 20, "t": 30, "b": 40}, paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)",
        font={"color": "#808080"}, legend={"orientation": "h", "y": 1.15}, yaxis_title=title,
    )
    figure.update_xaxes(gridcolor="rgba(128,128,128,0.25)", zeroline=False)
    figure.update_yaxes(gridcolor="rgba(128,128,128,0.25)", zeroline=False)


def _html(text: str) -> str:
    """plotly takes some HTML in texts."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def write_svg(known: Sequence[Point], path: Path) -> None:
    """Both metrics over the commits, the same bytes for the same points."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style = {"svg.fonttype": "none", "svg.hashsalt": "bisect-recompute", "text.parse_math": False, "font.size": 9}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(9, 4.5), layout="constrained")
        for axes, (metric, name) in zip(figure.subplots(2, 1, sharex=True), METRICS.items()):
            measured = [p for p in known if getattr(p, metric) is not None]
            axes.plot([p.index for p in measured], [getattr(p, metric) for p in measured], color="#888", lw=1, drawstyle="steps-post")
            for how, symbol in HOW.items():
                for side, colour in COLOURS.items():
                    here = [p for p in measured if p.how == how and p.side == side]
                    axes.plot([p.index for p in here], [getattr(p, metric) for p in here], MARKS[symbol], color=colour,
                              fillstyle="none" if symbol.endswith("open") else "full")
            axes.set_ylabel(f"{name} [{_unit(known, metric)}]")
            axes.grid(axis="y", alpha=0.3)
            axes.ticklabel_format(axis="y", useOffset=False)
        axes.set_xlabel("commit of the range, oldest first; green is good, red is bad")
        out = io.StringIO()
        FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None})
    write_atomically(path, out.getvalue())
