"""Dynamic topologies: all ranks together must agree on every step."""

import itertools

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bluecomm.topology import (
    ExponentialTwoGraph,
    GetDynamicOnePeerSendRecvRanks,
    GetExp2DynamicSendRecvMachineRanks,
    GetInnerOuterExpo2DynamicSendRecvRanks,
    GetInnerOuterRingDynamicSendRecvRanks,
    RingGraph,
    StarGraph,
)

INNER_OUTER = [
    GetInnerOuterRingDynamicSendRecvRanks,
    GetInnerOuterExpo2DynamicSendRecvRanks,
]
LAYOUTS = st.tuples(st.integers(1, 9), st.integers(1, 9))


def first_steps(iterators, count):
    """Return the entries of all ranks' iterators for each of the first steps."""
    steps = list(zip(*(itertools.islice(it, count) for it in iterators), strict=True))
    assert len(steps) == count
    return steps


def edges_of(step):
    """Return (sender, receiver) pairs of a step; senders and receivers must agree."""
    sent = [(i, j) for i, (send, _) in enumerate(step) for j in send]
    received = [(i, j) for j, (_, receive) in enumerate(step) for i in receive]
    assert sorted(sent) == sorted(received)
    assert len(set(sent)) == len(sent)
    assert all(i != j for i, j in sent)
    return sent


def is_connected_over(steps, size):
    """Return whether every rank's tensor reaches every rank over the steps."""
    union = nx.DiGraph()
    union.add_nodes_from(range(size))
    for step in steps:
        union.add_edges_from(edges_of(step))
    return nx.is_strongly_connected(union)


@st.composite
def topologies(draw):
    """Return a random directed graph, with or without self-loops."""
    size = draw(st.integers(1, 9))
    edges = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1))
    graph = nx.DiGraph()
    graph.add_nodes_from(range(size))
    graph.add_edges_from(draw(st.sets(edges)))
    return graph


def test_one_peer_walks_the_exponential_graph():
    steps = itertools.islice(
        GetDynamicOnePeerSendRecvRanks(ExponentialTwoGraph(10), 0), 5
    )
    assert list(steps) == [
        ([1], [9]),
        ([2], [8]),
        ([4], [6]),
        ([8], [2]),
        ([1], [9]),
    ]


def test_one_peer_counts_clockwise_from_itself():
    steps = itertools.islice(
        GetDynamicOnePeerSendRecvRanks(ExponentialTwoGraph(10), 7), 4
    )
    assert [send for send, _ in steps] == [[8], [9], [1], [5]]


def test_center_of_the_star_receives_from_all_at_each_step():
    steps = first_steps(
        [GetDynamicOnePeerSendRecvRanks(StarGraph(4), rank) for rank in range(4)], 4
    )
    assert [step[0] for step in steps] == [
        ([1], [1, 2, 3]),
        ([2], [1, 2, 3]),
        ([3], [1, 2, 3]),
        ([1], [1, 2, 3]),
    ]
    assert [step[2] for step in steps] == [([0], []), ([0], [0]), ([0], []), ([0], [])]


@given(topologies())
def test_one_peer_agrees_and_visits_each_edge_equally_often(graph):
    size = len(graph)
    steps = first_steps(
        [GetDynamicOnePeerSendRecvRanks(graph, rank) for rank in range(size)], 2 * size
    )
    for step in steps:
        edges_of(step)
    for rank in range(size):
        targets = set(graph.successors(rank)) - {rank}
        sends = [step[rank][0] for step in steps]
        if targets:
            period = len(targets)
            assert sorted(send for (send,) in sends[:period]) == sorted(targets)
            assert sends[period:] == sends[:-period]
        else:
            assert sends == [[]] * len(steps)


@given(topologies())
def test_self_loops_make_no_difference_to_one_peer(graph):
    without = graph.copy()
    without.remove_edges_from(list(nx.selfloop_edges(graph)))
    for rank in graph:
        one, two = (GetDynamicOnePeerSendRecvRanks(g, rank) for g in (graph, without))
        assert list(itertools.islice(one, 12)) == list(itertools.islice(two, 12))


def test_one_peer_keeps_the_topology_that_it_was_given():
    graph = RingGraph(4)
    iterator = GetDynamicOnePeerSendRecvRanks(graph, 0)
    graph.remove_edges_from(list(graph.edges))
    assert list(itertools.islice(iterator, 2)) == [([1], [3]), ([3], [1])]


def test_machines_walk_the_exponential_graph():
    steps = itertools.islice(GetExp2DynamicSendRecvMachineRanks(20, 2, 1, 1), 5)
    assert list(steps) == [([1], [9]), ([2], [8]), ([4], [6]), ([8], [2]), ([1], [9])]


@given(LAYOUTS)
def test_machines_agree_and_local_ranks_say_the_same(layout):
    machine_size, local_size = layout
    size = machine_size * local_size
    steps = first_steps(
        [
            GetExp2DynamicSendRecvMachineRanks(
                size, local_size, rank, rank % local_size
            )
            for rank in range(size)
        ],
        8,
    )
    for step in steps:
        machines = step[::local_size]
        edges_of(machines)
        assert all(step[rank] == machines[rank // local_size] for rank in range(size))
    assert is_connected_over([step[::local_size] for step in steps], machine_size)


def test_one_machine_has_no_peers():
    iterator = GetExp2DynamicSendRecvMachineRanks(4, 4, 2, 2)
    assert list(itertools.islice(iterator, 3)) == [([], [])] * 3


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            GetInnerOuterRingDynamicSendRecvRanks,
            [([2], [3]), ([5], [13]), ([3], [0]), ([2], [0])],
        ),
        (
            GetInnerOuterExpo2DynamicSendRecvRanks,
            [([2], [3]), ([9], [9]), ([3], [0]), ([0], [2])],
        ),
    ],
)
def test_inner_outer_on_four_machines_of_four(make, expected):
    assert list(itertools.islice(make(16, 4, 1), 4)) == expected


