"""Parameter averaging against the mixing matrix, in both orders."""

import itertools

import numpy as np
import pytest
import torch

import bluecomm as bf
from tests.support.ranks import run_ranks
from tests.support.training import (
    OPTIMIZERS,
    backward,
    expected_averaging,
    flatten,
    make_model,
)

pytestmark = pytest.mark.mp

ORDERS = ["cta", "atc"]
STEPS = 3


def train(kind, optimizer, steps, passes, set_weights, options):
    """Train on one rank and return the parameters."""
    model = make_model(kind, bf.rank())
    optimizer = bf.DistributedOptimizer(
        OPTIMIZERS[optimizer](model.parameters()), model, **options
    )
    for step in range(steps):
        if set_weights is not None:
            set_weights(optimizer, step)
        optimizer.zero_grad()
        backward(model, bf.rank(), step, passes)
        optimizer.step()
    optimizer.synchronize()
    return flatten(model)


def train_on_topology(topology, kind, optimizer, steps, passes, set_weights, options):
    """Train with the named topology."""
    graph, is_weighted = TOPOLOGIES[topology](bf.size())
    bf.set_topology(graph, is_weighted=is_weighted)
    if isinstance(options.get("topology"), str) and options["topology"] in SOURCES:
        options = {**options, "topology": SOURCES[options["topology"]]()}
    return train(kind, optimizer, steps, passes, set_weights, options)


TOPOLOGIES = {
    "exponential": lambda n: (bf.ExponentialTwoGraph(n), False),
    "right_ring": lambda n: (bf.RingGraph(n, connect_style=2), False),
    "mesh": lambda n: (bf.MeshGrid2DGraph(n), True),
    "star": lambda n: (bf.StarGraph(n), True),
}


def matrix_of(topology, size):
    """Return the mixing matrix of the named topology."""
    graph, is_weighted = TOPOLOGIES[topology](size)
    if not is_weighted:
        # Uniform weights, regardless of the edges' weights.
        matrix = bf.mixing_matrix(graph) != 0
        np.fill_diagonal(matrix, True)
        return matrix / matrix.sum(axis=1, keepdims=True)
    return bf.mixing_matrix(graph)


def check(got, expected):
    np.testing.assert_allclose(torch.stack(got), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_follows_the_formula(order, world_size):
    options = {"algorithm": "neighbor_allreduce", "order": order}
    got = run_ranks(
        world_size,
        train_on_topology,
        *("exponential", "mlp", "sgd", STEPS, 1, None, options),
    )
    matrices = [matrix_of("exponential", world_size)] * STEPS
    check(got, expected_averaging(world_size, "mlp", "sgd", order, matrices))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("topology", ["right_ring", "mesh", "star"])
def test_uses_the_topology_in_force(order, topology):
    options = {"algorithm": "neighbor_allreduce", "order": order}
    got = run_ranks(
        4, train_on_topology, topology, "mlp", "sgd", STEPS, 1, None, options
    )
    matrices = [matrix_of(topology, 4)] * STEPS
    check(got, expected_averaging(4, "mlp", "sgd", order, matrices))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("optimizer", ["momentum", "adamw", "rmsprop"])
def test_steps_by_the_users_own_optimizer(order, optimizer):
    options = {"algorithm": "neighbor_allreduce", "order": order}
    got = run_ranks(
        3, train_on_topology, "exponential", "mlp", optimizer, 4, 1, None, options
    )
    matrices = [matrix_of("exponential", 3)] * 4
    check(got, expected_averaging(3, "mlp", optimizer, order, matrices))


@pytest.mark.parametrize("order", ORDERS)
def test_small_buckets_change_nothing(order):
    options = {
        "algorithm": "neighbor_allreduce",
        "order": order,
        "bucket_bytes": 100,
    }
    got = run_ranks(
        3, train_on_topology, "exponential", "mlp", "sgd", STEPS, 1, None, options
    )
    matrices = [matrix_of("exponential", 3)] * STEPS
    check(got, expected_averaging(3, "mlp", "sgd", order, matrices))


@pytest.mark.parametrize("order", ORDERS)
def test_allreduce_of_parameters_is_the_exact_mean(order):
    options = {"algorithm": "allreduce", "order": order}
    got = run_ranks(3, train, "mlp", "adamw", STEPS, 1, None, options)
    matrices = [np.full((3, 3), 1 / 3)] * STEPS
    check(got, expected_averaging(3, "mlp", "adamw", order, matrices))


def test_local_does_not_communicate():
    got = run_ranks(3, train, "mlp", "adamw", STEPS, 1, None, {"algorithm": "local"})
    check(got, expected_averaging(3, "mlp", "adamw", "atc", [None] * STEPS))


# -- dynamic topologies ----------------------------------------------------------------


def one_peer_matrices(graph, size, rounds):
    """Return the mixing matrices of the rounds of a one-peer iterator."""
    iterators = [bf.GetDynamicOnePeerSendRecvRanks(graph, rank) for rank in range(size)]
    matrices = []
    for _ in range(rounds):
        matrix = np.zeros((size, size))
        for rank, iterator in enumerate(iterators):
            _, receive = next(iterator)
            matrix[rank, [rank, *receive]] = 1 / (len(receive) + 1)
        matrices.append(matrix)
    return matrices


def _iterator():
    return bf.GetDynamicOnePeerSendRecvRanks(bf.load_topology(), bf.rank())


def _function():
    rounds = list(itertools.islice(_iterator(), 10))
    return lambda number: rounds[number]


def _weights():
    for send, receive in _iterator():
        weight = 1 / (len(receive) + 1)
        yield weight, dict.fromkeys(receive, weight), dict.fromkeys(send, 1.0)


SOURCES = {"iterator": _iterator, "function": _function, "weights": _weights}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["BaseGraph", "RandomMatchings"])
def test_schedules_are_topologies(order, name):
    schedule = getattr(bf.topology, name)(5)
    options = {"algorithm": "neighbor_allreduce", "order": order, "topology": schedule}
    got = run_ranks(5, train, "mlp", "sgd", 6, 1, None, options)
    matrices = [schedule.matrix(step) for step in range(6)]
    check(got, expected_averaging(5, "mlp", "sgd", order, matrices))


