"""How each algorithm communicates: what is exchanged, when, and what it keeps."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence

from bluecomm.bench.prediction import exchanges
from bluecomm.bench.prediction.exchanges import (
    Pattern,
    hops,
    machines_of,
    symmetric_hops,
)
from bluecomm.bench.prediction.links import Cluster
from bluecomm.bench.training.contenders import DDP, Contender
from bluecomm.optim.algorithms.one_sided import OneSided
from bluecomm.optim.algorithms.stateful_averaging import StatefulAveraging
from bluecomm.optim.registry import get_algorithm

# What the engine has for a link (four chunks of 256 KiB), and to stage tensors in.
_LINK_NBYTES = 1 << 20
_ENGINE_NBYTES = 8 << 20

Peers = Callable[[Cluster, int, float], int]
"""From the cluster, the number of ranks and the bytes to a rank's connections."""


class When(enum.Enum):
    """When an exchange may run."""

    BACKWARD = "as the gradients of a bucket are in"
    HIDDEN = "from the start of the step to its end"
    AFTER = "when the step is over"


@dataclasses.dataclass(frozen=True)
class Method:
    """How an algorithm communicates.

    Attributes:
        pattern: What one exchange costs, as the mean over rounds.
        peers: The connections of a rank to other machines.
        when: When it runs; ``None``: as the contender's order says.
        tensors: How many are exchanged in a round, each of the size of the model.
        deferred: How many of them, the last, are not used before the next step's
            update; of methods that exchange after the step.
    """

    pattern: Pattern
    peers: Peers
    when: When | None = None
    tensors: int = 1
    deferred: int = 0

    def runs(self, contender: Contender) -> When:
        """Return when the exchanges of a contender run."""
        if self.when is not None:
            return self.when
        return When.HIDDEN if contender.order == "cta" else When.AFTER


def _everyone(cluster: Cluster, ranks: int, nbytes: float) -> int:
    """Connect with every rank of other machines."""
    return ranks - machines_of(cluster, ranks)[1]


def _all(cluster: Cluster, ranks: int, nbytes: float) -> int:
    """Connect as gloo does: everyone with everyone."""
    return ranks - 1


def _machines(cluster: Cluster, ranks: int, nbytes: float) -> int:
    """Connect with those that an allreduce exchanges pieces with."""
    machines, local = machines_of(cluster, ranks)
    return exchanges.allreduce_peers(machines, nbytes / local)


def _one_peer(cluster: Cluster, ranks: int, nbytes: float) -> int:
    machines, _ = machines_of(cluster, ranks)
    return len(_both_ways(hops(machines), machines))


def _neighbors(cluster: Cluster, ranks: int, nbytes: float) -> int:
    return _elsewhere(cluster, ranks, hops(ranks))


def _symmetric(cluster: Cluster, ranks: int, nbytes: float) -> int:
    return _elsewhere(cluster, ranks, symmetric_hops(ranks))


def _neighbors_and_machines(cluster: Cluster, ranks: int, nbytes: float) -> int:
    # Those of an allreduce are among the neighbors, or little more.
    return max(_neighbors(cluster, ranks, nbytes), _machines(cluster, ranks, nbytes))


def _nobody(cluster: Cluster, ranks: int, nbytes: float) -> int:
    return 0


def _elsewhere(cluster: Cluster, ranks: int, distances: Sequence[int]) -> int:
    # Rank 0 has the others of its machine as 1, 2, ...
    _, local = machines_of(cluster, ranks)
    return len({peer for peer in _both_ways(distances, ranks) if peer >= local})


def _both_ways(distances: Sequence[int], size: int) -> set[int]:
    return {peer for hop in distances for peer in (hop, size - hop)}


_STATIC = Method(exchanges.neighbor_allreduce, _neighbors, When.AFTER)
# Parameters, and what is tracked, which is for the next update.
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
# On the topologies that they take while nobody has set one.
METHODS: dict[tuple[str, bool], Method] = {
    **BASIC,
    ("exact_diffusion", False): _EXACT,
    ("d2", False): _EXACT,
    ("extra", False): dataclasses.replace(_EXACT, when=When.HIDDEN),
    ("gradient_tracking", False): _TRACKING,
    ("momentum_tracking", False): dataclasses.replace(_TRACKING, deferred=0),
    ("push_diging", False): _TRACKING,
    ("decentlam", False): _STATIC,
    ("gossip_pga", False): Method(
        exchanges.gossip_pga, _neighbors_and_machines, When.AFTER
    ),
    ("local_sgd", False): _MEAN,
    ("diloco", False): _MEAN,
    ("noloco", False): Method(exchanges.random_matching, _everyone, When.AFTER),
    ("win_put", False): _ASYNCHRONOUS,
    ("push_sum", False): _ASYNCHRONOUS,
    ("pull_get", False): dataclasses.replace(
        _ASYNCHRONOUS, pattern=exchanges.neighbor_get
    ),
    ("local", False): Method(exchanges.nothing, _nobody, When.AFTER),
}


def method_of(contender: Contender) -> Method:
    """Return how a contender communicates.

    Raises:
        ValueError: There is no model of it.
    """
    method = METHODS.get((contender.name, contender.is_static))
    if method is None:
        known = ", ".join(dict.fromkeys(name for name, _ in METHODS))
        raise ValueError(
            f"there is no cost model of {contender.label!r}; known are {known}"
        )
    return method


def memory_nbytes(
    contender: Contender, ranks: int, nbytes: int, connections: int
) -> int:
    """Return bytes of a rank: values, gradients, and what communication adds."""
    if contender.name == DDP:
        return 3 * nbytes  # its buckets; what gloo has for its links is not known
    copies = _copies(contender.name, ranks)
    return copies * nbytes + _ENGINE_NBYTES + connections * _LINK_NBYTES


def _copies(name: str, ranks: int) -> int:
    """Return how often a rank has memory of the size of the model."""
    algorithm = get_algorithm(name)
    if issubclass(algorithm, OneSided):
        # Three slots for what each in-neighbor leaves; the own value as it is shown, in
        # two slots more than out-neighbors; push_sum's x beside the parameters.
        window = 4 * len(hops(ranks)) + 2 if ranks > 1 else 0
        return 2 + window + (name == "push_sum" and ranks > 1)
    # Gradients lie in buckets; averaging has a second half for the next values.
    copies = 3 if algorithm.flat_parameters else 2
    if issubclass(algorithm, StatefulAveraging):
        copies += len(algorithm.keeps) + len(algorithm.scratch)
    return copies
