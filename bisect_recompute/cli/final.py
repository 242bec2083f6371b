"""What a finished run says on standard output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from bisect_recompute.report.text import plain
from bisect_recompute.report.ticket import CAUSES, LABELS, metric_rows, probe_count, summary, title
from bisect_recompute.verdict.numbers import percent, signed
from bisect_recompute.verdict.verdict import EXIT_CODES, Metrics, Tensor, Verdict

SHOWN = 4
"""Tensors and settings listed; the files have all."""


def show(verdict: Verdict, out: Path, files: Sequence[Path]) -> None:
    """Styled on a terminal, the same lines without style elsewhere."""
    console = Console(highlight=False, soft_wrap=True)
    span = verdict.range
    console.print(Text(title(verdict), style="bold red" if verdict.outcome == "culprit" else "bold"))
    for block in (
        _commits(verdict),
        _metrics(verdict),
        _cause(verdict) if verdict.culprit else [],
        _shifts(verdict),
        [
            _line(
                "range",
                f"{span.good[:10]}..{span.bad[:10]}, {span.commits} commit{'s' * (span.commits != 1)} of "
                f"{plain(span.repository, 60)}, recipe {plain(verdict.recipe, 60)}",
            ),
            _line("probes", probe_count(verdict)),
            _line("files", f"{plain(out)}/  {', '.join(path.name + '/' * path.is_dir() for path in files)}"),
        ],
    ):
        if block:
            console.print()
        for line in block:
            console.print(line)


def show_json(verdict: Verdict) -> None:
    print(json.dumps(verdict.dump(), indent=2))


def exit_code(verdict: Verdict) -> int:
    return EXIT_CODES[verdict.outcome]


def _commits(verdict: Verdict) -> list[Text]:
    commit = verdict.culprit
    if commit:
        return [
            Text(f"  {commit.commit}", style="yellow"),
            Text(f"  {plain(commit.subject, 110)}", style="bold"),
            Text(f"  {plain(commit.author, 60)}, {plain(commit.date, 30)}", style="dim"),
            *([Text(f"  brought by {commit.via.commit}, which moves {plain(commit.via.submodule, 60)}")] if commit.via else []),
        ]
    if verdict.suspects:
        lines = [Text("  the first bad commit is one of these, oldest first; those between cannot be measured")]
        lines += [Text(f"  {sha}", style="yellow") for sha in verdict.suspects[:20]]
        return lines + [Text(f"  and {len(verdict.suspects) - 20} more, see verdict.json")] * (
            len(verdict.suspects) > 20
        )
    return [Text(f"  {part}") for part in summary(verdict)]


def _metrics(verdict: Verdict) -> list[Text]:
    rows = metric_rows(verdict)
    return [
        Text.assemble(
            (f"  {row['label']:13}", "dim"),
            f"{row['good']} -> ",
            (row["bad"], "bold red" if row["shifted"] else ""),
            "   " if row["change"] else "",
            (row["change"], "red" if row["shifted"] else "dim"),
        )
        for row in rows
    ]


def _cause(verdict: Verdict) -> list[Text]:
    cause = verdict.cause
    lines = [_line("cause", CAUSES[cause.kind])]
    for change in cause.changes[:SHOWN]:
        lines.append(_line("", f"{plain(change.field, 60)}: {_value(change.old)} -> {_value(change.new)}", "bold"))
        lines.append(_line("", f"{plain(change.file, 90)}:{change.line}  {plain(change.recipe, 60)}", "dim"))
    lines += _more(cause.changes)
    for number, tensor in enumerate(cause.tensors[:SHOWN]):
        lines += _tensor("" if number else "tensors", tensor)
    return lines + _more(cause.tensors)


def _shifts(verdict: Verdict) -> list[Text]:
    if verdict.shifts is None:
        return []
    lines = []
    for step in verdict.shifts:
        sha = step.culprit.commit if step.culprit else step.suspects[-1]
        subject = plain(step.culprit.subject, 60) if step.culprit else f"or one of {len(step.suspects) - 1} before it"
        lines.append(_line("" if lines else "shifts", f"{sha[:10]}  {_moved(step.metrics)}  {subject}"))
    net = verdict.net
    everything = Metrics(**{name: getattr(net, name).model_copy(update={"shifted": True}) for name in LABELS})
    return [*lines, _line("net", _moved(everything))]


def _moved(metrics: Metrics) -> str:
    """``memory +2.88 GiB, +7.8 %; throughput ...`` of what shifted."""
    parts = []
    for name in LABELS:
        metric = getattr(metrics, name)
        if metric.shifted and None not in (metric.good, metric.bad):
            parts.append(f"{name} {signed(metric.bad - metric.good, metric.unit)}, {percent(metric.change_pct)}")
        elif metric.shifted:
            parts.append(f"{name}: out of memory on one side")
    return "; ".join(parts)


def _tensor(name: str, t: Tensor) -> list[Text]:
    what = f"{signed(t.bytes, 'bytes')}: {t.count:+d} x {t.shape} {plain(t.dtype, 20)} in {plain(t.module, 60) or 'no module'}"
    where = f"{plain(t.file, 90)}:{t.line}"
    return [_line(name, what, "bold"), _line("", where + (f"  {plain(t.source, 70)}" if t.source else ""), "dim")]


def _value(value) -> str:
    return plain(json.dumps(value, ensure_ascii=False), 60)


def _more(items: Sequence) -> list[Text]:
    return [_line("", f"and {len(items) - SHOWN} more, see ticket.md", "dim")] if len(items) > SHOWN else []


def _line(name: str, text: str, style: str = "") -> Text:
    return Text.assemble((f"  {name:9}", "dim"), (text, style))
