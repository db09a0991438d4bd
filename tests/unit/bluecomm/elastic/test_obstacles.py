"""Why a rank cannot let newcomers in, or cannot let the job grow, in one process."""

import itertools

import pytest
import torch

import bluecomm as bf
from bluecomm.elastic.obstacles import obstacle, obstacle_to_growth
from bluecomm.optim.registry import get_algorithm, names_that_survive_losses

ADMITTING = [
    name for name in names_that_survive_losses() if get_algorithm(name).admits_newcomers
]


@pytest.fixture(autouse=True)
def world():
    bf.init()
    yield
    bf.shutdown()


def optimizer(**options):
    model = torch.nn.Linear(2, 1)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, bf.DistributedOptimizer(plain, model, **options)


@pytest.mark.parametrize("algorithm", ADMITTING)
def test_covered_algorithms(algorithm):
    kept = optimizer(algorithm=algorithm)
    assert obstacle() == ""
    del kept


def test_other_algorithms():
    kept = optimizer(algorithm="win_put")
    assert "an optimizer has an algorithm, or a process set, with which" in obstacle()
    del kept
    assert obstacle() == ""


def test_process_groups_of_torch(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert obstacle() == "torch.distributed has process groups"


def test_windows():
    bf.win_create(torch.zeros(1), "w")
    assert obstacle() == "windows exist: w"
    bf.win_free("w")
    assert obstacle() == ""


@pytest.mark.parametrize("algorithm", ADMITTING)
def test_covered_algorithms_grow(algorithm):
    kept = optimizer(algorithm=algorithm)
    for size in range(2, 9):
        assert obstacle_to_growth(size) == ""
    del kept


def test_a_graph_exists_for_one_number_of_ranks():
    bf.set_topology(bf.RingGraph)
    assert obstacle_to_growth(2) == ""
    bf.set_topology(bf.RingGraph(1))
    assert "pass set_topology a function, such as bf.RingGraph" in obstacle_to_growth(2)
    bf.set_topology()
    assert obstacle_to_growth(2) == ""
    bf.set_machine_topology(bf.RingGraph(1))
    assert "one number of machines" in obstacle_to_growth(2)


def test_a_function_may_fail_for_some_numbers():
    bf.set_topology(bf.HypercubeGraph)
    assert obstacle_to_growth(2) == obstacle_to_growth(4) == ""
    text = "the function of set_topology fails for 3 ranks: size must be"
    assert obstacle_to_growth(3).startswith(text)


@pytest.mark.parametrize(
    ("topology", "why"),
    [
        ("one_peer", ""),
        (bf.topology.OnePeerExponential(1), ""),
        (bf.topology.RandomMatchings(1), ""),
        (bf.topology.StaticTopology(bf.RingGraph(1)), "exists for 1 ranks only"),
        (itertools.repeat(([], [])), "is an iterator or a function"),
        (lambda number: ([], []), "is an iterator or a function"),
    ],
)
def test_weights_that_change_from_round_to_round(topology, why):
    kept = optimizer(algorithm="neighbor_allreduce", topology=topology)
    found = obstacle_to_growth(2)
    assert (why in found) if why else not found
    del kept


def test_weights_that_are_set_as_attributes():
    _, made = optimizer(algorithm="neighbor_allreduce")
    made.self_weight, made.src_weights, made.dst_weights = 1.0, {}, []
    assert "weights are set as attributes" in obstacle_to_growth(2)


def test_a_topology_that_an_algorithm_cannot_use_for_some_numbers():
    bf.set_topology(bf.RingGraph)
    kept = optimizer(algorithm="d2")
    assert obstacle_to_growth(3) == ""
    assert "d2 cannot use the topology in force with 4 ranks" in obstacle_to_growth(4)
    del kept