def test_each_local_rank_uses_every_hop():
    # Local rank 1 is out at steps 1, 5, 9, ..., never at an even step.
    steps = itertools.islice(GetInnerOuterExpo2DynamicSendRecvRanks(16, 4, 1), 8)
    outside = [send for (send,), _ in steps if send >= 4]
    assert outside == [9, 5]


@given(machine_size=st.integers(2, 12), local_size=st.integers(1, 9))
def test_no_pair_of_hops_is_left_out(machine_size, local_size):
    size = machine_size * local_size
    hops = {1 << k for k in range((machine_size - 1).bit_length())}
    for local in range(local_size):
        iterator = GetInnerOuterExpo2DynamicSendRecvRanks(size, local_size, local)
        steps = itertools.islice(iterator, 2 * local_size * len(hops))
        met = {send // local_size for (send,), _ in steps} - {0}
        assert met == {hop % machine_size for hop in hops}


@pytest.mark.parametrize("make", INNER_OUTER)
@given(layout=LAYOUTS)
def test_inner_outer_agrees_connects_and_leaves_no_rank_alone(make, layout):
    machine_size, local_size = layout
    size = machine_size * local_size
    steps = first_steps(
        [make(size, local_size, rank) for rank in range(size)], 8 * local_size
    )
    for step in steps:
        edges = edges_of(step)
        # One tensor out of and into each rank, unless it is alone in the world.
        ranks = list(range(size)) if size > 1 else []
        assert [i for i, _ in edges] == sorted(j for _, j in edges) == ranks
    assert is_connected_over(steps, size)


@pytest.mark.parametrize("make", INNER_OUTER)
@given(machine_size=st.integers(2, 9), local_size=st.integers(3, 9))
def test_one_local_rank_leaves_each_machine_at_a_step(make, machine_size, local_size):
    size = machine_size * local_size
    steps = first_steps([make(size, local_size, rank) for rank in range(size)], 30)
    for number, step in enumerate(steps):
        for i, j in edges_of(step):
            leaves = i // local_size != j // local_size
            assert leaves == (i % local_size == number % local_size)
            if leaves:
                assert i % local_size == j % local_size


@pytest.mark.parametrize("make", INNER_OUTER)
def test_two_local_ranks_swap_then_leave_together(make):
    steps = first_steps([make(8, 2, rank) for rank in range(8)], 4)
    assert steps[0] == steps[2]
    assert [send for send, _ in steps[0]] == [[1], [0], [3], [2], [5], [4], [7], [6]]
    assert [send for send, _ in steps[1]] == [[2], [3], [4], [5], [6], [7], [0], [1]]
    hop = 2 if make is GetInnerOuterRingDynamicSendRecvRanks else 4
    assert [send for send, _ in steps[3]] == [[(r + hop) % 8] for r in range(8)]


def test_one_local_rank_leaves_at_every_step():
    ring = GetInnerOuterRingDynamicSendRecvRanks(5, 1, 0)
    assert list(itertools.islice(ring, 3)) == [([1], [4])] * 3
    expo2 = GetInnerOuterExpo2DynamicSendRecvRanks(5, 1, 0)
    assert [send for send, _ in itertools.islice(expo2, 4)] == [[1], [2], [4], [1]]


def test_one_machine_stays_inside_with_all_ranks():
    ring = GetInnerOuterRingDynamicSendRecvRanks(5, 5, 0)
    assert list(itertools.islice(ring, 3)) == [([1], [4])] * 3
    expo2 = GetInnerOuterExpo2DynamicSendRecvRanks(5, 5, 0)
    assert [send for send, _ in itertools.islice(expo2, 4)] == [[1], [2], [4], [1]]


@pytest.mark.parametrize("make", INNER_OUTER)
def test_a_world_of_one_has_no_peers(make):
    assert list(itertools.islice(make(1, 1, 0), 3)) == [([], [])] * 3


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: GetDynamicOnePeerSendRecvRanks(RingGraph(3), 3),
            ValueError,
            "self_rank must be less than the size 3, got 3",
        ),
        (
            lambda: GetDynamicOnePeerSendRecvRanks(None, 0),
            TypeError,
            "must be a networkx.DiGraph, got NoneType",
        ),
        (
            lambda: GetExp2DynamicSendRecvMachineRanks(8, 2, 3, 0),
            ValueError,
            "local_rank must be self_rank % local_size = 1, got 0",
        ),
        (
            lambda: GetExp2DynamicSendRecvMachineRanks(8, 3, 3, 0),
            ValueError,
            "world_size must be a multiple of local_size, got 8 ranks on machines of 3",
        ),
        (
            lambda: GetInnerOuterRingDynamicSendRecvRanks(8, 2, 8),
            ValueError,
            "self_rank must be less than the size 8, got 8",
        ),
        (
            lambda: GetInnerOuterExpo2DynamicSendRecvRanks(8, 0, 0),
            ValueError,
            "local_size must be at least 1, got 0",
        ),
        (
            lambda: GetInnerOuterExpo2DynamicSendRecvRanks(8.0, 2, 0),
            TypeError,
            "world_size must be an integer, got 8.0",
        ),
    ],
)
def test_wrong_arguments_are_refused_at_the_call(call, error, text):
    with pytest.raises(error, match=text):
        call()
