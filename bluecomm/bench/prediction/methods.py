"""How each algorithm communicates: exchanges, their timing, and its memory."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence

from bluecomm.bench.prediction import exchanges
from bluecomm.bench.prediction.exchanges import (
    Pattern,
    hops,
    machines_of,
    ring_hops,
    symmetric_hops,
)
from bluecomm.bench.prediction.links import Cluster
from bluecomm.bench.training.contenders import DDP, Contender
from bluecomm.optim.registry import get_algorithm

# The engine's memory for a link (four chunks of 256 KiB), and for staging.
_LINK_NBYTES = 1 << 20
_ENGINE_NBYTES = 8 << 20

Peers = Callable[[Cluster, int, float], int]
"""Maps the cluster, the number of ranks and the bytes to a rank's connections."""


class When(enum.Enum):
    """When an exchange may run."""

    BACKWARD = "when the gradients of a bucket are ready"
    HIDDEN = "during the whole step"
    AFTER = "after the step"


@dataclasses.dataclass(frozen=True)
class Method:
    """How an algorithm communicates.

    Attributes:
        pattern: The cost of one exchange, as the mean over rounds.
        peers: The number of a rank's connections to other machines.
        when: When the exchange runs; ``None``: by the contender's order.
        tensors: The number of tensors per round, each of the model's size.
        deferred: The number of these tensors, counted from the last, that are not used
            before the next step's update; for methods that exchange after the step.
    """

    pattern: Pattern
    peers: Peers
    when: When | None = None
    tensors: int = 1
    deferred: int = 0

    def runs(self, contender: Contender) -> When:
        """Return when a contender's exchanges run."""
        if self.when is not None:
            return self.when
        return When.HIDDEN if contender.order == "cta" else When.AFTER


def _everyone(cluster: Cluster, ranks: int, nbytes: float) -> int:
    """Return the connections to every rank of other machines."""
    return ranks - machines_of(cluster, ranks)[1]


def _all(cluster: Cluster, ranks: int, nbytes: float) -> int:
    """Return gloo's connections: each rank with all others."""
    return ranks - 1


def _machines(cluster: Cluster, ranks: int, nbytes: float) -> int:
    """Return the connections over which an allreduce exchanges pieces."""
    machines, local = machines_of(cluster, ranks)
    return exchanges.allreduce_peers(machines, nbytes / local)


def _one_peer(cluster: Cluster, ranks: int, nbytes: float) -> int:
    machines, _ = machines_of(cluster, ranks)
    return len(_both_ways(hops(machines), machines))


def _neighbors(cluster: Cluster, ranks: int, nbytes: float) -> int:
    return _elsewhere(cluster, ranks, hops(ranks))


def _symmetric(cluster: Cluster, ranks: int, nbytes: float) -> int:
    return _elsewhere(cluster, ranks, symmetric_hops(ranks))


def _ring(cluster: Cluster, ranks: int, nbytes: float) -> int:
    return _elsewhere(cluster, ranks, ring_hops(ranks))


def _neighbors_and_machines(cluster: Cluster, ranks: int, nbytes: float) -> int:
    # An allreduce adds few connections to the neighbors'.
    return max(_neighbors(cluster, ranks, nbytes), _machines(cluster, ranks, nbytes))


def _low_rank_machines(cluster: Cluster, ranks: int, nbytes: float) -> int:
    return _machines(cluster, ranks, nbytes / exchanges.LOW_RANK)


def _nobody(cluster: Cluster, ranks: int, nbytes: float) -> int:
    return 0


def _elsewhere(cluster: Cluster, ranks: int, distances: Sequence[int]) -> int:
    # Ranks 1, 2, ... share the machine of rank 0.
    _, local = machines_of(cluster, ranks)
    return len({peer for peer in _both_ways(distances, ranks) if peer >= local})


def _both_ways(distances: Sequence[int], size: int) -> set[int]:
    return {peer for hop in distances for peer in (hop, size - hop)}


_STATIC = Method(exchanges.neighbor_allreduce, _neighbors, When.AFTER)
# Parameters, and the tracked tensor, which the next update uses.
_TRACKING = dataclasses.replace(_STATIC, tensors=2, deferred=1)
_EXACT = Method(exchanges.symmetric_neighbors, _symmetric, When.AFTER)
_MEAN = Method(exchanges.allreduce, _machines, When.AFTER)
_ASYNCHRONOUS = dataclasses.replace(_STATIC, when=When.HIDDEN)

