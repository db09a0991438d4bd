"""Costs of one exchange of a bucket, by algorithm and number of ranks.

With ``S`` bytes, ``n`` ranks, ``p`` of them on each of ``m`` machines, latency
``alpha`` and ``beta`` seconds per byte of a network card, ``gamma`` of memory:

* ring allreduce: ``2 (n-1) alpha + 2 (n-1)/n S beta + (n-1)/n S gamma``;
* recursive doubling: ``log2(n) (alpha + S beta + S gamma)``;
* one peer: ``alpha + S beta + S gamma``, whatever ``n``;
* ``d`` neighbors at once: ``alpha + d S beta + d S gamma``.

Source:
    Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations
    in MPICH", IJHPCA 19 (2005). Patarasuk and Yuan, "Bandwidth optimal all-reduce
    algorithms for clusters of workstations", JPDC 69 (2009).
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Callable, Sequence

from bluecomm.bench.prediction.links import Cluster
from bluecomm.topology import default_schedule
from bluecomm.topology.exponential import powers_below
from bluecomm.topology.traffic import messages_leaving, sends_in

# Thresholds of the engine between machines (native/engine/collectives/tuning.h).
_DOUBLING_NBYTES = 32 << 10
# Rows and columns of the matrices that powersgd is assumed to send as factors.
LOW_RANK = 1024
_DIRECT_MEMBERS = 16
_RING_SLICE_NBYTES = 64 << 10
# Default number of rounds from one global average of gossip_pga to the next.
_PERIOD = 8
# Default number of steps between the last rounds of zero_one_adam.
_LOCAL_STEPS = 16


@dataclasses.dataclass(frozen=True)
class BucketExchange:
    """Cost of one exchange of one bucket.

    Attributes:
        latency_s: Seconds during which the network card is free for other buckets.
        busy_s: Seconds during which the card is busy.
        card_nbytes: Bytes that each network card sends.
        messages: Messages that a rank sends.
    """

    latency_s: float = 0.0
    busy_s: float = 0.0
    card_nbytes: float = 0.0
    messages: float = 0.0

    @property
    def total_s(self) -> float:
        """Duration of the exchange by itself, in seconds."""
        return self.latency_s + self.busy_s


Pattern = Callable[[Cluster, int, float], BucketExchange]
"""Maps the cluster, the number of ranks and the bytes to the cost."""


def machines_of(cluster: Cluster, ranks: int) -> tuple[int, int]:
    """Return the number of machines and the ranks on each.

    Raises:
        ValueError: The ranks do not fill the last machine.
    """
    local = min(cluster.ranks_per_machine, ranks)
    if ranks % local:
        raise ValueError(
            f"{ranks} ranks do not fill machines of {local}; choose a multiple"
        )
    return ranks // local, local


def hops(size: int) -> list[int]:
    """Return the distances of the exponential-2 graph: 1, 2, 4, ... below ``size``."""
    return powers_below(size, 2)


def symmetric_hops(size: int) -> list[int]:
    """Return the distances of ``SymmetricExponentialGraph(size, base=2)``."""
    forth = powers_below(size // 2 + 1, 2)
    return sorted({*forth, *(size - hop for hop in forth)})


def ring_hops(size: int) -> list[int]:
    """Return the distances of a ring of ranks."""
    return sorted({1 % size, size - 1} - {0})


def ring_allreduce(cluster: Cluster, ranks: int, nbytes: float) -> BucketExchange:
    """Return the cost of gloo's ring over all ranks: one flow leaves each machine."""
    machines, _ = machines_of(cluster, ranks)
    share = (ranks - 1) / ranks
    if machines == 1:
        link = cluster.memory
        return BucketExchange(
            2 * (ranks - 1) * link.alpha_s + 3 * share * nbytes * link.beta_s,
            messages=2.0 * (ranks - 1),
        )
    return BucketExchange(
        2 * (ranks - 1) * cluster.network.alpha_s
        + share * nbytes * cluster.memory.beta_s,
        2 * share * nbytes * cluster.network.beta_s,
        2 * share * nbytes,
        2.0 * (ranks - 1),
    )


def allreduce(cluster: Cluster, ranks: int, nbytes: float) -> BucketExchange:
    """Return the cost of the engine's allreduce: within machines, then between them."""
    machines, local = machines_of(cluster, ranks)
    inside = _inside(cluster, local, nbytes)
    if machines == 1:
        return inside
    alpha, gamma = cluster.network.alpha_s, cluster.memory.beta_s
    piece, share = nbytes / local, (machines - 1) / machines
    if piece <= _DOUBLING_NBYTES:
        steps: float = (machines - 1).bit_length()
        sent, combined = steps * piece, steps * piece
    else:
        steps = 2 if _is_direct(machines, piece) else 2 * (machines - 1)
        sent, combined = 2 * share * piece, share * piece
    return BucketExchange(
        inside.latency_s + steps * alpha + combined * gamma,
        local * sent * cluster.network.beta_s,
        local * sent,
        inside.messages + steps,
    )


