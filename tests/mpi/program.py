"""Runs all cases under MPI's mpirun, in one launch, each in a world of its own.

Each rank writes ``RANK.json`` into the given folder. The file maps the name of each
case to the traceback of its failure, or to an empty string. The ranks act as if every
two of them shared a machine.

With ``mpi4py`` as the second argument, mpi4py initializes MPI before bluecomm does.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import bluecomm as bf
import bluecomm.runtime.rendezvous.bootstrap_exchange
from bluecomm.runtime import current_communicator, current_process
from tests.mp.test_allreduce import other_collectives, reduce_all, shuffled_names
from tests.mp.test_neighbor_allreduce import TOPOLOGIES, mix_all_shapes
from tests.mp.test_optim_one_sided import RATE, STEPS, push_with_constant_gradient
from tests.mp.test_point_to_point import ring_of_values, shuffled_tags
from tests.mp.test_rooted_operations import all_of_them
from tests.mp.test_window_errors import a_mutex_timeout_names_the_holder
from tests.mp.test_windows import (
    collecting_is_exact,
    get_reads_the_published_value,
    push_sum_finds_the_mean,
    several_puts_are_outstanding,
    update_multiplies_by_the_mixing_matrix,
    updates_see_complete_puts_only,
    weights_of_a_put_and_versions,
)
from tests.support import methods
from tests.support.logistic import start_of
from tests.support.optimizers import optimizers_follow_their_formulas
from tests.support.oracle import SHAPES, stacked
from tests.support.uneven_end import finish_before_the_others


def transports() -> list[str]:
    """Return the kind of the link to each rank."""
    world = current_communicator().world
    return [world.transport_of(rank) for rank in range(bf.size())]


def mixes_by_the_matrix() -> None:
    n, me = bf.size(), bf.rank()
    for topology, make in TOPOLOGIES.items():
        results = mix_all_shapes(topology, torch.float64)
        matrix = bf.mixing_matrix(make(n))
        for shape, got in zip(SHAPES, results, strict=True):
            x = stacked(shape, n, torch.float64).numpy()
            expected = np.tensordot(matrix, x, axes=1)[me]
            np.testing.assert_allclose(got.numpy(), expected, atol=1e-12)


def large_tensors() -> None:
    """More bytes than the buffers hold travel in both directions at once."""
    n, me = bf.size(), bf.rank()
    x = torch.arange(3_000_001, dtype=torch.float32) % 1000 + me
    handles = [bf.allreduce_nonblocking(x + i, name=f"large {i}") for i in range(4)]
    for i, handle in enumerate(handles):
        expected = x - me + i + (n - 1) / 2
        torch.testing.assert_close(bf.synchronize(handle), expected)


def trains() -> None:
    """All ranks have the same weights after steps by averaged gradients."""
    torch.manual_seed(bf.rank())
    model = torch.nn.Linear(50, 30)
    bf.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model=model,
        algorithm="gradient_allreduce",
    )
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 50)).square().mean().backward()
        optimizer.step()
    everyone = bf.allgather(model.weight.detach().reshape(1, -1))
    assert torch.equal(everyone, everyone[:1].expand_as(everyone))


def auto_mixes_shm_and_mpi() -> None:
    me = bf.rank()
    machine = [me // 2 * 2, me // 2 * 2 + 1]
    expected = ["shm" if rank in machine else "mpi" for rank in range(bf.size())]
    expected[me] = "self"
    assert transports() == expected
    assert (bf.local_rank(), bf.local_size()) == (me % 2, 2)
    assert (bf.machine_rank(), bf.machine_size()) == (me // 2, bf.size() // 2)
    other_collectives()
    mixes_by_the_matrix()
    large_tensors()
    trains()
    x = torch.full((100_000,), float(me))
    bf.set_machine_topology(bf.RingGraph(bf.machine_size()))
    got = bf.hierarchical_neighbor_allreduce(x)
    assert torch.equal(got, torch.full_like(x, (bf.size() - 1) / 2))


def optimizers_follow_their_formulas_over_mpi() -> None:
    assert {*transports()} == {"self", "mpi"}
    optimizers_follow_their_formulas()


def methods_follow_their_papers() -> None:
    """Decentralized methods on a line of four ranks, after a few steps."""
    methods.set_line()
    starts = np.stack([start_of(rank) for rank in range(bf.size())])
    for name, method in methods.METHODS.items():
        model, optimizer = methods.make(method)
        methods.train(model, optimizer, methods.FEW, method.how)
        got = methods.vector_of(model, optimizer)
        recursion = method.paper(starts)
        expected = next(itertools.islice(recursion, methods.FEW - 1, None))
        np.testing.assert_allclose(
            got, expected[bf.rank()], rtol=1e-9, atol=1e-12, err_msg=name
        )


def push_sum_reaches_the_exact_value() -> None:
    values, *_ = push_with_constant_gradient()
    exact = (bf.size() - 1) / 2 - STEPS * RATE
    np.testing.assert_allclose(values, exact, atol=1e-9)


def windows_over_mpi() -> None:
    """Puts and gets are messages, which the peer's engine answers by itself."""
    assert {*transports()} == {"self", "mpi"}
    for case in (
        update_multiplies_by_the_mixing_matrix,
        collecting_is_exact,
        weights_of_a_put_and_versions,
        get_reads_the_published_value,
        several_puts_are_outstanding,
        a_mutex_timeout_names_the_holder,
        updates_see_complete_puts_only,
    ):
        case()
        bf.barrier()


