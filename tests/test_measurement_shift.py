import pytest
from hypothesis import given
from hypothesis import strategies as st
from probe_results import GIB, result

from bisect_recompute.measurement.judge import Judge
from bisect_recompute.measurement.shift import compare
from bisect_recompute.probe.recipe import Thresholds

ONE_AND_FIVE = Thresholds(memory=1.0, throughput=5.0)


def shifted(good, bad, **question) -> set[str]:
    return {name for name, shift in compare(good, bad, ONE_AND_FIVE, **question).items() if shift.shifted}


def test_numbers_units_and_percent():
    shifts = compare(result(peak=50 * GIB, tflops=400.0), result(peak=52 * GIB, tflops=300.0), ONE_AND_FIVE)
    memory, throughput = shifts["memory"], shifts["throughput"]
    assert (memory.good, memory.bad, memory.unit, memory.change_pct) == (50 * GIB, 52 * GIB, "bytes", 4.0)
    assert (throughput.good, throughput.bad, throughput.unit, throughput.change_pct) == (400, 300, "TFLOP/s/GPU", -25.0)
    assert memory.shifted and throughput.shifted


@pytest.mark.parametrize(
    "peak, tflops, direction, expected",
    [
        (101, 100, "worse", {"memory"}),
        (100.9, 100, "worse", set()),
        (99, 100, "worse", set()),
        (99, 100, "better", {"memory"}),
        (99, 100, "any", {"memory"}),
        (101, 95, "worse", {"memory", "throughput"}),
        (100, 95.1, "worse", set()),
        (100, 105, "worse", set()),
        (100, 105, "better", {"throughput"}),
        (101, 105, "any", {"memory", "throughput"}),
    ],
)
def test_worse_is_memory_up_and_throughput_down(peak, tflops, direction, expected):
    good, bad = result(peak=10_000, tflops=100), result(peak=round(100 * peak), tflops=tflops)
    assert shifted(good, bad, direction=direction) == expected


def test_only_the_metric_asked_for_counts_as_shifted():
    good, bad = result(peak=100, tflops=100), result(peak=200, tflops=50)
    assert shifted(good, bad, metric="memory") == {"memory"}
    assert shifted(good, bad, metric="throughput") == {"throughput"}


def test_equal_values_are_no_shift_even_at_threshold_zero():
    assert not compare(result(peak=7), result(peak=7), Thresholds(memory=0, throughput=0))["memory"].shifted


def test_running_out_of_memory_is_a_shift_without_a_number():
    good, bad = result(peak=79 * GIB), result(status="oom")
    assert shifted(good, bad) == {"memory"}
    assert shifted(good, bad, metric="throughput") == set()
    assert shifted(bad, good) == set()
    assert shifted(bad, good, direction="better") == {"memory"}


def test_crossing_the_capacity_by_less_than_the_threshold_is_a_shift():
    good, bad = result(peak=79_900), result(peak=80_100, status="oom")
    shifts = compare(good, bad, ONE_AND_FIVE)
    assert shifts["memory"].shifted and shifts["memory"].out_of_memory == 1
    judge = Judge(shifts)
    assert judge.side(result(peak=79_999)) == "good"
    assert judge.side(result(peak=80_050, status="oom")) == "bad"


def judge(good, bad, **question) -> Judge:
    return Judge(compare(good, bad, ONE_AND_FIVE, **question))


def test_past_half_way_is_bad():
    j = judge(result(peak=100), result(peak=110))
    assert [j.side(result(peak=peak)) for peak in (100, 104, 105, 106, 110, 300, 1)] == [
        "good",
        "good",
        "good",
        "bad",
        "bad",
        "bad",
        "good",
    ]


def test_any_shifted_metric_past_half_way_is_bad():
    j = judge(result(peak=100, tflops=100), result(peak=110, tflops=80))
    assert j.side(result(peak=100, tflops=100)) == "good"
    assert j.side(result(peak=100, tflops=89)) == "bad"
    assert j.side(result(peak=106, tflops=100)) == "bad"


def test_a_metric_that_did_not_shift_has_no_say():
    j = judge(result(peak=100, tflops=100), result(peak=110, tflops=99))
    assert j.side(result(peak=100, tflops=1)) == "good"


@pytest.mark.parametrize("status", ["failed", "timeout", "unbuildable"])
def test_what_could_not_be_measured_is_skipped(status):
    assert judge(result(peak=100), result(peak=110)).side(result(status=status)) == "skip"


def test_out_of_memory_without_a_number_is_the_side_of_more_memory():
    assert judge(result(peak=100), result(peak=110)).side(result(status="oom")) == "bad"
    assert judge(result(peak=110), result(peak=100), direction="better").side(result(status="oom")) == "good"
    assert judge(result(peak=100), result(status="oom")).side(result(peak=10**12)) == "good"
    assert judge(result(tflops=100), result(tflops=50)).side(result(status="oom")) == "skip"


@given(good=st.integers(1, 10**12), bad=st.integers(1, 10**12), direction=st.sampled_from(["worse", "better", "any"]))
def test_endpoints_are_on_their_own_sides(good, bad, direction):
    ends = result(peak=good), result(peak=bad)
    shifts = compare(*ends, ONE_AND_FIVE, direction=direction)
    if shifts["memory"].shifted:
        assert [Judge(shifts).side(end) for end in ends] == ["good", "bad"]
    else:
        assert {Judge(shifts).side(end) for end in ends} == {"skip"}
