"""Writes the files of a finished run into its folder, each whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

from bisect_recompute.errors import UsageError
from bisect_recompute.measurement.journal import read_manifest, read_results, write_atomically
from bisect_recompute.probe.recipe import Thresholds
from bisect_recompute.report.archive import ARCHIVE, write_archive
from bisect_recompute.report.bisect_log import bisect_log
from bisect_recompute.report.mask import mask
from bisect_recompute.report.ticket import FORMATS, ticket
from bisect_recompute.verdict.findings import Findings
from bisect_recompute.verdict.verdict import Verdict

VERDICT, BISECT_LOG, PLOT, PAGE = "verdict.json", "bisect.log", "range.svg", "report.html"


def write_files(out: Path, findings: Findings, verdict: Verdict) -> list[Path]:
    """``bisect.log``, the plot, the page, ``ticket.md``, then ``verdict.json``: once it is there, the run is finished.
    Then the archive of them all."""
    # The charts' libraries take a second to import.
    from bisect_recompute.report.page import page
    from bisect_recompute.report.plots import points, write_svg

    if verdict.outcome in ("culprit", "inconclusive"):
        write_atomically(out / BISECT_LOG, bisect_log(findings))
    write_svg(points(findings), out / PLOT)
    write_atomically(out / PAGE, page(findings, verdict, list(read_results(out).values())))
    write_ticket(out, verdict, "github")
    write_atomically(out / VERDICT, json.dumps(verdict.dump(), indent=2) + "\n")
    write_archive(out)
    return written_files(out)


def written_files(out: Path) -> list[Path]:
    """What is there of a run's files, the verdict first."""
    return [
        path for name in (VERDICT, "ticket.md", PAGE, PLOT, BISECT_LOG, "probes.jsonl", "logs", ARCHIVE)
        if (path := out / name).exists()
    ]


def write_ticket(out: Path, verdict: Verdict, form: str) -> Path:
    manifest = read_manifest(out)
    thresholds = Thresholds(memory=manifest.memory_threshold, throughput=manifest.throughput_threshold)
    results = list(read_results(out).values())
    path = out / FORMATS[form]
    write_atomically(path, mask(ticket(verdict, results, thresholds, manifest.metric, manifest.direction, form)))
    return path


def read_verdict(out: Path) -> Verdict:
    """Raises UsageError when ``out`` holds no finished run."""
    read_manifest(out)
    try:
        return Verdict.model_validate_json((out / VERDICT).read_bytes())
    except FileNotFoundError:
        raise UsageError(f"the run in {out} is not finished; go on with it: bisect-recompute resume {out}") from None
    except ValueError as error:
        raise UsageError(
            f"{out / VERDICT} is damaged: {str(error).splitlines()[0]}; bisect-recompute resume {out} writes it again"
        ) from None