def windows_over_shm_and_mpi() -> None:
    """A put to one neighbor is a copy, and to the other one a message."""
    assert {*transports()} == {"self", "shm", "mpi"}
    for case in (several_puts_are_outstanding, push_sum_finds_the_mean):
        case()
        bf.barrier()


def all_over_mpi() -> None:
    assert {*transports()} == {"self", "mpi"}
    reduce_all()
    other_collectives()
    shuffled_names()
    mixes_by_the_matrix()
    large_tensors()


def rooted_operations_and_messages() -> None:
    all_of_them()
    ring_of_values()
    shuffled_tags(40)


def waiting_leaves_the_cores_free() -> None:
    """A rank that waits uses little processor time, even if ranks share cores."""
    bf.barrier()
    wall_s, cpu_s = time.monotonic(), time.process_time()
    if bf.rank() == 0:
        time.sleep(1)
    bf.allreduce(torch.ones(100_000), name="late")
    wall_s, cpu_s = time.monotonic() - wall_s, time.process_time() - cpu_s
    assert cpu_s < wall_s / 4


def all_over_tcp() -> None:
    assert {*transports()} == {"self", "tcp"}
    other_collectives()


def shares_mpi_with_mpi4py() -> None:
    """bluecomm and mpi4py use the same MPI, whichever of them initialized it."""
    from mpi4py import MPI

    assert MPI.Is_initialized()
    assert bf.mpi_threads_supported()
    assert MPI.COMM_WORLD.rank == bf.rank()
    handles = [
        bf.allreduce_nonblocking(torch.ones(200_000), name=f"beside {i}", op=bf.Sum)
        for i in range(8)
    ]
    for _ in range(20):
        assert MPI.COMM_WORLD.allreduce(1) == bf.size()
    for handle in handles:
        assert bf.synchronize(handle)[0] == bf.size()


def worlds_of_communicators() -> None:
    """Two worlds exist side by side, and one rank belongs to neither."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    color = MPI.UNDEFINED if world.rank == 1 else min(world.rank, 1)
    # In descending order: rank 0 of each part is its last rank in the world.
    part = world.Split(color, key=-world.rank)
    if part == MPI.COMM_NULL:
        with pytest.raises(ValueError, match="MPI_COMM_NULL"):
            bf.init(comm=part)
        return
    bf.init(comm=part)
    assert (bf.rank(), bf.size()) == (part.rank, part.size)
    other_collectives()
    total = bf.allreduce(torch.tensor([float(world.rank)]), op=bf.Sum)
    assert total.item() == part.allreduce(world.rank)
    optimizers_follow_their_formulas()
    bf.shutdown()
    bf.init()
    assert bf.size() == part.size
    assert bf.allreduce(torch.ones(100_000), op=bf.Sum)[-1] == part.size
    part.Free()


def ranks_end_unevenly() -> None:
    finish_before_the_others(Path(sys.argv[1]))


CASES: list[tuple[str, Callable[[], None]]] = [
    ("auto", auto_mixes_shm_and_mpi),
    ("auto", windows_over_shm_and_mpi),
    ("mpi", all_over_mpi),
    ("mpi", windows_over_mpi),
    ("mpi", rooted_operations_and_messages),
    ("auto", optimizers_follow_their_formulas),
    ("mpi", optimizers_follow_their_formulas_over_mpi),
    ("mpi", methods_follow_their_papers),
    ("mpi", push_sum_reaches_the_exact_value),
    ("mpi", waiting_leaves_the_cores_free),
    ("tcp", all_over_tcp),
    ("mpi", ranks_end_unevenly),
    ("mpi", shares_mpi_with_mpi4py),
]


def attempt(case: Callable[[], None]) -> str:
    """Return the traceback of a case that fails, otherwise an empty string."""
    try:
        case()
    except Exception:
        return traceback.format_exc()
    return ""


def main(folder: Path, comes_first: str = "bluecomm") -> None:
    launched = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
    machine = f"machine {int(launched) // 2}"
    bluecomm.runtime.rendezvous.bootstrap_exchange.machine_identity = lambda: machine
    if comes_first == "mpi4py":
        from mpi4py import MPI

        assert MPI.Query_thread() == MPI.THREAD_MULTIPLE
    failures: dict[str, str] = {}
    for transport, case in CASES:
        os.environ["BLUECOMM_TRANSPORT"] = transport
        bf.init()
        failures[case.__name__] = attempt(case)
        bf.shutdown()
    if comes_first == "mpi4py":
        # Starts again like a new process, while MPI goes on.
        current_process().leave()
        failures[worlds_of_communicators.__name__] = attempt(worlds_of_communicators)
        assert MPI.COMM_WORLD.allreduce(1) == MPI.COMM_WORLD.size
    (folder / f"{launched}.json").write_text(json.dumps(failures))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
