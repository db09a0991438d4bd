"""Predicts the time of a step from the costs and the timing of its exchanges."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import torch

from bluecomm.bench.prediction.exchanges import machines_of
from bluecomm.bench.prediction.links import Cluster
from bluecomm.bench.prediction.methods import BASIC, When, memory_nbytes, method_of
from bluecomm.bench.training.contenders import DDP, Contender
from bluecomm.optim.buckets.bucket import build_buckets
from bluecomm.optim.registry import get_algorithm

# The forward pass takes a third of a step, as in `train`.
_FORWARD_SHARE = 1 / 3
_DDP_FIRST_NBYTES, _DDP_BUCKET_NBYTES = 1 << 20, 25 << 20

# The default algorithms; METHODS has more.
PREDICTED = tuple(dict.fromkeys(name for name, _ in BASIC))


@dataclasses.dataclass(frozen=True)
class TrainingJob:
    """The model and its step.

    Attributes:
        layer_nbytes: Bytes of parameters of each layer, in the order of forward.
        layer_shares: Share of the step's time of each layer.
        step_s: Seconds of forward and backward.
    """

    layer_nbytes: Sequence[int]
    layer_shares: Sequence[float]
    step_s: float

    def buckets(self, contender: Contender) -> list[tuple[int, float]]:
        """Return each bucket's bytes, and the second when its gradients are ready."""
        cut = _ddp_buckets if contender.name == DDP else _own_buckets
        forward_s = _FORWARD_SHARE * self.step_s
        # A layer's gradient is computed after those of all later layers.
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
        efficiency: Speed of a rank relative to its speed alone.
        card_mb: 10^6 bytes that each network card sends in a step.
        messages: Messages that a rank sends in a step.
        connections: Number of a rank's connections to ranks of other machines.
        memory_mb: 10^6 bytes of a rank: values, gradients, memory for communication.
    """

    contender: str
    ranks: int
    step_ms: float
    efficiency: float
    card_mb: float
    messages: float
    connections: int
    memory_mb: float


def predict(
    job: TrainingJob, cluster: Cluster, contender: Contender, ranks: int
) -> Prediction:
    """Predict the step of a contender.

    Gradients are sent as soon as a bucket is full. CTA sends during the whole step. ATC
    sends when the step has ended, and tracked tensors have until the end of the next
    step. All ranks are equally fast. If not every step has a round, the numbers are
    means over steps.

    Raises:
        ValueError: No model of the algorithm exists, or the ranks do not fill their
            machines.
    """
    method = method_of(contender)
    nbytes = sum(job.layer_nbytes)
    buckets = job.buckets(contender) * method.tensors
    costs = [method.pattern(cluster, ranks, size) for size, _ in buckets]
    when = method.runs(contender)
    free_s = done_s = 0.0
    done_by = []
    for cost, (_, ready_s) in zip(costs, buckets, strict=True):
        start_s = max(free_s, ready_s) if when is When.BACKWARD else free_s
        # gloo runs one operation after the other; the engine overlaps them.
        free_s = start_s + (cost.total_s if contender.name == DDP else cost.busy_s)
        done_s = max(done_s, start_s + cost.total_s)
        done_by.append(done_s)
    exposed_s = max(0.0, done_s - job.step_s)
    if when is When.AFTER:
        kept = method.tensors - method.deferred
        exposed_s = max(exposed_s, done_by[len(buckets) * kept // method.tensors - 1])
    step_s = job.step_s + exposed_s / contender.every
    connections = 0
    if machines_of(cluster, ranks)[0] > 1:
        connections = method.peers(cluster, ranks, nbytes)
    return Prediction(
        contender.label,
        ranks,
        1e3 * step_s,
        job.step_s / step_s,
        sum(cost.card_nbytes for cost in costs) / 1e6 / contender.every,
        sum(cost.messages for cost in costs) / contender.every,
        connections,
        memory_nbytes(contender, ranks, nbytes, connections) / 1e6,
    )
