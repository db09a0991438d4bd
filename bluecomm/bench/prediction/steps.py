"""How long a step takes, from what its exchanges cost and when they may run."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import torch

from bluecomm.bench.prediction import exchanges
from bluecomm.bench.prediction.exchanges import Pattern, hops, machines_of
from bluecomm.bench.prediction.links import Cluster
from bluecomm.bench.training.contenders import DDP, Contender
from bluecomm.optim.bucket import build_buckets
from bluecomm.optim.registry import get_algorithm

# Forward takes a third of a step, as in `train`.
_FORWARD_SHARE = 1 / 3
_DDP_FIRST_NBYTES, _DDP_BUCKET_NBYTES = 1 << 20, 25 << 20
# What the engine has for a link (four chunks of 256 KiB), and to stage tensors in.
_LINK_NBYTES = 1 << 20
_ENGINE_NBYTES = 8 << 20

_PATTERNS: dict[tuple[str, bool], Pattern] = {
    (DDP, False): exchanges.ring_allreduce,
    ("gradient_allreduce", False): exchanges.allreduce,
    ("allreduce", False): exchanges.allreduce,
    ("neighbor_allreduce", False): exchanges.one_peer,
    ("neighbor_allreduce", True): exchanges.neighbor_allreduce,
    ("hierarchical_neighbor_allreduce", False): exchanges.hierarchical_one_peer,
    ("hierarchical_neighbor_allreduce", True): exchanges.hierarchical,
}
PREDICTED = tuple(dict.fromkeys(name for name, _ in _PATTERNS))


@dataclasses.dataclass(frozen=True)
class Job:
    """What is trained.

    Attributes:
        layer_nbytes: Bytes of parameters of each layer, in the order of forward.
        layer_shares: Share of the step's time of each layer.
        step_s: Seconds of forward and backward.
    """

    layer_nbytes: Sequence[int]
    layer_shares: Sequence[float]
    step_s: float

    def buckets(self, contender: Contender) -> list[tuple[int, float]]:
        """Return bytes of each bucket, and the second at which its gradients are in."""
        cut = _ddp_buckets if contender.name == DDP else _own_buckets
        forward_s = _FORWARD_SHARE * self.step_s
        # A layer's gradient comes after those of all later layers.
        after = list(itertools.accumulate(reversed(self.layer_shares)))[::-1]
        ready_s = [forward_s + (self.step_s - forward_s) * share for share in after]
        return [
            (sum(self.layer_nbytes[k] for k in layers), ready_s[min(layers)])
            for layers in cut(self.layer_nbytes, contender)
        ]


def _own_buckets(layer_nbytes: Sequence[int], contender: Contender) -> list[list[int]]:
    """Return the layers of each of bluecomm's buckets."""
    limit = contender.bucket_nbytes
    if limit is None:
        limit = get_algorithm(contender.name).default_bucket_nbytes
    tensors = [
        (str(layer), torch.empty(nbytes // 4, device="meta"))
        for layer, nbytes in enumerate(layer_nbytes)
    ]
    buckets = build_buckets(tensors, prefix="", bucket_nbytes=limit)
    return [[int(slot.name) for slot in bucket.slots] for bucket in buckets]


def _ddp_buckets(layer_nbytes: Sequence[int], contender: Contender) -> list[list[int]]:
    """Return the layers of each of DDP's buckets: closed when the limit is reached."""
    later = contender.bucket_nbytes or _DDP_BUCKET_NBYTES
    limit = min(_DDP_FIRST_NBYTES, later)
    buckets: list[list[int]] = [[]]
    for layer in reversed(range(len(layer_nbytes))):
        if sum(layer_nbytes[k] for k in buckets[-1]) >= limit:
            buckets.append([])
            limit = later
        buckets[-1].append(layer)
    return buckets


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A predicted step.

    Attributes:
        contender: Label of the way to train.
        ranks: Number of ranks.
        step_ms: Milliseconds per step.
        efficiency: Share of its speed alone that each rank keeps.
        card_mb: 10^6 bytes that each network card sends in a step.
        messages: Messages that a rank sends in a step.
        connections: Ranks of other machines that a rank has a connection to.
        memory_mb: 10^6 bytes of a rank: values, gradients, what communication adds.
    """

    contender: str
    ranks: int
    step_ms: float
    efficiency: float
    card_mb: float
    messages: float
    connections: int
    memory_mb: float


def predict(job: Job, cluster: Cluster, contender: Contender, ranks: int) -> Prediction:
    """Return the predicted step of a contender.

    Gradients are sent as soon as a bucket is full; CTA sends from the start of the step
    to its end; ATC sends when the step is over. Ranks do not wait for slow ones.

    Raises:
        ValueError: There is no model of the algorithm, or the ranks do not fill their
            machines.
    """
    pattern = _pattern_of(contender)
    nbytes = sum(job.layer_nbytes)
    buckets = job.buckets(contender)
    costs = [pattern(cluster, ranks, size) for size, _ in buckets]
    is_gradient = contender.name in (DDP, "gradient_allreduce")
    free_s = done_s = 0.0
    for cost, (_, ready_s) in zip(costs, buckets, strict=True):
        start_s = max(free_s, ready_s) if is_gradient else free_s
        # gloo finishes an operation before the next one; the engine overlaps them.
        free_s = start_s + (cost.total_s if contender.name == DDP else cost.busy_s)
        done_s = max(done_s, start_s + cost.total_s)
    if is_gradient or contender.order == "cta":
        step_s = max(job.step_s, done_s)
    else:
        step_s = job.step_s + done_s
    connections = _connections(cluster, contender, ranks, nbytes)
    return Prediction(
        contender.label,
        ranks,
        1e3 * step_s,
        job.step_s / step_s,
        sum(cost.card_nbytes for cost in costs) / 1e6,
        sum(cost.messages for cost in costs),
        connections,
        _memory_nbytes(contender, nbytes, connections) / 1e6,
    )


def _pattern_of(contender: Contender) -> Pattern:
    pattern = _PATTERNS.get((contender.name, contender.is_static))
    if pattern is None:
        raise ValueError(
            f"there is no cost model of {contender.label!r}; known are "
            f"{', '.join(PREDICTED)}"
        )
    return pattern


def _memory_nbytes(contender: Contender, nbytes: int, connections: int) -> int:
    """Return bytes of a rank: values, gradients, and what communication adds."""
    if contender.name == DDP:
        return 3 * nbytes  # its buckets; what gloo has for its links is not known
    # Gradients lie in buckets; averaging has a second half for the next values.
    copies = 2 if contender.name == "gradient_allreduce" else 3
    return copies * nbytes + _ENGINE_NBYTES + connections * _LINK_NBYTES


def _connections(
    cluster: Cluster, contender: Contender, ranks: int, nbytes: float
) -> int:
    machines, local = machines_of(cluster, ranks)
    if machines == 1:
        return 0
    if contender.name == DDP:
        return ranks - 1  # gloo connects everyone with everyone
    if contender.name == "neighbor_allreduce" and contender.is_static:
        return len(
            {
                peer
                for hop in hops(ranks)
                for peer in (hop, ranks - hop)
                if peer >= local  # rank 0 has the others of its machine as 1, 2, ...
            }
        )
    if contender.name in ("neighbor_allreduce", "hierarchical_neighbor_allreduce"):
        return len({peer for hop in hops(machines) for peer in (hop, machines - hop)})
    return exchanges.allreduce_peers(machines, nbytes / local)
