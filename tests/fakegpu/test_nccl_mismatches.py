"""Calls through NCCL that differ between ranks fail on all, which then go on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import networkx as nx
import pytest
import torch

import bluecomm as bf
from tests.support.errors import error_text
from tests.support.fakegpu.library import load
from tests.support.fakegpu.ranks import run_ranks_on_gpus, this_memory
from tests.support.fakegpu.transports import NCCL
from tests.support.nccl_calls import RANKS

pytestmark = pytest.mark.mp


def differ() -> list[str]:
    """Return errors of calls that differ, between calls that do not."""
    x = torch.ones(4)
    rank = bf.rank()
    found = [error_text(lambda: bf.allreduce(x[: 4 - rank % 2], name="shape"))]
    assert bf.allreduce(x, op=bf.Sum).tolist() == [RANKS] * 4
    found.append(error_text(lambda: bf.broadcast(x, rank % 2, name="root")))
    assert bf.allreduce(x, op=bf.Sum).tolist() == [RANKS] * 4
    host = x.cpu() if rank == 1 else x
    found.append(error_text(lambda: bf.allreduce(host, name="host")))
    assert bf.allreduce(x, op=bf.Sum).tolist() == [RANKS] * 4
    found.append(error_text(lambda: bf.allgather(host, name="rows")))
    assert bf.allreduce(x, op=bf.Sum).tolist() == [RANKS] * 4
    narrow = x.view(4, 1) if rank == 1 else x.view(2, 2)
    found.append(error_text(lambda: bf.allgather(narrow, name="columns")))
    given = torch.zeros(3) if rank == 1 else None
    found.append(error_text(lambda: bf.allgather(x, out=given, name="out")))
    assert bf.allgather(x).shape == (4 * RANKS,)
    with capturing():
        found.append(error_text(lambda: bf.allgather_nonblocking(x, name="captured")))
    assert bf.allgather(x).shape == (4 * RANKS,)
    found.append(error_text(lambda: send_to_nobody(x)))
    assert bf.allreduce(x, op=bf.Sum).tolist() == [RANKS] * 4
    return found


def differ_in_more_operations() -> dict[str, str]:
    """Return errors of calls that differ; a wait for the deadline fails the test."""
    x = torch.ones(4)
    rank = bf.rank()
    host = x.cpu() if rank == 1 else x
    found = {
        "root": error_text(lambda: bf.reduce(x, rank % 2, name="root")),
        "rows": error_text(lambda: bf.gather(host, 0, name="rows")),
        "neighbors": error_text(lambda: bf.neighbor_allgather(host, name="neighbors")),
        "machines": error_text(
            lambda: bf.hierarchical_neighbor_allreduce(host, name="machines")
        ),
    }
    bits, op = torch.ones(100_000, dtype=torch.int32), (bf.BitAnd, bf.BitOr)[rank % 2]
    found["bits"] = error_text(lambda: bf.allreduce(bits, op=op, name="bits"))
    if rank < 2:
        found["pair"] = error_text(lambda: bf.pair_gossip(host, 1 - rank, name="pair"))
        wrong = x.int() if rank == 0 else x
        found["refused"] = error_text(lambda: bf.pair_gossip(wrong, 1 - rank))
        assert bf.pair_gossip(x, 1 - rank).tolist() == [1.0] * 4
    graph = nx.DiGraph([(1, 2), (2, 1)])
    graph.add_node(0)
    bf.set_topology(graph)
    wrong = x.int() if rank == 0 else x
    found["no neighbors"] = error_text(lambda: bf.neighbor_allreduce(wrong))
    assert bf.allreduce(x, op=bf.Sum).tolist() == [RANKS] * 4
    return found


def test_more_calls_that_differ_fail_on_all_ranks():
    results = run_ranks_on_gpus(RANKS, differ_in_more_operations, environment=NCCL)
    for rank, found in enumerate(results):
        assert "MismatchError: reduce 'root'" in found["root"]
        assert "One rank's tensor goes through NCCL" in found["rows"]
        assert "One rank's tensor goes through NCCL" in found["neighbors"]
        assert "One rank's tensor goes through NCCL" in found["machines"]
        assert "MismatchError: allreduce 'bits'" in found["bits"]
        if rank < 2:
            assert "One rank's tensor goes through NCCL" in found["pair"]
        if rank == 0:
            assert found["refused"].startswith("ValueError")
            assert found["no neighbors"].startswith("ValueError")
            continue
        if rank == 1:
            assert "refused its call: ValueError" in found["refused"]
        assert "refused its call: ValueError" in found["no neighbors"]


def fail_and_go_on() -> dict[str, list[str]]:
    """Return errors of two calls, and of later ones whose parts have their names."""
    x = torch.ones(4)
    rank = bf.rank()
    calls = {
        "allgather": lambda y: bf.allgather(y, name="rows"),
        "alltoall": lambda y: bf.alltoall(y, name="parts"),
        "gather": lambda y: bf.gather(y, 3, name="gathered"),
        "neighbors": lambda y: bf.neighbor_allgather(y, name="neighbors"),
        "machines": lambda y: bf.hierarchical_neighbor_allreduce(y, name="machines"),
    }
    found = {}
    for key, call in calls.items():
        host = x.cpu() if rank == 1 else x
        no_tensor: Any = None if rank == 2 else x
        errors = [error_text(lambda c=call, y=y: c(y)) for y in (host, no_tensor)]
        for _ in range(64):  # the parts of calls have 64 names in turn
            call(x)
        found[key] = errors
    return found


def test_calls_that_failed_on_all_ranks_leave_nothing_behind():
    results = run_ranks_on_gpus(
        4, fail_and_go_on, environment=NCCL, ranks_per_machine=2
    )
    for rank, found in enumerate(results):
        for unlike, refused in found.values():
            assert "One rank's tensor goes through NCCL" in unlike
            assert ("refused its call" in refused) == (rank != 2)


def scatter_wrongly() -> dict[str, Any]:
    """Return the first result of a world, and errors of calls that differ."""
    x = torch.ones(2)
    rank = bf.rank()
    given = [x, x + 1, x + 2]
    found: dict[str, Any] = {"first": bf.scatter(given if rank == 2 else None, 2)}
    found["root"] = error_text(
        lambda: bf.scatter(given if rank == rank % 2 else None, rank % 2, "root")
    )
    found["too few"] = error_text(
        lambda: bf.scatter(given[1:] if rank == 0 else None, 0, "few")
    )
    narrow = x[:1].clone() if rank == 1 else torch.zeros(2)
    found["out"] = error_text(
        lambda: bf.scatter(given if rank == 0 else None, 0, "out", out=narrow)
    )
    memory: Any = 7 if rank == 1 else None
    found["no tensor"] = error_text(
        lambda: bf.scatter(given if rank == 0 else None, 0, out=memory)
    )
    with capturing():
        found["captured"] = error_text(
            lambda: bf.scatter(given if rank == 0 else None, 0, "captured")
        )
    found["last"] = bf.scatter(given if rank == 0 else None, 0)
    return found


def test_scatters_that_differ_fail_on_all_ranks():
    results = run_ranks_on_gpus(RANKS, scatter_wrongly, environment=NCCL)
    for rank, found in enumerate(results):
        assert found["first"].tolist() == found["last"].tolist() == [rank + 1.0] * 2
        assert "MismatchError: scatter 'root'" in found["root"]
        assert "expected a tensor for each of 3 ranks" in found["too few"]
        assert ("out must have type" in found["out"]) == (rank == 1)
        assert (found["out"] == "no error") == (rank != 1)
        assert "out must be a torch.Tensor, got int" in found["no tensor"]
        assert "captures a CUDA graph" in found["captured"]


@contextlib.contextmanager
def capturing() -> Iterator[None]:
    """Let the current stream of this rank capture a CUDA graph."""
    memory, cuda = this_memory(), load().cuda
    assert memory is not None
    cuda.fakegpu_set_capturing(memory.stream, True)
    try:
        yield
    finally:
        cuda.fakegpu_set_capturing(memory.stream, False)


def send_to_nobody(x: torch.Tensor) -> None:
    """Send to rank 2, which expects nothing; rank 0 is not concerned."""
    to = {2: 1.0} if bf.rank() == 1 else {}
    bf.neighbor_allreduce(
        x,
        self_weight=1.0,
        src_weights={},
        dst_weights=to,
        enable_topo_check=False,
        name="nobody",
    )


def test_calls_that_differ_fail_on_all_ranks_and_others_go_on():
    for texts in run_ranks_on_gpus(RANKS, differ, environment=NCCL):
        shape, root, host, rows, columns, out, captured, nobody = texts
        assert "MismatchError: allreduce 'shape'" in shape
        assert "All ranks must pass the same shape and dtype" in shape
        assert "MismatchError: broadcast 'root'" in root
        assert "One rank's tensor goes through NCCL" in host
        assert "One rank's tensor goes through NCCL" in rows
        assert "except for the first dimension, the same shape" in columns
        assert "allgather 'out.rows.0' on rank" in out
        assert "the tensors of out have other numbers of rows" in out
        assert "RuntimeError" in captured
        assert "captures a CUDA graph" in captured
        assert "MismatchError: neighbor_allreduce 'nobody'" in nobody
        assert "rank 1 sends to rank 2, which does not receive from it" in nobody
