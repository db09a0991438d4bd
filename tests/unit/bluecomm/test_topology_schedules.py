"""Properties of each round, and of a period, of all schedules."""

import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bluecomm import topology
from bluecomm.topology import (
    BaseGraph,
    OnePeer,
    StaticTopology,
    disagreements,
    mean_gap,
    rounds_to_consensus,
    spectral_gap,
)
from bluecomm.topology.names import SCHEDULES
from bluecomm.topology.traffic import traffic_of

# Each for any number of ranks, or for the largest possible one that is not above it.
ALL = {
    **SCHEDULES,
    "OnePeerHypercube": lambda n: topology.OnePeerHypercube(1 << (n.bit_length() - 1)),
    "BaseGraph:k=3": lambda n: BaseGraph(n, k=3),
    "InnerOuterRing": lambda n: topology.InnerOuterRing(
        n - n % 3 or 1, 3 if n > 2 else 1
    ),
    "InnerOuterExponential": lambda n: topology.InnerOuterExponential(2 * n, 2),
    "InnerOuterExponential:4": lambda n: topology.InnerOuterExponential(4 * n, 4),
    "OnePeer": lambda n: OnePeer(topology.RingGraph(n, connect_style=2)),
}
MATCHINGS = ["OnePeerHypercube", "BaseGraph", "RandomMatchings", "ShiftOne"]
SIZES = st.integers(1, 40)


@pytest.mark.parametrize("name", ALL)
@given(size=SIZES, number=st.integers(0, 1000))
@settings(max_examples=25)
def test_every_round_is_doubly_stochastic(name, size, number):
    schedule = ALL[name](size)
    matrix = schedule.matrix(number)
    assert matrix.shape == (schedule.size, schedule.size)
    assert (matrix >= 0).all()
    np.testing.assert_allclose(matrix.sum(axis=0), 1)
    np.testing.assert_allclose(matrix.sum(axis=1), 1)
    assert schedule.is_doubly_stochastic


@pytest.mark.parametrize("name", ALL)
@given(size=SIZES, number=st.integers(0, 1000))
@settings(max_examples=25)
def test_senders_and_receivers_agree(name, size, number):
    schedule = ALL[name](size)
    peers = [schedule.peers(number, rank) for rank in range(schedule.size)]
    sent = [(one, other) for one, (send, _) in enumerate(peers) for other in send]
    received = [(one, other) for other, (_, got) in enumerate(peers) for one in got]
    assert sorted(sent) == sorted(received)
    assert all(one != other for one, other in sent)
    graph = schedule.graph(number)
    assert {edge for edge in graph.edges if edge[0] != edge[1]} == set(sent)
    np.testing.assert_allclose(
        topology.mixing_matrix(graph), schedule.matrix(number), atol=1e-15
    )


@pytest.mark.parametrize("name", MATCHINGS)
@given(size=SIZES, number=st.integers(0, 1000))
@settings(max_examples=25)
def test_every_round_is_a_matching(name, size, number):
    schedule = ALL[name](size)
    matrix = schedule.matrix(number)
    np.testing.assert_allclose(matrix, matrix.T)
    for rank in range(schedule.size):
        send, receive = schedule.peers(number, rank)
        assert send == receive
        assert len(send) <= 1


@pytest.mark.parametrize("name", ALL)
@given(size=SIZES)
@settings(max_examples=15)
def test_a_period_is_a_period(name, size):
    schedule = ALL[name](size)
    if schedule.period is None:
        assert not np.array_equal(schedule.matrix(0), schedule.matrix(1)) or size < 8
        return
    for number in range(min(schedule.period, 12)):
        np.testing.assert_array_equal(
            schedule.matrix(number), schedule.matrix(number + schedule.period)
        )


@given(size=st.integers(1, 70), k=st.integers(1, 5))
def test_base_graphs_reach_the_average_in_a_period(size, k):
    schedule = BaseGraph(size, k)
    assert disagreements(schedule, schedule.period)[-1] < 1e-13
    limit = 2 * math.log(size, k + 1) + 2 if size > 1 else 1
    assert schedule.period <= limit + 1e-9
    most = max(
        len(schedule.peers(number, rank)[0])
        for number in range(schedule.period)
        for rank in range(size)
    )
    assert most <= k


@pytest.mark.parametrize(
    ("size", "k", "period"),
    [
        *((2, 1, 1), (3, 1, 3), (4, 1, 2), (5, 1, 5), (6, 1, 4), (8, 1, 3), (64, 1, 6)),
        *((9, 2, 2), (12, 3, 2), (7, 6, 1), (25, 4, 2)),
    ],
)
def test_lengths_of_base_graphs(size, k, period):
    assert BaseGraph(size, k).period == period