def test_default_one_peer_spares_the_network():
    options = {"algorithm": "neighbor_allreduce", "topology": "one_peer"}
    got = run_ranks(6, train, "mlp", "sgd", 6, 1, None, options, ranks_per_machine=3)
    schedule = bf.topology.InnerOuterExponential(6, 3)
    matrices = [schedule.matrix(step) for step in range(6)]
    check(got, expected_averaging(6, "mlp", "sgd", "cta", matrices))


def set_one_peer(optimizer, step):
    """Set the weights of one step, as BlueFog's scripts do."""
    send, receive = next(itertools.islice(_iterator(), step, None))
    weight = 1 / (len(receive) + 1)
    optimizer.self_weight = weight
    optimizer.src_weights = dict.fromkeys(receive, weight)
    optimizer.dst_weights = dict.fromkeys(send, 1.0)
    optimizer.enable_topo_check = step % 2 == 0


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("source", ["one_peer", "iterator", "function", "weights"])
@pytest.mark.parametrize("topology", ["exponential", "star"])
def test_topologies_that_change_from_round_to_round(order, source, topology):
    options = {"algorithm": "neighbor_allreduce", "order": order, "topology": source}
    got = run_ranks(4, train_on_topology, topology, "mlp", "sgd", 5, 1, None, options)
    matrices = one_peer_matrices(TOPOLOGIES[topology](4)[0], 4, 5)
    check(got, expected_averaging(4, "mlp", "sgd", order, matrices))


@pytest.mark.parametrize("order", ORDERS)
def test_weights_set_before_each_step(order):
    options = {"algorithm": "neighbor_allreduce", "order": order}
    got = run_ranks(
        4,
        train_on_topology,
        *("exponential", "mlp", "sgd", 4, 1, set_one_peer, options),
    )
    matrices = one_peer_matrices(bf.ExponentialTwoGraph(4), 4, 4)
    check(got, expected_averaging(4, "mlp", "sgd", order, matrices))


def set_type(optimizer, step):
    """Average with all ranks in every second step."""
    optimizer.communication_type = [
        bf.CommunicationType.neighbor_allreduce,
        bf.CommunicationType.allreduce,
        bf.CommunicationType.empty,
    ][step % 3]


@pytest.mark.parametrize("order", ORDERS)
def test_the_type_of_communication_may_change(order):
    options = {"algorithm": "neighbor_allreduce", "order": order}
    got = run_ranks(
        3, train_on_topology, "right_ring", "mlp", "sgd", 4, 1, set_type, options
    )
    ring = matrix_of("right_ring", 3)
    matrices = [ring, np.full((3, 3), 1 / 3), None, ring]
    check(got, expected_averaging(3, "mlp", "sgd", order, matrices))


# -- hierarchical ----------------------------------------------------------------------


