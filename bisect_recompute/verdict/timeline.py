"""A range measured commit by commit: ``scan.json`` is the dump of a timeline, and its JSON Schema is published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Optional

from pydantic import Field

from bisect_recompute.measurement.shift import METRICS, unit_of, value
from bisect_recompute.verdict.decide import metrics_of, probes_of, range_of, step_of
from bisect_recompute.verdict.findings import Between, Findings
from bisect_recompute.verdict.verdict import Metrics, Number, Part, Probes, Range, Step

SCHEMA = "bisect-recompute/scan/1"


class Point(Part):
    commit: str
    subject: str
    date: str = Field(description="Author date, ISO 8601")
    status: Literal["ok", "oom", "failed", "timeout", "unbuildable", "open"] = Field(
        description="open: the scan was stopped before"
    )
    measured_at: Optional[str] = Field(None, description="The commit that was probed: this one, or one with the same code")
    memory: Optional[Number] = Field(None, description="Peak bytes")
    throughput: Optional[Number] = Field(None, description="In `throughput_unit`")
    reason: str = Field("", description="Why there is no measurement")


class Timeline(Part):
    schema_: Literal["bisect-recompute/scan/1"] = Field(SCHEMA, alias="schema")
    complete: bool = Field(description="False: the scan was stopped, `resume` goes on")
    range: Range
    metrics: Optional[Metrics] = Field(description="Net: the good end against the bad one; null while one is open")
    points: list[Point] = Field(description="The good end, then every commit of the range, oldest first")
    shifts: list[Step] = Field(description="Every change by the threshold or more, oldest first")
    probes: Probes
    throughput_unit: str = "TFLOP/s/GPU"
    recipe: str = ""
    reproduce: str = Field("", description="A command line that repeats the scan")
    versions: dict[str, str] = {}


def timeline(f: Findings, shifts: Sequence[Between]) -> Timeline:
    ends = all(index in f.results for index in (-1, f.last))
    points = [_point(f, index) for index in range(-1, f.last + 1)]
    return Timeline(
        complete=all(point.status != "open" for point in points),
        range=range_of(f),
        metrics=metrics_of(f, -1, f.last) if ends else None,
        points=points,
        shifts=[step_of(f, shift) for shift in shifts],
        probes=probes_of(f),
        throughput_unit=unit_of("throughput", *f.results.values()),
        recipe=f.recipe.name,
        reproduce=f.reproduce,
        versions=dict(f.versions),
    )


def _point(f: Findings, index: int) -> Point:
    commit, result = f.commit(index), f.results.get(index)
    known = {"commit": commit.sha, "subject": commit.subject[:500], "date": commit.date}
    if result is None:
        return Point(**known, status="open")
    return Point(
        **known, status=result.status, measured_at=result.revision, reason=result.reason,
        **{metric: value(result, unit_of(metric, *f.results.values())) for metric in METRICS},
    )


def timeline_schema() -> dict:
    """JSON Schema of ``scan.json``."""
    return Timeline.model_json_schema(by_alias=True)
