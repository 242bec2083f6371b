"""``report.html``: the run for people, in one file that opens offline."""

from __future__ import annotations

import json
from collections.abc import Sequence

import jinja2
import plotly.io
import plotly.offline

from bisect_recompute.probe.result import ProbeResult
from bisect_recompute.report import plots
from bisect_recompute.report.mask import mask
from bisect_recompute.report.text import plain
from bisect_recompute.report.ticket import CAUSES, metric_rows, pull_request, probe_count, summary, title
from bisect_recompute.verdict.findings import Findings
from bisect_recompute.verdict.numbers import signed
from bisect_recompute.verdict.verdict import Verdict


LIBRARY = "<!-- the charts' library -->"


def page(f: Findings, verdict: Verdict, results: Sequence[ProbeResult]) -> str:
    """All text is escaped by the template and masked; plotly's own code is the only script besides the charts' data."""
    blamed = f.inside or f
    known = plots.points(f)
    sides = (blamed.last_good, blamed.culprit) if verdict.culprit else (-1, f.last)
    bars = plots.by_category(blamed if verdict.culprit else f, *sides)
    charts = [("Peak memory over the range", plots.over_commits(known, "memory")),
              ("Throughput over the range", plots.over_commits(known, "throughput"))]
    if bars is not None:
        charts.insert(1, ("What is alive at the peak", bars))
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bisect_recompute.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "plain": plain, "json": lambda value: json.dumps(value, ensure_ascii=False), "bytes": lambda size: signed(size, "bytes"),
    }
    written = environment.get_template("report.html.j2").render(
        v=verdict, title=title(verdict), summary=summary(verdict), rows=metric_rows(verdict), cause=CAUSES[verdict.cause.kind],
        probes=probe_count(verdict), pull_request=pull_request(verdict), results=results,
        charts=[(name, _chart(figure, f"chart-{number}")) for number, (name, figure) in enumerate(charts)],
    )
    return mask(written).replace(LIBRARY, f"<script>{plotly.offline.get_plotlyjs()}</script>", 1)


def _chart(figure, name: str) -> str:
    options = {"displayModeBar": False, "responsive": True}
    return plotly.io.to_html(figure, include_plotlyjs=False, full_html=False, div_id=name, config=options)
