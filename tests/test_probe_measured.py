"""The simulator against peaks measured on H100 (fixtures/measured)."""

import json

import pytest
from simulation import ROOT, recipe

MEASURED = json.loads((ROOT / "fixtures" / "measured" / "peaks.json").read_text())


@pytest.fixture(scope="module")
def run(simulate):
    known = {}

    def run(case):
        if case not in known:
            known[case] = simulate(recipe(str(ROOT / "fixtures" / "measured" / f"{case}.yaml")))
        return known[case]

    return run


@pytest.mark.parametrize(
    ("case", "percent"),
    [("gpt3_7b_tp4_pp1_memory_speed", 0.1), ("gpt3_mcore_te_tp1_pp1_uniform_full_recompute", 0.5)],
)
def test_peaks_and_what_stays_are_close_to_the_h100(run, case, percent):
    measured = MEASURED[case]
    for name, value in measured.items():
        assert getattr(run(case).memory, name) == pytest.approx(value, rel=percent / 100), name


def test_a_step_takes_about_as_long_as_on_the_h100(run):
    """Kernels and links at their best, and a CPU that is never late: the measured iteration is longer."""
    case = "gpt3_7b_tp4_pp1_memory_speed"
    cases = json.loads((ROOT / "fixtures" / "measured" / "iteration-times.json").read_text())["cases"]
    measured = next(c["measured"] for c in cases if c["case"].endswith(case) and c["gpu"] == "h100")
    assert 0.6 < run(case).throughput.step_seconds / measured["median_iteration_seconds"] < 1
