"""Decentralized methods with the recursions of their papers, and how they train.

The functions are bodies of ranks, whose model and data ``logistic`` has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

import bluecomm as bf
from tests.support.logistic import Logistic, data_of, start_of
from tests.support.method_recursions import (
    MATCHINGS,
    MOMENTUM,
    RANKS,
    RATE,
    augmented,
    augmented_every_2,
    augmented_of_all,
    augmented_on_matchings,
    averaging,
    consensus,
    d2,
    decentlam,
    diffusion,
    diging,
    diloco,
    exact_diffusion,
    extra,
    gasloc,
    gossip_pga,
    local_sgd,
    mean_consensus,
    mixing_diloco,
    momentum_tracking,
    noloco,
    overlapping_diloco,
    push_diging,
    streaming_diloco,
    streaming_noloco,
)

# Number of steps that are compared with the recursion.
FEW = 9


@dataclasses.dataclass(frozen=True)
class Method:
    """An algorithm, its options, and the recursion of its paper."""

    paper: Callable
    algorithm: str
    options: dict = dataclasses.field(default_factory=dict)
    momentum: float = 0.0
    # Number of steps until it has converged.
    many: int = FEW
    # Kind of its steps: "plain", with a "closure", or under a "scaler".
    how: str = "plain"


EVERY_3 = {"num_steps_per_communication": 3}
EVERY_4 = {"num_steps_per_communication": 4}
OUTER = {"outer_lr": 0.8, "outer_momentum": 0.3}
STREAM = {**OUTER, **EVERY_4, "fragments": 2, "overlap": 1, "mixing": 0.5}
EXACT = {
    "exact_diffusion": Method(exact_diffusion, "exact_diffusion", many=120),
    "d2": Method(d2, "d2", many=100),
    "extra": Method(extra, "extra", many=120),
    "diging": Method(diging, "gradient_tracking", {"order": "cta"}, many=180),
    "augmented": Method(augmented, "gradient_tracking", many=150),
    "matchings": Method(
        augmented_on_matchings, "gradient_tracking", {"topology": MATCHINGS}, many=200
    ),
    "push_diging": Method(push_diging, "push_diging", many=200),
    "momentum_tracking": Method(
        momentum_tracking, "momentum_tracking", {}, MOMENTUM, many=240
    ),
}
BIASED = {
    "atc": Method(diffusion, "neighbor_allreduce", {"order": "atc"}, many=80),
    "cta": Method(consensus, "neighbor_allreduce", {"order": "cta"}, many=80),
    "decentlam": Method(decentlam, "decentlam", {"momentum": MOMENTUM}, many=150),
    "gossip_pga": Method(gossip_pga, "gossip_pga", {"period": 3}, many=81),
}
SIMPLE = {"outer_lr": 1.0, "outer_momentum": 0.0, **EVERY_3}
EVERYONE = {"topology": bf.topology.StaticTopology(bf.FullyConnectedGraph(RANKS))}
# Options for which a method equals a simpler one.
REDUCED = {
    "gossip_pga, always global": Method(averaging, "gossip_pga", {"period": 1}),
    "gossip_pga, never global": Method(diffusion, "gossip_pga", {"period": 1000}),
    "decentlam, no momentum": Method(diffusion, "decentlam", {"momentum": 0.0}),
    "gasloc, plain, all": Method(local_sgd, "gasloc", {**SIMPLE, **EVERYONE}),
    "noloco, plain, all": Method(local_sgd, "noloco", {**SIMPLE, **EVERYONE}),
    "d2, all": Method(averaging, "d2", EVERYONE),
    "tracking, all": Method(augmented_of_all, "gradient_tracking", EVERYONE),
}
STEPPED = {
    "scaler": Method(augmented, "gradient_tracking", how="scaler"),
    "closure": Method(augmented, "gradient_tracking", how="closure"),
    "every_2": Method(
        augmented_every_2, "gradient_tracking", {"num_steps_per_communication": 2}
    ),
    "local_sgd": Method(local_sgd, "local_sgd", EVERY_3),
    "decentralized": Method(mean_consensus, "decentralized"),
    "diloco": Method(
        diloco, "diloco", {"outer_lr": 0.8, "outer_momentum": 0.3, **EVERY_3}
    ),
    "gasloc": Method(
        gasloc,
        "gasloc",
        {"outer_lr": 0.8, "outer_momentum": 0.3, "gossip": 0.9, **EVERY_3},
    ),
    "noloco": Method(
        noloco,
        "noloco",
        {"outer_lr": 0.8, "outer_momentum": 0.3, "pull": 0.9, **EVERY_3},
    ),
    "diloco, streaming": Method(streaming_diloco, "diloco", STREAM),
    "diloco, overlapping": Method(
        overlapping_diloco, "diloco", {**OUTER, **EVERY_4, "overlap": 2}
    ),
    "diloco, mixing": Method(
        mixing_diloco, "diloco", {**OUTER, **EVERY_3, "mixing": 0.25}
    ),
    "noloco, streaming": Method(streaming_noloco, "noloco", {**STREAM, "pull": 0.9}),
}
METHODS = EXACT | BIASED | STEPPED | REDUCED


def make(method):
    """Return a model and its optimizer."""
    model = Logistic(start_of(bf.rank()))
    sgd = torch.optim.SGD(model.parameters(), RATE, momentum=method.momentum)
    # A bucket for each parameter.
    return model, bf.DistributedOptimizer(
        sgd, model, algorithm=method.algorithm, bucket_bytes=8, **method.options
    )


def train(model, optimizer, steps, how="plain"):
    """Take steps with full gradients."""
    features, labels = (torch.as_tensor(each) for each in data_of(bf.rank()))
    scaler = torch.amp.GradScaler("cpu", init_scale=64, enabled=how == "scaler")

    def backward():
        optimizer.zero_grad()
        loss = scaler.scale(model(features, labels))
        loss.backward()
        return loss

    for _ in range(steps):
        if how == "closure":
            optimizer.step(backward)
        else:
            backward()
            scaler.step(optimizer)
            scaler.update()


def vector_of(model, optimizer):
    """Return the final parameters."""
    optimizer.synchronize()
    return model.vector.detach().numpy().copy()


def set_line():
    """Set the line as topology, with its weights."""
    bf.set_topology(bf.MeshGrid2DGraph(RANKS, (1, RANKS)), is_weighted=True)
