"""How often noisy A/B experiments with and without a shift are judged right.

    python tests/benchmarks/noise_study.py [EXPERIMENTS]

Each experiment: N runs of two commits; the step time of a run has noise of 0.5 to 4 % (log-uniform): Gaussian, or with a
heavy tail (Student's t, 3 degrees), or now and then (10 %) slowed by 10 % (a straggling node). A false alarm is "different" without a shift, at threshold 0,
confidence 0.95. Power: "different" where the shift is what the experiment itself gives as the smallest that it shows.
"""

from __future__ import annotations

import math
import random
import sys

from bisect_recompute.measurement.samples import Comparison, compare_samples

NOISES = ("gauss", "heavy tail", "stragglers")


def run(rng: random.Random, deviation: float, noise: str) -> float:
    """A step time; 1 without noise."""
    if noise == "heavy tail":
        return math.exp(deviation * rng.gauss(0, 1) / math.sqrt(rng.gammavariate(1.5, 2) / 3))
    slowed = 1.1 if noise == "stragglers" and rng.random() < 0.1 else 1.0
    return slowed * math.exp(deviation * rng.gauss(0, 1))


def experiment(rng: random.Random, repeats: int, shift: float, noise: str, deviation: float) -> Comparison:
    good = [run(rng, deviation, noise) for _ in range(repeats)]
    bad = [run(rng, deviation, noise) * (1 + shift) for _ in range(repeats)]
    return compare_samples(good, bad, 0.95)


def study(experiments: int, repeats: int, noise: str, seed: int = 1) -> dict[str, float]:
    rng = random.Random(seed)
    alarms = shown = same = 0
    for _ in range(experiments):
        deviation = math.exp(rng.uniform(math.log(0.005), math.log(0.04)))
        alone = experiment(rng, repeats, 0.0, noise, deviation)
        alarms += alone.outcome(0.0) == "different"
        same += alone.outcome(5.0) == "same"
        shift = alone.smallest_shown_pct / 100
        shown += experiment(rng, repeats, shift, noise, deviation).outcome(0.0) == "different"
    return {"false alarms": alarms / experiments, "power": shown / experiments, "same at 5 %": same / experiments}


def main() -> None:
    experiments = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print(f"{'':12}{'repeats':>8}{'false alarms':>14}{'power':>8}{'same at 5 %':>13}")
    for noise in NOISES:
        for repeats in (4, 6, 10):
            found = study(experiments, repeats, noise)
            print(f"{noise:12}{repeats:8}{found['false alarms']:14.1%}{found['power']:8.1%}{found['same at 5 %']:13.1%}")


if __name__ == "__main__":
    main()
