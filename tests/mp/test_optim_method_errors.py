"""Decentralized methods refuse unsuitable options, with a reason."""

import pytest
import torch

import bluecomm as bf
from tests.support.logistic import Logistic, start_of
from tests.support.methods import (
    EXACT,
    METHODS,
    RANKS,
    Method,
    make,
    set_line,
    train,
)
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp


def refuse_to_join():
    """Call join although the other ranks need this rank's gradients."""
    set_line()
    for method in EXACT.values():
        _, optimizer = make(method)
        with pytest.raises(ValueError, match="a rank without data has none; give all"):
            optimizer.join()
    _, optimizer = make(METHODS["gossip_pga"])
    with pytest.raises(ValueError, match="uneven_inputs=True"):
        optimizer.join()
    for name in ("win_put", "pull_get", "push_sum"):
        _, optimizer = make(Method(None, name))
        with pytest.raises(ValueError, match="waits for no other rank, so a rank"):
            optimizer.join()
    return True


def test_join_is_refused_with_the_reason():
    assert run_ranks(RANKS, refuse_to_join) == [True] * RANKS


def one_step(algorithm, **options):
    """Take one step of a method."""
    model, optimizer = make(Method(None, algorithm, options))
    train(model, optimizer, 1)


def refuse_all():
    """Pass unsuitable topologies and options; all ranks get the same error."""
    symmetric = "symmetric and doubly stochastic"
    with pytest.raises(ValueError, match=r"eigenvalues above -0\.333, and the"):
        one_step("d2", topology=bf.RingGraph(4))
    for name in ("exact_diffusion", "extra", "d2"):
        with pytest.raises(ValueError, match=f"{name} needs a mixing .* {symmetric}"):
            one_step(name, topology=bf.RingGraph(4, connect_style=1))
        with pytest.raises(ValueError, match="same topology in each round"):
            one_step(name, topology=bf.topology.OnePeerExponential(4))
        with pytest.raises(ValueError, match="of 4 ranks, got Static"):
            one_step(name, topology=bf.RingGraph(3))
        with pytest.raises(TypeError, match=r"must be a networkx\.DiGraph"):
            one_step(name, topology="one_peer")
    for name in ("gradient_tracking", "momentum_tracking"):
        with pytest.raises(ValueError, match=f"{name} needs a doubly stochastic"):
            one_step(name, topology=bf.topology.OnePeer(bf.StarGraph(4)))
    bf.set_topology(bf.StarGraph(4), is_weighted=False)
    with pytest.raises(ValueError, match="does not hold for StaticTopology"):
        one_step("gradient_tracking")
    with pytest.raises(ValueError, match=symmetric):
        one_step("extra")
    bf.set_topology(bf.StarGraph(4), is_weighted=True)
    for name in ("gradient_tracking", "extra"):
        one_step(name)
    for name, options, text in (
        ("decentlam", {"momentum": 1.0}, "momentum must be at least 0 .* got 1.0"),
        ("diloco", {"outer_momentum": -0.1}, "outer_momentum must be at least 0"),
        ("diloco", {"outer_lr": 0.0}, "outer_lr must be above 0, got 0.0"),
        ("noloco", {"pull": -1.0}, "pull must be above 0"),
        ("gasloc", {"gossip": 0.0}, "gossip must be above 0"),
        ("diloco", {"fragments": 4}, "divide num_steps_per_communication=30 among"),
        ("gossip_pga", {"period": 0}, "period must be at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=text):
            one_step(name, **options)
    model, optimizer = make(Method(None, "extra"))
    optimizer.self_weight, optimizer.src_weights = 1.0, {}
    with pytest.raises(ValueError, match="extra takes its weights from a static"):
        train(model, optimizer, 1)
    return True


def test_unsuitable_topologies_and_options_are_refused():
    assert run_ranks(RANKS, refuse_all) == [True] * RANKS


def evaluate_twice():
    """Track gradients of an optimizer that evaluates several times in a step."""
    model = Logistic(start_of(bf.rank()))
    lbfgs = torch.optim.LBFGS(model.parameters())
    optimizer = bf.DistributedOptimizer(lbfgs, model, algorithm="gradient_tracking")
    with pytest.raises(RuntimeError, match="evaluates its closure several times"):
        train(model, optimizer, 1, "closure")
    return True


def test_tracking_refuses_several_evaluations_of_a_closure():
    assert run_ranks(2, evaluate_twice) == [True] * 2


def disagree():
    """Give each rank another period."""
    with pytest.raises(
        bf.MismatchError, match="period is 2 on rank 0, but 3 on rank 1"
    ):
        make(Method(None, "gossip_pga", {"period": 2 + bf.rank()}))
    with pytest.raises(bf.MismatchError, match="fragments is 1 on rank 0, but 2 on"):
        make(Method(None, "diloco", {"fragments": 1 + bf.rank()}))
    with pytest.raises(
        bf.MismatchError, match="algorithm is DiLoCo on rank 0, but SparseLoCo on rank"
    ):
        make(Method(None, ("diloco", "sparse_loco")[bf.rank()]))
    return True


def test_options_must_agree():
    assert run_ranks(2, disagree) == [True] * 2
