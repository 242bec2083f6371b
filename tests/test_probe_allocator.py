"""The model of PyTorch's caching allocator, against sequences worked out by hand from its rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_recompute.probe.simulate.allocator import MIB, CachingAllocator, replay


def totals(events, **options):
    done = replay(events, **options)
    return [size for _, size in done.events], done.reserved


def test_small_requests_share_a_segment_of_two_mib():
    given_out, reserved = totals([("a", 1), ("b", 512 * 3), ("c", MIB)])
    assert given_out == [512, 1536, MIB]
    # 512 + 1536 + 1 MiB fit into the first 2 MiB.
    assert reserved == [2 * MIB] * 3


def test_a_request_over_one_mib_takes_twenty_and_one_over_ten_takes_itself():
    assert totals([("a", MIB + 1)])[1] == [20 * MIB]
    assert totals([("a", 10 * MIB)])[1] == [10 * MIB]
    assert totals([("a", 10 * MIB + 512)])[1] == [12 * MIB]


def test_a_large_block_that_is_up_to_one_mib_too_large_is_given_whole():
    # 10.5 MiB of a segment of 12: the remainder of 1.5 MiB is split off.
    assert totals([("a", 10 * MIB + MIB // 2)])[0] == [10 * MIB + MIB // 2]
    # 11.25 MiB of 12: 0.75 MiB is no block of its own.
    assert totals([("a", 11 * MIB + MIB // 4)])[0] == [12 * MIB]
    # Exactly 1 MiB left over is kept as well; one step more is split.
    assert totals([("a", 11 * MIB)])[0] == [12 * MIB]
    assert totals([("a", 11 * MIB - 512)])[0] == [11 * MIB - 512]


def test_what_is_freed_is_given_again_best_fit_first():
    events = [("a", 16 * MIB), ("b", 12 * MIB), ("a", -16 * MIB), ("b", -12 * MIB), ("c", 12 * MIB)]
    assert totals(events) == ([16 * MIB, 12 * MIB, -16 * MIB, -12 * MIB, 12 * MIB],
                              [16 * MIB, 28 * MIB, 28 * MIB, 28 * MIB, 28 * MIB])


def test_neighbours_that_are_free_become_one():
    # Four blocks of 5 MiB fill a segment of 20; when all are back, 18 MiB fit there again, and the 2 MiB left are split off.
    events = [(k, 5 * MIB) for k in "abcd"] + [(k, -5 * MIB) for k in "bdac"] + [("e", 9 * MIB), ("f", 9 * MIB)]
    assert totals(events)[1][-1] == 20 * MIB


def test_fragments_make_reserved_grow():
    # Every second of the 5 MiB blocks stays: 10 MiB are free, and no 9 MiB in one piece.
    events = [(k, 5 * MIB) for k in "abcd"] + [("a", -5 * MIB), ("c", -5 * MIB), ("e", 9 * MIB)]
    assert totals(events)[1][-1] == 40 * MIB
    assert totals(events, expandable_segments=True)[1][-1] == 40 * MIB


def test_an_expandable_segment_grows_at_its_end_by_what_is_missing():
    # 30 MiB map 2 pages of 20; the next 30 use the 10 left over and 20 new ones. Ordinary segments: 30 each.
    events = [("a", 30 * MIB), ("b", 30 * MIB)]
    assert totals(events, expandable_segments=True) == ([30 * MIB, 30 * MIB], [40 * MIB, 60 * MIB])
    # Nothing is given whole there: every remainder is split off.
    assert totals([("a", 11 * MIB)], expandable_segments=True)[0] == [11 * MIB]


SIZES = st.integers(1, 40 * MIB)


@given(st.lists(st.one_of(SIZES, st.integers(0, 30)), max_size=60), st.booleans())
def test_blocks_never_overlap_and_everything_comes_back(script, expandable):
    """Numbers up to 30 free the block at that place of those that live; larger ones are requests."""
    allocator = CachingAllocator(expandable)
    living = []
    for step in script:
        if step <= 30:
            if step < len(living):
                allocator.free(*living.pop(step))
        else:
            living.append((allocator.malloc(step), step))
        assert allocator.allocated == sum(chunk.size for chunk, _ in living) <= allocator.reserved
        assert all(chunk.size >= size and chunk.size - size <= MIB + 511 for chunk, size in living)
        for small in (True, False):
            spans = sorted((c.address, c.address + c.size) for c, s in living if (s <= MIB) == small)
            assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:]))
    for chunk, size in living:
        allocator.free(chunk, size)
    assert allocator.allocated == 0
    free = [c for pool in allocator._pools.values() for c in pool._chunks.values()]
    assert sum(c.size for c in free) == allocator.reserved
    assert all(c.before is None and c.after is None for c in free)


def test_a_free_of_what_is_not_held_is_an_error():
    with pytest.raises(KeyError):
        replay([("a", -512)])
