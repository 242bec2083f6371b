import pytest
from hypothesis import given
from hypothesis import strategies as st
from probe_results import tensors

from bisect_recompute.verdict.tensors import tensor_changes

MLP = "decoder.layers.*.mlp"


def nothing(file, line):
    return None


def told(good, bad, good_text=(), bad_text=()):
    lines = [lambda file, line, text=dict(text): text.get(line) for text in (good_text, bad_text)]
    return [(t.module, t.shape, t.dtype, t.count, t.bytes, t.file, t.line) for t in tensor_changes(good, bad, *lines)]


def test_a_new_tensor_is_told_from_one_whose_line_moved():
    # As in a gated MLP whose linear half is kept once more: line 10 moved to 14, line 15 is new.
    good = [tensors(MLP, (64, 8), 4, line=10)]
    bad = [tensors(MLP, (64, 8), 4, line=14), tensors(MLP, (64, 8), 4, line=15)]
    found = told(good, bad, {10: "x = glu(y)"}, {14: "    x = glu(y)", 15: "    x = x + offset"})
    assert found == [(MLP, [64, 8], "bfloat16", 4, 4 * 64 * 8 * 2, "megatron/core/mlp.py", 15)]


def test_a_line_that_was_only_rewritten_is_no_change():
    good, bad = [tensors(MLP, (64, 8), 4, line=10)], [tensors(MLP, (64, 8), 4, line=10)]
    assert told(good, bad, {10: "x = glu(y)"}, {10: "hidden = glu(y)"}) == []


def test_a_rewritten_and_a_new_line_count_once():
    good = [tensors(MLP, (64, 8), 4, line=10)]
    bad = [tensors(MLP, (64, 8), 4, line=10), tensors(MLP, (64, 8), 2, line=11)]
    (found,) = told(good, bad, {10: "x = glu(y)"}, {10: "hidden = glu(y)", 11: "z = hidden + 1"})
    assert found[3] == 2


@pytest.mark.parametrize("new", ["x_linear + glu_linear_offset", "a_linear + glu_linear_offset"])
def test_of_two_rewritten_lines_the_one_unlike_any_before_is_new(new):
    good = [tensors(MLP, (64, 8), 160, line=191)]
    bad = [tensors(MLP, (64, 8), 160, line=209), tensors(MLP, (64, 8), 80, line=210)]
    old, rewritten = "return activation_func(x[0]) * x[1]", "return activation_func(x_glu) * ("
    (found,) = told(good, bad, {191: old}, {209: rewritten, 210: new})
    assert (found[3], found[6]) == (80, 210)


def test_code_that_moves_to_another_file_is_no_change():
    good, bad = [tensors(MLP, (64, 8), 4, file="a.py")], [tensors(MLP, (64, 8), 4, file="b.py")]
    assert told(good, bad) == []


def test_more_of_the_same_grows():
    assert [
        t.count for t in tensor_changes([tensors(MLP, (2, 2), 3)], [tensors(MLP, (2, 2), 5)], nothing, nothing)
    ] == [2]


def test_largest_first_then_what_went_away_with_a_minus():
    good = [tensors("a", (10, 10), 1)]
    bad = [tensors("b", (5, 5), 1), tensors("c", (100, 10), 1), tensors("b", (5, 5), 1, dtype="float32")]
    assert [(m, d, c, b) for m, _, d, c, b, _, _ in told(good, bad)] == [
        ("c", "bfloat16", 1, 2000),
        ("b", "float32", 1, 100),
        ("b", "bfloat16", 1, 50),
        ("a", "bfloat16", -1, -200),
    ]


def test_without_readable_source_lines_counts_still_hold():
    good = [tensors(MLP, (64, 8), 4, line=10)]
    bad = [tensors(MLP, (64, 8), 4, line=14), tensors(MLP, (64, 8), 4, line=15)]
    assert sum(t.count for t in tensor_changes(good, bad, nothing, nothing)) == 4


groups = st.lists(
    st.builds(
        tensors,
        st.sampled_from("ab"),
        st.sampled_from([(2,), (3, 2)]),
        st.integers(1, 5),
        file=st.sampled_from(["x.py", "y.py"]),
        line=st.integers(1, 3),
    ),
    max_size=6,
)


@given(good=groups, bad=groups)
def test_changes_add_up_to_the_difference(good, bad):
    changes = tensor_changes(good, bad, nothing, nothing)
    assert sum(t.bytes for t in changes) == sum(t.bytes for t in bad) - sum(t.bytes for t in good)
    assert sum(t.count for t in changes) == sum(t.count for t in bad) - sum(t.count for t in good)
