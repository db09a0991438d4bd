"""Neighbor operations against the mixing matrix: ``x_new = W @ x``."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

import bluecomm as bf
from tests.support.deadlines import DEADLINE_S
from tests.support.oracle import SHAPES, stacked
from tests.support.ranks import RankFailure, run_ranks

TOPOLOGIES = {
    "exponential": bf.ExponentialGraph,
    "ring": bf.RingGraph,
    "left ring": lambda n: bf.RingGraph(n, connect_style=1),
    "star": bf.StarGraph,
    "mesh": bf.MeshGrid2DGraph,
    "full": bf.FullyConnectedGraph,
}
WORLD_SIZES = [1, 2, 3, 5, 8]


def mix_all_shapes(topology: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """Mix one tensor of each shape, all outstanding at once, in two forms."""
    graph = TOPOLOGIES[topology](bf.size())
    bf.set_topology(graph, is_weighted=True)
    xs = [stacked(shape, bf.size(), dtype)[bf.rank()] for shape in SHAPES]
    handles = [
        bf.neighbor_allreduce_nonblocking(x, name=f"{i}") for i, x in enumerate(xs)
    ]
    results = [bf.wait(handle) for handle in reversed(handles)][::-1]
    for x, result in zip(xs, results, strict=True):
        in_place = x.clone()
        assert bf.neighbor_allreduce_(in_place) is in_place
        assert torch.equal(in_place, result)
        assert result.data_ptr() != x.data_ptr() or x.numel() == 0
    return results


def mix_by_all_topologies() -> dict[str, list[torch.Tensor]]:
    return {
        topology: mix_all_shapes(topology, torch.float64) for topology in TOPOLOGIES
    }


@functools.cache
def mixed(world_size: int, transport: str) -> list[dict[str, list[torch.Tensor]]]:
    """Return the results of each rank of one world, by topology."""
    return run_ranks(world_size, mix_by_all_topologies, transport=transport)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_multiplies_by_the_mixing_matrix(
    transport: str, topology: str, world_size: int
) -> None:
    matrix = bf.mixing_matrix(TOPOLOGIES[topology](world_size))
    got = [results[topology] for results in mixed(world_size, transport)]
    for position, shape in enumerate(SHAPES):
        x = stacked(shape, world_size, torch.float64).numpy()
        y = np.stack([results[position].numpy() for results in got])
        np.testing.assert_allclose(y, np.tensordot(matrix, x, axes=1), atol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-6), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)],
)
def test_every_floating_point_type(dtype: torch.dtype, tolerance: float) -> None:
    matrix = bf.mixing_matrix(bf.ExponentialGraph(5))
    got = run_ranks(5, mix_all_shapes, "exponential", dtype)
    for position, shape in enumerate(SHAPES):
        x = stacked(shape, 5, dtype).double().numpy()
        y = np.stack([results[position].double().numpy() for results in got])
        expected = np.tensordot(matrix, x, axes=1)
        np.testing.assert_allclose(y, expected, atol=tolerance * 4)


def mix_dynamically(
    weights: np.ndarray, check: bool, dtype: torch.dtype
) -> torch.Tensor:
    """Mix by a matrix, half of each weight at the receiver and half at the sender."""
    me, n = bf.rank(), bf.size()
    x = stacked((1000,), n, dtype)[me]
    sources = {j: 0.5 for j in range(n) if j != me and weights[me, j]}
    targets = {i: 2 * weights[i, me] for i in range(n) if i != me and weights[i, me]}
    return bf.neighbor_allreduce(
        x,
        self_weight=float(weights[me, me]),
        src_weights=sources,
        dst_weights=targets,
        enable_topo_check=check,
    )


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(
    ("world_size", "dtype", "tolerance"),
    [*((n, torch.float64, 1e-12) for n in (2, 3, 5, 8)), (3, torch.float16, 2e-2)],
)
def test_dynamic_weights_multiply(
    world_size: int, dtype: torch.dtype, tolerance: float, check: bool
) -> None:
    rng = np.random.default_rng(world_size)
    weights = rng.random((world_size, world_size))
    weights *= rng.random(weights.shape) < 0.6
    x = stacked((1000,), world_size, dtype).double().numpy()
    got = run_ranks(world_size, mix_dynamically, weights, check, dtype)
    assert all(each.dtype == dtype for each in got)
    y = torch.stack(got).double().numpy()
    np.testing.assert_allclose(y, weights @ x, rtol=tolerance, atol=tolerance)


def mix_subset() -> torch.Tensor:
    x = torch.full((4,), float(10 ** bf.rank()), dtype=torch.float64)
    bf.set_topology(bf.StarGraph(bf.size()))
    if bf.rank() == 0:
        return bf.neighbor_allreduce(x, self_weight=0.4, src_weights={3: 0.6})
    return bf.neighbor_allreduce(x, self_weight=1.0, src_weights={})


def test_subset_of_in_neighbors_uses_their_data() -> None:
    got = run_ranks(4, mix_subset)
    assert got[0].tolist() == [600.4] * 4
    assert got[2].tolist() == [100.0] * 4


def no_neighbors() -> bool:
    x = torch.full((8,), 10.0)
    y = bf.neighbor_allreduce(x, self_weight=0.5, src_weights={}, dst_weights=[])
    assert y.tolist() == [5.0] * 8
    assert x.tolist() == [10.0] * 8
    return x.data_ptr() != y.data_ptr()


@pytest.mark.parametrize("world_size", [1, 2])
def test_without_in_neighbors_the_input_is_unchanged(world_size: int) -> None:
    assert all(run_ranks(world_size, no_neighbors))


def disagree(check: bool) -> str:
    others = [] if bf.rank() == 2 else [(bf.rank() + 1) % bf.size()]
    sources = {(bf.rank() - 1) % bf.size(): 0.5}
    try:
        bf.neighbor_allreduce(
            torch.ones(3),
            self_weight=0.5,
            src_weights=sources,
            dst_weights=others,
            enable_topo_check=check,
            timeout_s=DEADLINE_S if check else 3,
        )
    except (ValueError, bf.CommunicationTimeout) as error:
        return str(error)
    return "no error"


def test_topology_check_raises_everywhere() -> None:
    for text in run_ranks(4, disagree, True):
        assert "do not match" in text
        assert "rank 3 receives from rank 2, which does not send to it" in text


def test_unchecked_disagreement_names_the_silent_rank() -> None:
    texts = run_ranks(4, disagree, False)
    assert "rank 2" in texts[3]


def mix_machines(sizes: list[int]) -> torch.Tensor:
    x = stacked((1001,), bf.size(), torch.float64)[bf.rank()]
    assert bf.machine_size() == len(sizes)
    assert bf.local_size() == sizes[bf.machine_rank()]
    bf.set_machine_topology(bf.RingGraph(bf.machine_size()), is_weighted=True)
    return bf.hierarchical_neighbor_allreduce(x)


@pytest.mark.parametrize("sizes", [[2, 2], [4], [1, 1, 1], [3, 2], [1, 4], [2, 3, 3]])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_hierarchical_mixes_machine_averages(sizes: list[int], transport: str) -> None:
    machines = [m for m, size in enumerate(sizes) for _ in range(size)]
    n = len(machines)
    x = stacked((1001,), n, torch.float64).numpy()
    means = np.stack(
        [x[np.array(machines) == m].mean(axis=0) for m in range(len(sizes))]
    )
    mixed = bf.mixing_matrix(bf.RingGraph(len(sizes))) @ means
    where = {"machines": machines, "transport": "auto" if transport == "shm" else "tcp"}
    got = run_ranks(n, mix_machines, sizes, **where)
    np.testing.assert_allclose(np.stack(got), mixed[machines], rtol=1e-12)


@pytest.mark.parametrize(("world_size", "k"), [(4, 2), (5, 2), (3, 1)])
def test_hierarchical_on_simulated_machines(world_size: int, k: int) -> None:
    machines = [rank // k for rank in range(world_size)]
    sizes = [machines.count(m) for m in range(max(machines) + 1)]
    x = stacked((1001,), world_size, torch.float64).numpy()
    means = np.stack(
        [x[np.array(machines) == m].mean(axis=0) for m in range(len(sizes))]
    )
    mixed = bf.mixing_matrix(bf.RingGraph(len(sizes))) @ means
    got = run_ranks(world_size, mix_machines, sizes, ranks_per_machine=k)
    np.testing.assert_allclose(np.stack(got), mixed[machines], rtol=1e-12)


def gossip() -> list[torch.Tensor]:
    partner = bf.rank() ^ 1
    x = torch.full((5,), float(bf.rank()), dtype=torch.float64)
    even = bf.pair_gossip(x, partner)
    weighted = bf.pair_gossip(x, partner, self_weight=0.25, pair_weight=0.75)
    return [even, weighted]


def test_pair_gossip() -> None:
    for rank, (even, weighted) in enumerate(run_ranks(4, gossip)):
        pair = (rank + (rank ^ 1)) / 2
        assert even.tolist() == [pair] * 5
        assert weighted.tolist() == [0.25 * rank + 0.75 * (rank ^ 1)] * 5


def gather_neighbors() -> tuple[list[float], list[float]]:
    rows = bf.rank() + 1
    x = torch.full((rows, 2), float(bf.rank()))
    bf.set_topology(bf.StarGraph(bf.size()))
    static = bf.neighbor_allgather(x)
    n, me = bf.size(), bf.rank()
    order = [(me - 1) % n, (me - 2) % n]
    dynamic = bf.neighbor_allgather(
        x, src_ranks=order, dst_ranks=[(me + 1) % n, (me + 2) % n]
    )
    return static[:, 0].tolist(), dynamic[:, 1].tolist()


def test_neighbor_allgather_stacks_in_order() -> None:
    got = run_ranks(4, gather_neighbors)
    assert got[0][0] == [1.0] * 2 + [2.0] * 3 + [3.0] * 4
    assert got[2][0] == [0.0]
    assert got[1][1] == [0.0] + [3.0] * 4
    assert got[0][1] == [3.0] * 4 + [2.0] * 3


def wrong_calls() -> None:
    x = torch.ones(4)
    with pytest.raises(ValueError, match="have to be given together"):
        bf.neighbor_allreduce(x, self_weight=0.5)
    with pytest.raises(ValueError, match="needs self_weight and src_weights"):
        bf.neighbor_allreduce(x, dst_weights=[1])
    bf.set_topology(bf.RingGraph(bf.size(), connect_style=2))
    stranger = (bf.rank() + 1) % bf.size()
    with pytest.raises(ValueError, match="must be in-neighbors of rank"):
        bf.neighbor_allreduce(x, self_weight=0.5, src_weights={stranger: 0.5})
    with pytest.raises(ValueError, match="weighted average"):
        bf.neighbor_allreduce(x.int())
    with pytest.raises(ValueError, match="a rank twice"):
        bf.neighbor_allreduce(x, self_weight=1.0, src_weights={}, dst_weights=[1, 1])
    with pytest.raises(ValueError, match="itself"):
        bf.neighbor_allreduce(
            x, self_weight=1.0, src_weights={}, dst_weights=[bf.rank()]
        )
    with pytest.raises(ValueError, match="must be finite numbers"):
        bf.neighbor_allreduce(x, self_weight="1", src_weights={})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="finite numbers, got nan"):
        bf.neighbor_allreduce(x, self_weight=float("nan"), src_weights={})
    with pytest.raises(ValueError, match=r"neighbor_allreduce: dst_weights: each rank"):
        bf.neighbor_allreduce(x, self_weight=1.0, src_weights={}, dst_weights=[9])
    with pytest.raises(ValueError, match="src_machine_weights: each machine must be"):
        bf.hierarchical_neighbor_allreduce(
            x, self_weight=0.5, src_machine_weights={4: 0.5}, dst_machine_weights=[]
        )
    with pytest.raises(ValueError, match="target_rank"):
        bf.pair_gossip(x, bf.rank())
    with pytest.raises(TypeError, match=r"expected a torch\.Tensor"):
        bf.neighbor_allreduce([1.0])  # type: ignore[arg-type]


def test_wrong_calls_are_refused_before_anything_is_sent() -> None:
    run_ranks(3, wrong_calls)


def equal_calls() -> list[float]:
    """Call with valid weights, equal invalid ones, and different ones each time."""
    me, n = bf.rank(), bf.size()
    source, target = (me - 1) % n, (me + 1) % n
    x = torch.full((4,), float(me))

    def value(self_weight: float, weight: float, targets: object) -> float:
        result = bf.neighbor_allreduce(
            x,
            self_weight=self_weight,
            src_weights={source: weight},
            dst_weights=targets,  # type: ignore[arg-type]
            enable_topo_check=False,
        )
        return float(result[0])

    values = [value(1.0, 1.0, [target]), value(1.0, 1.0, {target: 2.0})]
    with pytest.raises(ValueError, match="must be finite numbers, got True"):
        value(1.0, True, [target])
    with pytest.raises(ValueError, match="must be finite numbers, got True"):
        value(True, 1.0, [target])
    with pytest.raises(ValueError, match="a rank twice"):
        value(1.0, 1.0, [target, target])
    values += [value(1, 1, [target]), value(1.0, 1.0, (target,))]
    values.append(float(bf.neighbor_allreduce(x)[0]))
    bf.set_topology(bf.RingGraph(n, connect_style=1))
    values.append(float(bf.neighbor_allreduce(x)[0]))
    bf.set_topology(bf.RingGraph(n, connect_style=2))
    values.append(float(bf.neighbor_allreduce(x)[0]))
    return values


def test_cached_arguments_apply_to_equal_calls_only() -> None:
    got = run_ranks(3, equal_calls)
    for me, values in enumerate(got):
        before, after = (me - 1) % 3, (me + 1) % 3
        both = me + before
        expected = [both, me + 2 * before, both, both, 1.0]
        by_style = {1: (me + after) / 2, 2: (me + before) / 2}
        assert values[:5] == pytest.approx(expected)
        assert set(np.round(values[5:], 5)) == set(np.round([*by_style.values()], 5))


def test_a_failing_rank_is_reported() -> None:
    with pytest.raises(RankFailure, match=r"rank 1:\n[\s\S]*deliberate"):
        run_ranks(2, fail_on_rank_one)


def fail_on_rank_one() -> None:
    if bf.rank() == 1:
        raise RuntimeError("deliberate")
