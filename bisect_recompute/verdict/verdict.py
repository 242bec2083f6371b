"""The verdict of a run as plain data; ``verdict.json`` is its dump and its JSON Schema is published."""

from __future__ import annotations

from typing import Any, Literal, Optional, Union

from pydantic import BaseModel, ConfigDict, Field

SCHEMA = "bisect-recompute/verdict/1"
Number = Union[int, float]


class Part(BaseModel):
    """Of a document, or all of it."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, protected_namespaces=())

    def dump(self) -> dict:
        return self.model_dump(mode="json", by_alias=True)


class Range(Part):
    good: str = Field(description="Commit id; so is `bad`")
    bad: str
    commits: int = Field(description="Candidates: everything after `good` up to `bad`")
    repository: str
    first_parent: bool = True


class Via(Part):
    commit: str
    submodule: str = Field(description="Path of the submodule that this commit moved")


class Culprit(Part):
    commit: str
    subject: str
    author: str
    date: str = Field(description="Author date, ISO 8601")
    repository: str
    via: Optional[Via] = Field(None, description="Set when the culprit is inside a submodule bump")
    last_good: str = Field(description="The measured good neighbour: the commit before it in the range")


class Metric(Part):
    """Both sides of the culprit; of the range where no culprit is named."""

    good: Optional[Number]
    bad: Optional[Number]
    unit: Literal["bytes", "TFLOP/s/GPU", "steps/s"]
    change_pct: Optional[float] = Field(description="Percent of the good value")
    shifted: bool = Field(description="Asked for, in the direction asked for, by the threshold or more")


class Metrics(Part):
    memory: Metric
    throughput: Metric


class Change(Part):
    recipe: str
    field: str
    old: Any
    new: Any
    file: str
    line: int


class Tensor(Part):
    """Tensors alive at the peak that were not there before; negative numbers: that are no longer there."""

    module: str = Field(description="Module path, layer numbers replaced by *")
    shape: list[int]
    dtype: str
    bytes: int = Field(description="Sum over all of them on the hottest rank")
    count: int
    file: str
    line: int
    source: str = Field("", description="Text of that line, where it could be read")


class Counterfactual(Part):
    description: str
    memory: Optional[Number]
    throughput: Optional[Number]
    confirms: bool


class Cause(Part):
    kind: Literal["setting", "recompute-source", "other-source", "dependency", "unknown"]
    changes: list[Change] = []
    tensors: list[Tensor] = []
    counterfactual: Optional[Counterfactual] = None


class Step(Part):
    """One shift of a range."""

    culprit: Optional[Culprit] = Field(None, description="Null where commits before it could not be measured")
    suspects: list[str] = Field([], description="Then it is one of these, oldest first; the last one is measured")
    metrics: Metrics = Field(description="Before and after it")
    cause: Cause


class Probes(Part):
    run: int
    reused: int = Field(description="Commits answered by a probe of another commit with the same code, or by an earlier run")
    skipped: int = Field(description="Commits that could not be measured")
    seconds: float = Field(description="Sum over all probes")


class Evidence(Part):
    kind: Literal[
        "endpoints",
        "share",
        "shift",
        "category",
        "setting",
        "flops",
        "recompute-change",
        "skipped",
        "provenance",
        "note",
        "failure",
    ]
    text: str
    commit: Optional[str] = None
    kinds: list[str] = Field([], description="As in `diff --json`")
    source: list[dict[str, Any]] = Field([], description="As in `diff --json`, with line and detail")
    changes: list[Change] = []


class Verdict(Part):
    schema_: Literal["bisect-recompute/verdict/1"] = Field(SCHEMA, alias="schema")
    outcome: Literal["culprit", "no-shift", "inconclusive", "endpoint-failed"]
    range: Range
    culprit: Optional[Culprit] = None
    suspects: list[str] = Field([], description="Commit ids left when inconclusive, oldest first")
    metrics: Metrics
    cause: Cause
    confidence: float = Field(ge=0, le=1)
    probes: Probes
    evidence: list[Evidence] = []
    net: Optional[Metrics] = Field(None, description="With --all-shifts: between the endpoints")
    shifts: Optional[list[Step]] = Field(
        None, description="With --all-shifts: every change by the threshold or more, whichever way it goes, oldest first"
    )
    recipe: str = ""
    probe: str = Field("simulate", description="Kind of probe, as `--probe` names it")
    reproduce: str = Field("", description="A command line that repeats the run")
    versions: dict[str, str] = {}


EXIT_CODES = {"culprit": 0, "no-shift": 3, "inconclusive": 4, "endpoint-failed": 5}


def verdict_schema() -> dict:
    """JSON Schema of ``verdict.json``."""
    return Verdict.model_json_schema(by_alias=True)