@pytest.mark.parametrize("dimensions", range(7))
@pytest.mark.parametrize(
    "make", [topology.OnePeerExponential, topology.OnePeerHypercube]
)
def test_one_peer_is_exact_over_any_log2_n_rounds_for_powers_of_two(make, dimensions):
    schedule = make(1 << dimensions)
    for start in range(3):
        product = np.eye(schedule.size)
        for number in range(start, start + dimensions):
            product = schedule.matrix(number) @ product
        np.testing.assert_allclose(product, 1 / schedule.size, atol=1e-15)


def test_one_peer_is_not_exact_for_other_numbers():
    schedule = topology.OnePeerExponential(6)
    assert disagreements(schedule, schedule.period)[-1] > 0.1


def test_random_matchings_follow_their_seed_and_halve_the_variance():
    one, same, other = (topology.RandomMatchings(16, seed=s) for s in (1, 1, 2))
    rounds = range(300)
    assert all(np.array_equal(one.matrix(t), same.matrix(t)) for t in rounds)
    assert any(not np.array_equal(one.matrix(t), other.matrix(t)) for t in rounds)
    # Asked out of order as well.
    assert np.array_equal(one.matrix(7), same.matrix(7))
    mean = sum(w.T @ w for w in map(one.matrix, rounds)) / len(rounds)
    expected = 0.5 - 0.5 / 15
    eigenvalues = np.sort(np.linalg.eigvalsh(mean))
    assert eigenvalues[:-1].mean() == pytest.approx(expected, abs=0.02)


def shift_one_of_bagua(ranks, number, rank):
    """Return the peer as Bagua 0.9.2 chooses it, for even numbers of ranks."""
    half = ranks // 2
    if rank < half:
        return half + (number + rank) % half
    return (rank - half - number) % half


@pytest.mark.parametrize("size", range(2, 17, 2))
def test_shift_one_has_the_peers_of_bagua(size):
    schedule = topology.ShiftOne(size)
    for number in range(3 * size):
        for rank in range(size):
            peer = shift_one_of_bagua(size, number, rank)
            assert schedule.partner(number, rank) == peer


