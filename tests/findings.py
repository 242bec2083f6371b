"""A searched range as plain data for tests of verdicts and reports."""

from __future__ import annotations

from probe_results import result

from bisect_recompute.history.commit import Commit, CommitRange
from bisect_recompute.probe.recipe import Recipe
from bisect_recompute.verdict.findings import Findings

RECIPE = Recipe.model_validate(
    {
        "name": "tiny",
        "model": {
            "num_layers": 2,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "vocab_size": 256,
            "bias_activation_fusion": False,
        },
        "training": {"seq_length": 32, "global_batch_size": 1},
    }
)


def sha(index: int) -> str:
    return f"{index + 2:x}" * 40


def commits(count: int, subject="commit {}") -> CommitRange:
    """A line of ``count`` candidates after the good endpoint ``111...``."""
    line = [
        Commit(sha(i), subject.format(i), "Ada", "2026-01-02T03:04:05+00:00", (sha(i - 1),)) for i in range(-1, count)
    ]
    return CommitRange("project", line[0], line[-1], tuple(line[1:]))


def findings(peaks: dict[int, int | str], count=4, **more) -> Findings:
    """``peaks``: index -> peak bytes, or a status for a probe that failed. Sides and suspects as ``more`` says."""
    results = {
        index: result(sha(index), status=peak, reason="ImportError: x")
        if isinstance(peak, str)
        else result(sha(index), peak=peak)
        for index, peak in peaks.items()
    }
    results |= more.pop("results", {})
    fields = dict(
        range=commits(count),
        first_parent=True,
        recipe=RECIPE,
        metric="any",
        direction="worse",
        results=results,
        sides={},
        probes_run=tuple(results.values()),
    )
    return Findings(**(fields | more))
