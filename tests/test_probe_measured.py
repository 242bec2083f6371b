"""The simulator against peaks measured on H100 (fixtures/measured)."""

import json

import pytest
from simulation import ROOT, recipe

MEASURED = json.loads((ROOT / "fixtures" / "measured" / "peaks.json").read_text())


@pytest.mark.parametrize(
    ("case", "percent"),
    [("gpt3_7b_tp4_pp1_memory_speed", 0.1), ("gpt3_mcore_te_tp1_pp1_uniform_full_recompute", 0.5)],
)
def test_peaks_and_what_stays_are_close_to_the_h100(simulate, case, percent):
    measured = MEASURED[case]
    memory = simulate(recipe(str(ROOT / "fixtures" / "measured" / f"{case}.yaml"))).memory
    for name, value in measured.items():
        assert getattr(memory, name) == pytest.approx(value, rel=percent / 100), name