@pytest.mark.parametrize("size", range(1, 18))
def test_shift_one_lets_each_lower_rank_meet_each_upper_rank_once(size):
    schedule, half = topology.ShiftOne(size), -(-size // 2)
    met, alone = [], []
    for number in range(half):
        partners = [schedule.partner(number, rank) for rank in range(size)]
        resting = [rank for rank, partner in enumerate(partners) if partner is None]
        assert len(resting) == size % 2
        alone += resting
        met += [(rank, partners[rank]) for rank in range(half) if rank not in resting]
    everyone = [(low, high) for low in range(half) for high in range(half, size)]
    assert sorted(met) == everyone
    assert sorted(alone) == (list(range(half)) if size % 2 else [])
    assert repr(schedule.resized(size + 1)) == f"ShiftOne({size + 1})"


@pytest.mark.parametrize("ranks", [[4, 4, 4, 4], [1, 3, 2], [5, 1], [7]])
def test_weighted_matchings_keep_the_average_over_ranks(ranks):
    matchings = topology.ShiftOne(len(ranks))
    schedule = topology.WeightedMatchings(matchings, ranks)
    counts = np.array(ranks, dtype=float)
    for number in range(4):
        matrix = schedule.matrix(number)
        np.testing.assert_allclose(counts @ matrix, counts)
        np.testing.assert_allclose(matrix.sum(axis=1), 1)
        assert ((matrix > 0) == (matchings.matrix(number) > 0)).all()
    assert schedule.is_doubly_stochastic == (len(set(ranks)) == 1)
    product = np.eye(len(ranks))
    for number in range(60):
        product = schedule.matrix(number) @ product
    np.testing.assert_allclose(product, [counts / counts.sum()] * len(ranks), atol=1e-6)
    assert repr(schedule) == f"WeightedMatchings(ShiftOne({len(ranks)}), {ranks})"


@pytest.mark.parametrize("local_size", [2, 3, 4])
def test_inner_outer_sends_one_tensor_per_machine_and_round(local_size):
    schedule = topology.InnerOuterExponential(4 * local_size, local_size)
    machine_of = [rank // local_size for rank in range(schedule.size)]
    traffic = traffic_of(schedule, machine_of, schedule.period)
    assert traffic.card_mean == 1
    assert traffic.card_most == (2 if local_size == 2 else 1)
    assert traffic.rank_most == traffic.rank_mean == 1


def test_static_graphs_are_schedules_too():
    graph = topology.StarGraph(5)
    weighted = StaticTopology(graph)
    np.testing.assert_allclose(weighted.matrix(3), topology.mixing_matrix(graph))
    assert weighted.is_doubly_stochastic
    assert not StaticTopology(graph, is_weighted=False).is_doubly_stochastic
    assert not OnePeer(graph).is_doubly_stochastic
    graph.clear_edges()
    assert weighted.peers(0, 1) == ([0], [0])


def test_a_negative_weight_is_not_stochastic():
    graph = nx.DiGraph()
    graph.add_weighted_edges_from(
        [(0, 0, 1.5), (1, 0, -0.5), (1, 1, 1.5), (0, 1, -0.5)]
    )
    assert not StaticTopology(graph).is_doubly_stochastic


def test_descriptions_tell_schedules_apart():
    texts = {
        repr(schedule)
        for schedule in (
            topology.OnePeerExponential(4),
            topology.OnePeerExponential(5),
            BaseGraph(5),
            BaseGraph(5, k=2),
            topology.RandomMatchings(4, seed=1),
            topology.RandomMatchings(4, seed=2),
            topology.InnerOuterRing(8, 2),
            topology.InnerOuterRing(8, 4),
            StaticTopology(topology.RingGraph(4)),
            StaticTopology(topology.StarGraph(4)),
            OnePeer(topology.RingGraph(4)),
            OnePeer(topology.StarGraph(4)),
        )
    }
    assert len(texts) == 12
    assert repr(BaseGraph(5, k=2)) == "BaseGraph(5, k=2)"


# -- speed of mixing -------------------------------------------------------------------


def by_walking(schedule, tolerance, most=3000):
    left = disagreements(schedule, most)
    return next((t for t, norm in enumerate(left) if norm <= tolerance), None)


@pytest.mark.parametrize(
    "schedule",
    [
        StaticTopology(topology.RingGraph(9)),
        StaticTopology(topology.FullyConnectedGraph(6)),
        StaticTopology(topology.RingGraph(1)),
        topology.OnePeerExponential(8),
        topology.OnePeerExponential(11),
        topology.InnerOuterExponential(12, 4),
        BaseGraph(7),
        topology.RandomMatchings(8),
    ],
    ids=repr,
)
def test_rounds_to_consensus_equal_a_direct_count(schedule):
    for tolerance in (1e-2, 1e-6):
        assert rounds_to_consensus(schedule, tolerance) == by_walking(
            schedule, tolerance
        )


def test_without_mixing_there_is_no_consensus():
    apart = StaticTopology(nx.DiGraph([(0, 0), (1, 1)]))
    assert rounds_to_consensus(apart) is None
    assert mean_gap(apart) == 0


def test_gaps():
    for graph in (topology.RingGraph(9), topology.MeshGrid2DGraph(12)):
        assert mean_gap(StaticTopology(graph)) == pytest.approx(spectral_gap(graph))
    assert mean_gap(topology.OnePeerExponential(16)) == 1
    assert mean_gap(BaseGraph(15)) == 1
    assert mean_gap(StaticTopology(topology.RingGraph(1))) == 1
    # In expectation the squared disagreement of 16 ranks is multiplied by 7/15.
    wanted = 1 - math.sqrt(0.5 - 0.5 / 15)
    assert mean_gap(topology.RandomMatchings(16)) == pytest.approx(wanted, abs=0.1)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: topology.OnePeerExponential(0), ValueError, "size must be at least 1"),
        (lambda: topology.OnePeerExponential(2.5), TypeError, "must be an integer"),
        (lambda: topology.OnePeerHypercube(6), ValueError, "power of 2"),
        (lambda: BaseGraph(4, k=0), ValueError, "k must be at least 1"),
        (lambda: topology.RandomMatchings(4, seed=-1), ValueError, "seed must be at"),
        (
            lambda: topology.WeightedMatchings(topology.ShiftOne(3), [1, 2]),
            ValueError,
            r"each of the 3 nodes of ShiftOne\(3\), got 2",
        ),
        (
            lambda: topology.WeightedMatchings(topology.ShiftOne(2), [1, 0]),
            ValueError,
            "ranks must be at least 1, got 0",
        ),
        (lambda: topology.InnerOuterRing(7, 2), ValueError, "a multiple of local_size"),
        (lambda: StaticTopology("ring"), TypeError, r"must be a networkx\.DiGraph"),
    ],
)
def test_wrong_arguments_are_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()