def hierarchical_matrix(machine_of, machine_matrix):
    """Return W = U M V: mean of each machine, mixing of machines, back to the ranks."""
    machines = len(machine_matrix)
    belongs = np.equal.outer(np.array(machine_of), np.arange(machines)).astype(float)
    return belongs @ machine_matrix @ (belongs / belongs.sum(axis=0)).T


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("world_size", "machine_of"), [(4, [0, 0, 1, 1]), (5, [0, 0, 1, 1, 2])]
)
def test_hierarchical(order, world_size, machine_of):
    options = {"algorithm": "hierarchical_neighbor_allreduce", "order": order}
    got = run_ranks(
        world_size,
        train,
        *("mlp", "sgd", STEPS, 1, None, options),
        ranks_per_machine=2,
    )
    machines = max(machine_of) + 1
    matrix = hierarchical_matrix(
        machine_of, bf.mixing_matrix(bf.ExponentialGraph(machines))
    )
    check(got, expected_averaging(world_size, "mlp", "sgd", order, [matrix] * STEPS))


def set_machines(optimizer, step):
    """Exchange with the next machine, then with the second next."""
    hop = 1 + step % 2
    send = (bf.machine_rank() + hop) % bf.machine_size()
    receive = (bf.machine_rank() - hop) % bf.machine_size()
    optimizer.self_weight = 0.5
    optimizer.src_machine_weights = {receive: 0.5}
    optimizer.dst_machine_weights = {send: 1.0}


def train_with_machine_ring(*args):
    bf.set_machine_topology(bf.RingGraph(bf.machine_size(), connect_style=2))
    return train(*args)


@pytest.mark.parametrize("order", ORDERS)
def test_dynamic_machines_need_not_be_neighbors(order):
    # BlueFog looked them up in the static machine topology.
    options = {"algorithm": "hierarchical_neighbor_allreduce", "order": order}
    got = run_ranks(
        6,
        train_with_machine_ring,
        *("mlp", "sgd", 2, 1, set_machines, options),
        ranks_per_machine=2,
    )
    matrices = []
    for hop in (1, 2):
        machine_matrix = 0.5 * (np.eye(3) + np.roll(np.eye(3), hop, axis=0))
        matrices.append(hierarchical_matrix([0, 0, 1, 1, 2, 2], machine_matrix))
    check(got, expected_averaging(6, "mlp", "sgd", order, matrices))


@pytest.mark.parametrize("order", ORDERS)
def test_one_machine_at_a_time(order):
    options = {
        "algorithm": "hierarchical_neighbor_allreduce",
        "order": order,
        "topology": "one_peer",
    }
    got = run_ranks(6, train, "mlp", "sgd", 3, 1, None, options, ranks_per_machine=2)
    matrices = [
        hierarchical_matrix([0, 0, 1, 1, 2, 2], machine_matrix)
        for machine_matrix in one_peer_matrices(bf.ExponentialGraph(3), 3, 3)
    ]
    check(got, expected_averaging(6, "mlp", "sgd", order, matrices))


# -- steps without a round -------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_local_steps_between_rounds(order):
    options = {
        "algorithm": "neighbor_allreduce",
        "order": order,
        "num_steps_per_communication": 3,
    }
    got = run_ranks(
        3, train_on_topology, "exponential", "mlp", "adamw", 7, 1, None, options
    )
    matrix = matrix_of("exponential", 3)
    matrices = [None, None, matrix, None, None, matrix, None]
    check(got, expected_averaging(3, "mlp", "adamw", order, matrices))


@pytest.mark.parametrize("order", ORDERS)
def test_accumulated_gradients_all_count(order):
    # With ATC, BlueFog used only the last micro-batch's gradient.
    options = {
        "algorithm": "neighbor_allreduce",
        "order": order,
        "num_steps_per_communication": 2,
    }
    got = run_ranks(
        3, train_on_topology, "exponential", "mlp", "sgd", STEPS, 2, None, options
    )
    matrices = [matrix_of("exponential", 3)] * STEPS
    check(got, expected_averaging(3, "mlp", "sgd", order, matrices, passes=2))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("source", [None, "one_peer"])
def test_repeated_rounds_reach_consensus(order, source):
    options = {"algorithm": "neighbor_allreduce", "order": order, "topology": source}
    models = run_ranks(4, reach_consensus, options)
    for distances in models:
        assert distances[0] > 1
        assert distances[-1] < 1e-12


def reach_consensus(options):
    """Return the distance before and after many rounds without gradients."""
    model = make_model("attention", bf.rank())
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.0), model, **options
    )
    distances = [bf.consensus_distance(model)]
    for _ in range(40):
        optimizer.step()
    return [*distances, bf.consensus_distance(model)]