def allreduce_peers(machines: int, piece: float) -> int:
    """Return the number of machines with which each machine exchanges a long piece."""
    return machines - 1 if _is_direct(machines, piece) else 2


def _is_direct(machines: int, piece: float) -> bool:
    """Return whether all machines exchange a piece with all others at once."""
    return machines <= _DIRECT_MEMBERS and (
        machines == 2 or piece / machines < _RING_SLICE_NBYTES
    )


def coded_allreduce(cluster: Cluster, ranks: int, nbytes: float) -> BucketExchange:
    """Return the cost of codes of a quarter of the bytes: an alltoall, an allgather."""
    return _coded(cluster, ranks, nbytes / 4)


def sign_allreduce(cluster: Cluster, ranks: int, nbytes: float) -> BucketExchange:
    """Return the same for codes of a bit per value, and a scale for 4096 values."""
    return _coded(cluster, ranks, nbytes / 32 + nbytes / 4096)


def rare_sign_allreduce(cluster: Cluster, ranks: int, nbytes: float) -> BucketExchange:
    """Return the mean cost of the same in every 16th step, as 0/1 Adam ends."""
    rest = [BucketExchange()] * (_LOCAL_STEPS - 1)
    return _mean([sign_allreduce(cluster, ranks, nbytes), *rest])


def low_rank_allreduce(cluster: Cluster, ranks: int, nbytes: float) -> BucketExchange:
    """Return the cost of two allreduces: of the left and of the right factors.

    The matrices have ``LOW_RANK`` rows and columns, and the factors rank 1.
    """
    one = allreduce(cluster, ranks, nbytes / LOW_RANK)
    return BucketExchange(
        **{key: 2 * value for key, value in dataclasses.asdict(one).items()}
    )


def sparse_allgather(cluster: Cluster, ranks: int, nbytes: float) -> BucketExchange:
    """Return the cost of an allgather of codes of 128 bytes for 4096 values."""
    return _allgather(cluster, ranks, nbytes / 128)


def spectral_allgather(cluster: Cluster, ranks: int, nbytes: float) -> BucketExchange:
    """Return the cost of the same with 32 coefficients of 6 bytes for 4096 values."""
    return _allgather(cluster, ranks, nbytes * 32 * 6 / (4 * 4096))


def _allgather(cluster: Cluster, ranks: int, nbytes: float) -> BucketExchange:
    """Return the cost of sending so many bytes to each other rank."""
    _, local = machines_of(cluster, ranks)
    return _over_graph(cluster, nbytes, ranks - 1, local * (ranks - local))


def _coded(cluster: Cluster, ranks: int, nbytes: float) -> BucketExchange:
    """Return the cost of an alltoall and an allgather of codes of so many bytes."""
    half = _allgather(cluster, ranks, nbytes / ranks)
    return BucketExchange(
        **{key: 2 * value for key, value in dataclasses.asdict(half).items()}
    )


def neighbor_allreduce(cluster: Cluster, ranks: int, nbytes: float) -> BucketExchange:
    """Return the cost of all neighbors of the exponential-2 graph at once."""
    return _circulant(cluster, ranks, nbytes, hops(ranks))


def symmetric_neighbors(cluster: Cluster, ranks: int, nbytes: float) -> BucketExchange:
    """Return the cost of all neighbors of the default graph for a symmetric ``W``."""
    return _circulant(cluster, ranks, nbytes, symmetric_hops(ranks))


def coded_ring(cluster: Cluster, ranks: int, nbytes: float) -> BucketExchange:
    """Return the cost of codes of a quarter of the bytes to the ring's neighbors."""
    return _circulant(cluster, ranks, nbytes / 4, ring_hops(ranks))


def coded_neighbors(cluster: Cluster, ranks: int, nbytes: float) -> BucketExchange:
    """Return the cost of ``symmetric_neighbors``, sent as codes of a quarter."""
    return symmetric_neighbors(cluster, ranks, nbytes / 4)


def neighbor_get(cluster: Cluster, ranks: int, nbytes: float) -> BucketExchange:
    """Return the cost of requests to all exponential-2 neighbors, and their answers."""
    cost = neighbor_allreduce(cluster, ranks, nbytes)
    return dataclasses.replace(
        cost, latency_s=2 * cost.latency_s, messages=2 * cost.messages
    )


def gossip_pga(cluster: Cluster, ranks: int, nbytes: float) -> BucketExchange:
    """Return the mean cost of neighbors, and of all ranks in every eighth round."""
    gossip = neighbor_allreduce(cluster, ranks, nbytes)
    return _mean([gossip] * (_PERIOD - 1) + [allreduce(cluster, ranks, nbytes)])


