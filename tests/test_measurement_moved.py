from probe_results import result, tensors

from bisect_recompute.measurement.moved import moved_files

MLP, ATTENTION, ROPE = (f"megatron/core/{name}.py" for name in ("mlp", "attention", "rope"))


def measured(*groups):
    return result(peak=1, tensors=groups)


def test_files_whose_tensors_come_or_go():
    good = measured(tensors("mlp", (4, 8), 2, MLP), tensors("attn", (4, 4), 3, ATTENTION))
    bad = measured(tensors("mlp", (4, 8), 4, MLP), tensors("attn", (4, 4), 3, ATTENTION))
    assert moved_files(good, bad) == {MLP}
    assert moved_files(bad, good) == {MLP}


def test_another_line_or_another_order_is_no_move():
    good = measured(tensors("mlp", (4, 8), 2, MLP, line=7), tensors("attn", (4, 4), 3, ATTENTION))
    bad = measured(tensors("attn", (4, 4), 3, ATTENTION), tensors("mlp", (4, 8), 2, MLP, line=9))
    assert moved_files(good, bad) == set()


def test_code_that_goes_to_another_file_points_at_both():
    assert moved_files(measured(tensors("mlp", (4, 8), 2, MLP)), measured(tensors("mlp", (4, 8), 2, ROPE))) == {MLP, ROPE}


def test_small_change_beside_a_large_one_is_left_out():
    good = measured(tensors("rope", (1, 1), 1, ROPE))
    bad = measured(tensors("mlp", (400, 8), 2, MLP), tensors("rope", (1, 1), 2, ROPE))
    assert moved_files(good, bad) == {MLP}


def test_nothing_to_compare():
    assert moved_files(result(status="failed"), measured(tensors("mlp", (4, 8), 2, MLP))) == set()
