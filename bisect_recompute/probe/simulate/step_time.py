"""From the seconds of single ranks to those of a whole step: all microbatches, all pipeline stages, the bubble."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from bisect_recompute.probe.simulate.timeline import Timeline


@dataclass(frozen=True)
class StepTime:
    """Seconds of one rank, without waiting for the other pipeline stages. Kinds: see ``timeline``."""

    microbatch: dict[str, float]
    """Kind -> seconds of one microbatch, forward and backward."""
    recomputed: float
    """Of one microbatch, what ran again in backward."""
    once: dict[str, float]
    """Kind -> seconds once a step."""
    microbatches: int
    stage: int
    stages: int
    chunks: int
    """Model chunks of each stage: more than one with an interleaved schedule."""


def step_time(timeline: Timeline, microbatches: int, simulated: int) -> StepTime:
    from megatron.core import parallel_state

    return StepTime(
        microbatch={kind: seconds / simulated for kind, seconds in timeline.microbatches.items()},
        recomputed=timeline.recomputed / simulated, once=dict(timeline.once), microbatches=microbatches,
        stage=parallel_state.get_pipeline_model_parallel_rank(),
        stages=parallel_state.get_pipeline_model_parallel_world_size(),
        chunks=parallel_state.get_virtual_pipeline_model_parallel_world_size() or 1,
    )


def whole_step(ranks: list[StepTime]) -> tuple[Counter, float]:
    """(kind -> seconds of a step, bubble included; recomputed seconds of them) of the slowest stage. A microbatch passes
    all other stages before this one works all the time: the bubble of 1F1B, shorter by the chunks of an interleaved
    schedule (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
    2.2)."""
    slowest = max(ranks, key=_seconds)
    total = Counter(slowest.once)
    for kind, seconds in slowest.microbatch.items():
        total[kind] += seconds * slowest.microbatches
    others = sum(sum(each.microbatch.values()) for each in stages(ranks)) - sum(slowest.microbatch.values())
    total["bubble"] = others / slowest.chunks
    return total, slowest.recomputed * slowest.microbatches


def stages(ranks: list[StepTime]) -> list[StepTime]:
    """One for each pipeline stage; a stage that was not simulated is like the nearest one before it that was, the last
    and the first excepted."""
    known = {each.stage: each for each in ranks}
    count = ranks[0].stages
    return [known[stage] if stage in known else _like(known, stage, count) for stage in range(count)]


def _like(known: dict[int, StepTime], stage: int, count: int) -> StepTime:
    between = [s for s in known if 0 < s < count - 1]
    nearest = max((s for s in between if s < stage), default=next(iter(between), next(iter(known))))
    return known[nearest]


def _seconds(time: StepTime) -> float:
    return sum(time.microbatch.values()) * time.microbatches + sum(time.once.values())