def desloc(cluster: Cluster, ranks: int, nbytes: float) -> BucketExchange:
    """Return the cost of a mean of the parameters and both moments of Adam."""
    return allreduce(cluster, ranks, 3 * nbytes)


def random_matching(cluster: Cluster, ranks: int, nbytes: float) -> BucketExchange:
    """Return the mean cost of a new random partner in each round."""
    if ranks == 1:
        return BucketExchange()
    _, local = machines_of(cluster, ranks)
    # With an odd number of ranks, one has no partner.
    matched = 1 - ranks % 2 / ranks
    elsewhere = (ranks - local) / (ranks - 1)
    return _over_graph(cluster, nbytes, matched, local * matched * elsewhere)


def server(cluster: Cluster, ranks: int, nbytes: float) -> BucketExchange:
    """Return the cost of a tensor to a rank from each other one, and one back.

    It is that of the rank itself, whose machine sends and receives most.
    """
    _, local = machines_of(cluster, ranks)
    return _over_graph(cluster, nbytes, ranks - 1, ranks - local)


def nothing(cluster: Cluster, ranks: int, nbytes: float) -> BucketExchange:
    """Return the cost of no exchange."""
    return BucketExchange()


def _circulant(
    cluster: Cluster, ranks: int, nbytes: float, distances: Sequence[int]
) -> BucketExchange:
    """Return the cost of sends from each rank to all given distances at once."""
    _, local = machines_of(cluster, ranks)
    sends = [(one, (one + hop) % ranks) for one in range(local) for hop in distances]
    machine_of = [rank // local for rank in range(ranks)]
    leaving = messages_leaving(sends, machine_of)
    return _over_graph(cluster, nbytes, len(distances), leaving)


def one_peer(cluster: Cluster, ranks: int, nbytes: float) -> BucketExchange:
    """Return the mean cost of ``topology="one_peer"`` without a set topology."""
    if ranks == 1:
        return BucketExchange()
    machines, local = machines_of(cluster, ranks)
    costs = [
        _over_graph(cluster, nbytes, 1, leaving)
        for leaving in _leaving_one_peer(machines, local)
    ]
    return _mean(costs)


def _mean(costs: Sequence[BucketExchange]) -> BucketExchange:
    means = {
        field.name: statistics.mean(getattr(cost, field.name) for cost in costs)
        for field in dataclasses.fields(BucketExchange)
    }
    return BucketExchange(**means)


@functools.cache
def _leaving_one_peer(machines: int, local: int) -> tuple[int, ...]:
    """Return the number of messages that leave the first machine, for each round."""
    machine_of = [rank // local for rank in range(machines * local)]
    schedule = default_schedule(machine_of)
    return tuple(
        messages_leaving(sends_in(schedule, number, range(local)), machine_of)
        for number in range(schedule.period or 1)
    )


def hierarchical(cluster: Cluster, ranks: int, nbytes: float) -> BucketExchange:
    """Return the cost of all neighbor machines; each rank sends its share."""
    machines, _ = machines_of(cluster, ranks)
    return _between(cluster, ranks, nbytes, len(hops(machines)))


def hierarchical_one_peer(
    cluster: Cluster, ranks: int, nbytes: float
) -> BucketExchange:
    """Return the cost of one neighbor machine per round."""
    machines, _ = machines_of(cluster, ranks)
    return _between(cluster, ranks, nbytes, min(1, machines - 1))


def _over_graph(
    cluster: Cluster, nbytes: float, degree: float, leaving: float
) -> BucketExchange:
    """Return the cost of sends, given how many of a machine's messages leave it."""
    alpha = cluster.network.alpha_s if leaving else cluster.memory.alpha_s
    return BucketExchange(
        alpha * bool(degree) + degree * nbytes * cluster.memory.beta_s,
        leaving * nbytes * cluster.network.beta_s,
        leaving * nbytes,
        float(degree),
    )


def _between(
    cluster: Cluster, ranks: int, nbytes: float, degree: int
) -> BucketExchange:
    _, local = machines_of(cluster, ranks)
    inside = _inside(cluster, local, nbytes)
    share = nbytes / local
    return BucketExchange(
        inside.latency_s
        + cluster.network.alpha_s * bool(degree)
        + degree * share * cluster.memory.beta_s,
        degree * nbytes * cluster.network.beta_s,
        degree * nbytes,
        inside.messages + degree,
    )


def _inside(cluster: Cluster, local: int, nbytes: float) -> BucketExchange:
    """Return the cost of reduce-scatter and all-gather within a machine, in memory."""
    if local == 1:
        return BucketExchange()
    passes = 2 * (local - 1) / local * nbytes
    return BucketExchange(
        2 * cluster.memory.alpha_s + passes * cluster.memory.beta_s,
        messages=2.0 * (local - 1),
    )
