"""What the simulated GPU knows of small tensors. The same operators on CPU tensors are the oracle."""

from collections import defaultdict

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from bisect_recompute.probe.gpu import GPUS
from bisect_recompute.probe.simulate.arithmetic import UnknownValue
from bisect_recompute.probe.simulate.device import SimulatedGpu
from bisect_recompute.probe.simulate.memory import MemoryTracker

META = torch.device("meta")
TOKENS, EXPERTS = 96, 8


@pytest.fixture
def gpu():
    with SimulatedGpu(MemoryTracker(defaultdict(lambda: None)), GPUS["h100"]) as simulated:
        yield simulated


def unknown(*shape):
    return torch.empty(shape, device=META)


def routing_map(scores, k):
    chosen = scores.topk(k, dim=1).indices
    return torch.zeros(scores.shape, dtype=torch.int32, device=META).scatter(1, chosen, 1).bool()


@pytest.mark.parametrize("k", [1, 2, 3, 8])
def test_unknown_scores_are_routed_evenly(gpu, k):
    chosen = unknown(TOKENS, EXPERTS).topk(k, dim=-1).indices
    assert chosen.tolist() == [[(i * k + j) % EXPERTS for j in range(k)] for i in range(TOKENS)]
    assert routing_map(unknown(TOKENS, EXPERTS), k).sum(dim=0).tolist() == [TOKENS * k // EXPERTS] * EXPERTS


@pytest.mark.parametrize(("capacity", "kept"), [(30, 24), (24, 24), (10, 10)])
def test_an_expert_with_room_keeps_all_its_tokens(gpu, capacity, kept):
    """24 of 96 tokens go to each of 8 experts (top 2); their probabilities are unknown, and more than the others' 0."""
    chosen = unknown(TOKENS, EXPERTS).topk(2, dim=1).indices
    probabilities = torch.zeros(TOKENS, EXPERTS, device=META).scatter(1, chosen, unknown(TOKENS, 2))
    inside = torch.zeros(TOKENS, EXPERTS, device=META).scatter(0, probabilities.topk(capacity, dim=0).indices, 1).bool()
    assert torch.logical_and(routing_map(unknown(TOKENS, EXPERTS), 2), inside).sum(dim=0).tolist() == [kept] * EXPERTS


INTEGERS = st.lists(st.integers(0, 9), min_size=1, max_size=12)
STEPS = {
    "cumsum": lambda t: t.cumsum(0),
    "sort": lambda t: torch.sort(t, stable=True)[1],
    "argsort": lambda t: t.argsort(descending=True, stable=True),
    "flip": lambda t: t.flip(0),
    "mod": lambda t: t % 7,
    "mask": lambda t: t[t > 3],
    "masked_select": lambda t: torch.masked_select(t, t != 2),
    "nonzero": lambda t: t.nonzero().view(-1),
    "where": lambda t: torch.where(t > 4, t, torch.zeros_like(t)),
    "repeat": lambda t: torch.repeat_interleave(t % 3),
    "unique": lambda t: torch.unique(t),
    "consecutive": lambda t: torch.unique_consecutive(t, return_counts=True)[1],
    "bincount": lambda t: torch.bincount(t % 5, minlength=3),
    "histc": lambda t: torch.histc((t % 8).float(), bins=8, min=0, max=8).long(),
    "cat": lambda t: torch.cat([t, t.new_full((2,), 5)]),
    "roll": lambda t: t.roll(1),
    "every second": lambda t: t[::2],
    "into a view": lambda t: _into_a_view(t),
    "gather": lambda t: t.gather(0, torch.arange(t.numel(), device=t.device)),
    "one hot": lambda t: torch.zeros((t.numel(), 4), dtype=t.dtype, device=t.device)
    .scatter(1, (t % 4).unsqueeze(1), 1).sum(dim=0),
    "as bytes": lambda t: t.to(torch.int32).clone(memory_format=torch.contiguous_format).view(torch.uint8).long()[::4],
}


def _into_a_view(t):
    copy = t.clone()
    copy[:1] += 3
    copy.view(-1)[-1:].fill_(1)
    return copy


@given(numbers=INTEGERS, steps=st.lists(st.sampled_from(sorted(STEPS)), max_size=6))
def test_known_numbers_stay_known(numbers, steps):
    """Numbers and shapes after any operators are those that the CPU computes."""
    on_cpu = torch.tensor(numbers)
    with SimulatedGpu(MemoryTracker(defaultdict(lambda: None)), GPUS["h100"]):
        simulated = torch.tensor(numbers).to(META)
        for step in steps:
            if not on_cpu.numel():
                break
            on_cpu, simulated = STEPS[step](on_cpu), STEPS[step](simulated)
            assert simulated.shape == on_cpu.shape
        assert simulated.to("cpu").tolist() == on_cpu.tolist()
        assert on_cpu.numel() == 0 or simulated.sum().item() == on_cpu.sum().item()


def test_an_unknown_integer_is_refused_by_name(gpu):
    counts = torch.empty(5, dtype=torch.int64, device=META)
    for read in (lambda: counts[0].item(), counts.tolist, lambda: counts.to("cpu"), lambda: unknown(5)[counts > 2]):
        with pytest.raises(UnknownValue, match=r"int64 \[\d*\]|int64 \[\]|bool \[5\]"):
            read()


def test_what_is_written_over_is_no_longer_known(gpu):
    counts = torch.zeros(4, dtype=torch.int64, device=META)
    counts.copy_(torch.empty(4, dtype=torch.int64, device=META))
    with pytest.raises(UnknownValue):
        counts.tolist()
    counts.fill_(3)
    assert counts.tolist() == [3] * 4
    counts.random_(5)
    with pytest.raises(UnknownValue):
        counts.tolist()


def test_losses_norms_and_checks_for_overflow_are_harmless(gpu):
    loss = unknown(16).sum()
    assert loss.item() == 0.0
    assert not torch.isnan(loss)
    assert not (torch.isinf(unknown(16)).any() | (loss > 3))


def test_a_count_beside_an_unknown_loss_stays_known(gpu):
    mask = torch.ones(48, device=META)
    both = torch.cat([unknown(48).sum().view(1), mask.sum().view(1)])
    assert both[1].clone().to(torch.int).item() == 48
    assert both[0].item() == 0.0 and not both[0].isnan()
    with pytest.raises(UnknownValue):
        both[0].to(torch.int).item()


@pytest.fixture
def eight_ranks():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group(backend="fake", store=FakeStore(), rank=3, world_size=8)
    yield
    dist.destroy_process_group()


def test_collectives_answer_as_if_every_rank_held_the_same(gpu, eight_ranks):
    own = torch.arange(16).to(META)

    def received(numel):
        return torch.empty(numel, dtype=torch.int64, device=META)

    total, gathered, swapped, uneven = own.clone(), received(128), received(16), received(24)
    dist.all_reduce(total)
    assert total.tolist() == [8 * i for i in range(16)]
    dist.all_gather_into_tensor(gathered, own)
    assert gathered.tolist() == list(range(16)) * 8
    dist.all_to_all_single(swapped, own)
    assert swapped.tolist() == [6, 7] * 8  # rank 3's part of each peer's buffer
    dist.all_to_all_single(uneven, own, [3] * 8, [1, 1, 1, 3, 1, 1, 1, 7])
    assert uneven.tolist() == [3, 4, 5] * 8
    scattered = received(2)
    dist.reduce_scatter_tensor(scattered, own)
    assert scattered.tolist() == [48, 56]
    dist.recv(scattered, src=0)
    with pytest.raises(UnknownValue):
        scattered.tolist()
