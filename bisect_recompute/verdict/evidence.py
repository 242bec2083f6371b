"""What speaks for the verdict, one sentence each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from bisect_recompute.differ.evidence import CommitChanges
from bisect_recompute.measurement.shift import Shift
from bisect_recompute.probe.result import ProbeResult
from bisect_recompute.verdict.cause import change_of, executed_changes
from bisect_recompute.verdict.findings import Findings
from bisect_recompute.verdict.numbers import change, signed
from bisect_recompute.verdict.verdict import Evidence


def evidence_of(f: Findings) -> list[Evidence]:
    return [*_endpoints(f), *_share(f), *_steps(f), *_culprit(f), *_recompute_changes(f), *_skipped(f), *_provenance(f)]


def share_explained(f: Findings) -> float:
    """Part of the endpoints' shift that lies between the culprit and its measured good neighbour.

    Of several shifted metrics the best explained. 1 where the shift has no size (only one side runs out of memory).
    """
    ends, here = f.shifts(-1, f.last), f.shifts(f.last_good, f.culprit)
    return max(_share_of(ends[name], here[name]) for name in ends if ends[name].shifted)


def _share_of(ends: Shift, here: Shift) -> float:
    if ends.out_of_memory or None in (ends.good, ends.bad, here.good, here.bad):
        return 1.0
    return (here.bad - here.good) / (ends.bad - ends.good)


def _endpoints(f: Findings) -> Iterator[Evidence]:
    good, bad = f.results[-1], f.results[f.last]
    for name, result in (("good", good), ("bad", bad)):
        if result.status not in ("ok", "oom"):
            yield Evidence(
                kind="failure",
                commit=result.revision,
                text=f"the {name} endpoint cannot be probed: {result.status} at {result.stage}: {result.reason}",
            )
    for shift in f.shifts(-1, f.last).values():
        if shift.good is not None and shift.bad is not None:
            text = f"{shift.metric} from {f.commit(-1).sha[:10]} to {f.commit(f.last).sha[:10]}: {change(shift)}"
            if not shift.shifted and shift.good != shift.bad:
                text += ", no shift for this question"
            yield Evidence(kind="endpoints", text=text + _repeated(shift, f))
    if {good.status, bad.status} == {"ok", "oom"}:
        yield Evidence(
            kind="endpoints", text=f"out of memory at the {'bad' if bad.status == 'oom' else 'good'} endpoint only"
        )


def _repeated(shift: Shift, f: Findings) -> str:
    """What repeats say about it."""
    noise, threshold = shift.noise, getattr(f.recipe.thresholds, shift.metric)
    if noise is None:
        return ""
    outcome = {
        "different": "more than chance",
        "same": f"a shift by the threshold of {threshold:g} % is ruled out",
        "open": f"whether it shifted by the threshold of {threshold:g} % is not known yet, more --repeats will tell",
    }[noise.outcome(threshold)]
    return (
        f"; {noise.samples[0]} and {noise.samples[1]} runs in turn, the change lies between {noise.low_pct:+.2f} and "
        f"{noise.high_pct:+.2f} % ({noise.confidence:.0%}): {outcome}; they would probably have shown a shift of {noise.smallest_shown_pct:.2g} %"
    )


def _share(f: Findings) -> Iterator[Evidence]:
    if f.culprit is None:
        return
    ends, here = f.shifts(-1, f.last), f.shifts(f.last_good, f.culprit)
    for name, shift in ends.items():
        share = _share_of(shift, here[name]) if shift.shifted else 1.0
        if abs(share - 1) > 0.005:
            more = shift.bad - shift.good
            part = here[name].bad - here[name].good
            yield Evidence(
                kind="share",
                commit=f.commit(f.culprit).sha,
                text=f"this commit moves {name} by {signed(part, shift.unit)}, {share:.0%} of the "
                f"{signed(more, shift.unit)} between the endpoints; other commits of the range move the rest",
            )


def _steps(f: Findings) -> Iterator[Evidence]:
    for number, step in enumerate(f.steps or (), 1):
        moved = [f"{s.metric} {change(s)}" for s in replace(f, direction="any").shifts(step.good, step.bad).values()
                 if s.shifted]
        unsure = f", or at one of the {len(step.suspects) - 1} before it that cannot be measured" * (len(step.suspects) > 1)
        yield Evidence(
            kind="shift",
            commit=f.commit(step.bad).sha,
            text=f"shift {number} of {len(f.steps)}: {'; '.join(moved)}{unsure}",
        )


def _culprit(f: Findings) -> Iterator[Evidence]:
    if f.culprit is None:
        return
    good, bad, sha = f.results[f.last_good], f.results[f.culprit], f.commit(f.culprit).sha
    if good.memory and bad.memory:
        parts = Counter(bad.memory.by_category)
        parts.subtract(good.memory.by_category)
        moved = [f"{name} {signed(size, 'bytes')}" for name, size in parts.most_common() if size]
        if moved:
            yield Evidence(kind="category", commit=sha, text=f"at the peak: {', '.join(moved)}")
    for name, (before, after) in executed_changes(f).items():
        yield Evidence(kind="setting", commit=sha, text=f"as the commit's code ran: {name} {before!r} -> {after!r}")
    if good.throughput and bad.throughput and good.throughput.recomputed_flops != bad.throughput.recomputed_flops:
        before, after = good.throughput.recomputed_flops, bad.throughput.recomputed_flops
        yield Evidence(
            kind="flops",
            commit=sha,
            text=f"recomputed work per step and GPU goes from {before / 1e12:,.1f} to {after / 1e12:,.1f} TFLOP",
        )


def _recompute_changes(f: Findings) -> Iterator[Evidence]:
    for changes in f.changes:
        if changes.kinds != ("none",):
            yield Evidence(
                kind="recompute-change",
                commit=changes.commit.sha,
                text=_describe(changes),
                kinds=list(changes.kinds),
                changes=[change_of(c) for c in changes.changes],
                source=[vars_of(s) for s in changes.source],
            )


def vars_of(source) -> dict:
    return {
        "file": source.file,
        "symbol": source.symbol,
        "kind": source.kind,
        "line": source.line,
        "detail": source.detail,
    }


def _describe(changes: CommitChanges) -> str:
    settings = [f"{c.field} {c.old!r} -> {c.new!r} ({c.file}:{c.line})" for c in changes.changes[:3]]
    places = list(dict.fromkeys(f"{s.file}:{s.line} {s.symbol}".strip() for s in changes.source))[:3]
    more = len(changes.changes) + len(changes.source) - len(settings) - len(places)
    found = "; ".join(settings + places) + (f"; {more} more" if more > 0 else "")
    return f"{', '.join(changes.kinds)}: {found}" if found else ", ".join(changes.kinds)


def _skipped(f: Findings) -> Iterator[Evidence]:
    for index in sorted(f.sides):
        if f.sides[index] == "skip" and index in f.results:
            result = f.results[index]
            yield Evidence(
                kind="skipped",
                commit=f.commit(index).sha,
                text=f"could not be measured: {result.status} at {result.stage}: {result.reason}",
            )


def _provenance(f: Findings) -> Iterator[Evidence]:
    result: ProbeResult = f.results[f.last if f.culprit is None else f.culprit]
    if result.provenance and result.probe == "golden":
        (path,) = result.provenance.modules
        yield Evidence(kind="provenance", commit=result.revision, text=f"recorded in {path}")
    elif result.provenance:
        proof = result.provenance
        packages = ", ".join(f"{name} {version}" for name, version in sorted(proof.packages.items()))
        yield Evidence(
            kind="provenance",
            commit=result.revision,
            text=f"{len(proof.modules)} modules ran from the commit ({proof.megatron_source}); {packages}; "
            f"attention backend {proof.attention_backend or 'not known'}",
        )
    for note in (*f.notes, *result.notes):
        yield Evidence(kind="note", text=note)