BASIC: dict[tuple[str, bool], Method] = {
    (DDP, False): Method(exchanges.ring_allreduce, _all, When.BACKWARD),
    ("gradient_allreduce", False): dataclasses.replace(_MEAN, when=When.BACKWARD),
    ("allreduce", False): dataclasses.replace(_MEAN, when=None),
    ("neighbor_allreduce", False): Method(exchanges.one_peer, _one_peer),
    ("neighbor_allreduce", True): dataclasses.replace(_STATIC, when=None),
    ("hierarchical_neighbor_allreduce", False): Method(
        exchanges.hierarchical_one_peer, _one_peer
    ),
    ("hierarchical_neighbor_allreduce", True): Method(
        exchanges.hierarchical, _one_peer
    ),
}
# On their default topologies.
METHODS: dict[tuple[str, bool], Method] = {
    **BASIC,
    ("bytegrad", False): Method(exchanges.coded_allreduce, _everyone, When.BACKWARD),
    ("qadam", False): Method(exchanges.coded_allreduce, _everyone, When.AFTER),
    ("onebit_adam", False): Method(exchanges.sign_allreduce, _everyone, When.AFTER),
    ("zero_one_adam", False): Method(
        exchanges.rare_sign_allreduce, _everyone, When.AFTER
    ),
    ("powersgd", False): Method(
        exchanges.low_rank_allreduce, _low_rank_machines, When.BACKWARD
    ),
    ("demo", False): Method(exchanges.spectral_allgather, _everyone, When.AFTER),
    ("exact_diffusion", False): _EXACT,
    ("d2", False): _EXACT,
    ("extra", False): dataclasses.replace(_EXACT, when=When.HIDDEN),
    ("gradient_tracking", False): _TRACKING,
    ("momentum_tracking", False): dataclasses.replace(_TRACKING, deferred=0),
    ("push_diging", False): _TRACKING,
    ("decentlam", False): _EXACT,
    ("choco", False): Method(exchanges.coded_neighbors, _symmetric, When.AFTER),
    ("low_precision_decentralized", False): Method(
        exchanges.coded_ring, _ring, When.AFTER
    ),
    ("gossip_pga", False): Method(
        exchanges.gossip_pga, _neighbors_and_machines, When.AFTER
    ),
    ("decentralized", False): dataclasses.replace(_MEAN, when=When.HIDDEN),
    ("local_sgd", False): _MEAN,
    ("desloc", False): Method(exchanges.desloc, _machines, When.AFTER),
    ("diloco", False): _MEAN,
    ("sparse_loco", False): Method(exchanges.sparse_allgather, _everyone, When.AFTER),
    ("gasloc", False): Method(exchanges.random_matching, _everyone, When.AFTER),
    ("noloco", False): Method(exchanges.random_matching, _everyone, When.AFTER),
    ("win_put", False): _ASYNCHRONOUS,
    ("push_sum", False): _ASYNCHRONOUS,
    ("pull_get", False): dataclasses.replace(
        _ASYNCHRONOUS, pattern=exchanges.neighbor_get
    ),
    # At most one round per step.
    ("async", False): dataclasses.replace(_MEAN, when=When.HIDDEN),
    ("quorum_diloco", False): Method(exchanges.server, _everyone, When.HIDDEN),
    ("local", False): Method(exchanges.nothing, _nobody, When.AFTER),
}


def method_of(contender: Contender) -> Method:
    """Return how a contender communicates.

    Raises:
        ValueError: No model of the algorithm exists.
    """
    method = METHODS.get((contender.name, contender.is_static))
    if method is None:
        known = ", ".join(dict.fromkeys(name for name, _ in METHODS))
        raise ValueError(
            f"no cost model exists of {contender.label!r}; known are {known}"
        )
    return method


def memory_nbytes(
    contender: Contender, ranks: int, nbytes: int, connections: int
) -> int:
    """Return the bytes of a rank: values, gradients, and memory for communication."""
    if contender.name == DDP:
        return 3 * nbytes  # its buckets; gloo's memory for its links is not known
    copies = get_algorithm(contender.name).memory_in_models(ranks, len(hops(ranks)))
    return copies * nbytes + _ENGINE_NBYTES + connections * _LINK_NBYTES
