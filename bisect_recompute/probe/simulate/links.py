"""How long a collective takes on the links between GPUs: a latency and the bytes over the bandwidth.

Volumes are those of the ring algorithms (Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective Communication
Operations in MPICH"; nccl-tests, doc/PERFORMANCE.md: bus bandwidth). Latencies are NCCL's own for its low-latency
protocol, which it uses for small messages (src/graph/tuning.cc, v2.28: a ring's base latency, and one for each hop over
NVLink or the network).
"""

from __future__ import annotations

from bisect_recompute.probe.gpu import Gpu

BASE = 6.6e-6
NVLINK_HOP = 0.6e-6
NETWORK_HOP = 2.7e-6


def ring(gpu: Gpu, ranks: list[int], rank: int, nbytes: float, rounds: int = 1) -> float:
    """All-gather or reduce-scatter of ``nbytes`` in total (an all-reduce is both: 2 rounds), in seconds. Over several
    NVLink domains every GPU of the group in a domain brings its own network adapter."""
    size, inside, domains = _extent(gpu, ranks, rank)
    share = rounds * (size - 1) / size
    if domains == 1:
        return BASE + rounds * (size - 1) * NVLINK_HOP + share * nbytes / (gpu.nvlink * 1e9)
    hops = rounds * (domains * NETWORK_HOP + (size - domains) * NVLINK_HOP)
    return BASE + hops + share * nbytes / (min(gpu.nvlink, inside * gpu.network) * 1e9)


def all_to_all(gpu: Gpu, ranks: list[int], rank: int, nbytes: float) -> float:
    """Each rank sends ``nbytes`` in total, an equal part to each of the group; the links of a GPU work side by side."""
    size, inside, domains = _extent(gpu, ranks, rank)
    near, far = nbytes * (inside - 1) / size, nbytes * (size - inside) / size
    hop = NVLINK_HOP if domains == 1 else NETWORK_HOP
    return BASE + hop + max(near / (gpu.nvlink * 1e9), far / (gpu.network * 1e9))


def one_way(gpu: Gpu, ranks: list[int], rank: int, nbytes: float) -> float:
    """A message to a peer, or a pipelined broadcast."""
    _, _, domains = _extent(gpu, ranks, rank)
    near = domains == 1
    return BASE + (NVLINK_HOP if near else NETWORK_HOP) + nbytes / ((gpu.nvlink if near else gpu.network) * 1e9)


def _extent(gpu: Gpu, ranks: list[int], rank: int) -> tuple[int, int, int]:
    """(size of the group, how many of it are in the rank's own NVLink domain, number of domains)."""
    own = rank // gpu.nvlink_domain
    domains = [r // gpu.nvlink_domain for r in ranks]
    return len(ranks), max(domains.count(own), 1), len(set(domains))
