"""Jobs that survive losses, whose calls go through NCCL on the fake's tensors."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import bluecomm as bf
from bluecomm.errors import BluecommError
from bluecomm.ops.nccl_call import NcclTickets
from bluecomm.ops.nccl_gather import NcclGather
from bluecomm.runtime.epochs import epochs, transactions
from tests.support.deadlines import DEADLINE_S
from tests.support.fakegpu.faults import set_fake
from tests.support.fakegpu.ranks import place, run_ranks_on_gpus
from tests.support.fakegpu.training import distribute, make_batches, make_model
from tests.support.fakegpu.transports import NCCL
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp
CALLS = 6
# The round, or the step, in which rank 2 is lost, when all have ended those before.
LOST_IN = 2


def set_fault(fault: str) -> None:
    """Have this rank end now, or at a call that it makes from now on.

    Args:
        fault: ``"kill"`` for now, ``"rows"`` for the time between the two calls of an
            operation that stacks rows, otherwise ``FAKEGPU_FAIL``.
    """
    if fault == "kill":
        end_now()
    if fault == "rows":
        mock.patch.object(NcclGather, "_start_rows", end_now).start()
    else:
        set_fake(FAIL=fault)


def end_now(*_: object) -> None:
    """End this rank as a crash does."""
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def patient() -> Iterator[None]:
    """Let failures wait for the decision about a loss for as long as it takes."""
    with (
        mock.patch.object(transactions, "REPORT_S", DEADLINE_S),
        mock.patch.object(epochs, "REPORT_S", DEADLINE_S),
    ):
        yield


@contextlib.contextmanager
def groups_of_tickets() -> Iterator[set[tuple[int, ...]]]:
    """Collect the ranks of each group in which a ticket is made."""
    seen: set[tuple[int, ...]] = set()
    make = NcclTickets.make

    def make_in(self, group):
        seen.add(group.ranks)
        return make(self, group)

    with mock.patch.object(NcclTickets, "make", make_in):
        yield seen


def call_all(x: torch.Tensor, i: int) -> list[torch.Tensor]:
    """Return the results of one round of calls."""
    in_place = x + i
    ahead = bf.allreduce_nonblocking(x * 2, op=bf.Sum, name="ahead")
    bf.allreduce_(in_place, op=bf.Sum)
    rooted = bf.broadcast(x, 0)
    return [in_place * 1, rooted * 1, bf.allreduce(x), ahead.wait() * 1]


def average(x: torch.Tensor, i: int) -> list[torch.Tensor]:
    """Return the results of averages with neighbors."""
    in_place = x + i
    bf.neighbor_allreduce_(in_place)
    size, rank = bf.size(), bf.rank()
    sent = bf.neighbor_allreduce(
        x,
        self_weight=0.5,
        src_weights={(rank - 1) % size: 0.5},
        dst_weights={(rank + 1) % size: 2.0},
    )
    return [in_place * 1, sent * 1]


def lose(
    body: Callable[[torch.Tensor, int], list[torch.Tensor]],
    faults: dict[int, tuple[int, str]],
) -> tuple[list[Any], set[tuple[int, ...]]]:
    """Return the results of calls during which ranks are lost.

    Args:
        body: Makes the calls of one round.
        faults: For ranks that are lost, the round and the fault; see ``set_fault``.
    """
    rank = bf.rank()
    bf.set_topology(bf.RingGraph(bf.size()))
    x = torch.full((4,), rank + 1.0)
    found = []
    with patient(), groups_of_tickets() as groups:
        for i in range(CALLS):
            if rank in faults and faults[rank][0] == i:
                set_fault(faults[rank][1])
            found.append([one.cpu().tolist() for one in body(x, i)])
    return found, groups


def expected_of(ranks: list[int], i: int) -> list[list[float]]:
    values = [rank + 1.0 for rank in ranks]
    total = sum(values)
    plain = [total + i * len(values), 1.0, total / len(values), 2 * total]
    return [[value] * 4 for value in plain]


@pytest.mark.parametrize(
    "faults",
    [
        {2: (2, "kill")},
        {2: (2, "ncclAllReduce:1=kill")},  # it has the number of the call
        {1: (2, "ncclBroadcast:1=kill")},
        {2: (0, "ncclCommInitRankConfig:1=kill")},
        # The second one is lost while the communicator for the others is made.
        {3: (2, "kill"), 1: (0, "ncclCommInitRankConfig:2=kill")},
    ],
)
def test_the_others_go_on_through_nccl(faults):
    ranks = list(range(2 + len(faults)))
    found = run_ranks_on_gpus(
        *(len(ranks), lose, call_all, faults),
        environment=NCCL,
        survives_losses=True,
        lost=faults,
    )
    left = [rank for rank in ranks if rank not in faults]
    lost_in = max(fault[0] for fault in faults.values())
    first, second = (found[rank][0] for rank in left)
    assert first == second
    for rank in left:
        results, groups = found[rank]
        assert tuple(left) in groups
        # The last calls before a loss may be repeated, if only the lost rank has
        # released them.
        for i in range(lost_in - 1):
            assert results[i] == expected_of(ranks, i)
        for i in range(lost_in + 1, CALLS):
            assert results[i] == expected_of(left, i)


def average_of(rank: int, left: list[int], i: int, size: int) -> list[list[float]]:
    """Return the averages of one rank; the own value stands for lost neighbors'."""

    def value(other: int) -> float:
        return (other if other in left else rank) + 1.0

    before, after = (rank - 1) % size, (rank + 1) % size
    static = (value(before) + value(rank) + value(after)) / 3 + i
    sent = 2 * value(before) if before in left else value(rank)
    return [[value] * 4 for value in (static, 0.5 * value(rank) + 0.5 * sent)]


@pytest.mark.parametrize("fault", ["kill", "ncclGroupEnd:1=kill"])
def test_averages_go_on_without_a_lost_neighbor(fault):
    faults = {2: (2, fault)}
    found = run_ranks_on_gpus(
        *(4, lose, average, faults),
        environment=NCCL,
        survives_losses=True,
        lost=faults,
    )
    for rank in (0, 1, 3):
        results, groups = found[rank]
        assert (0, 1, 3) in groups
        for i, result in enumerate(results):
            left = [0, 1, 2, 3] if i < 1 else [0, 1, 3]
            if i not in (1, 2):
                expected = average_of(rank, left, i, 4)
                torch.testing.assert_close(result, expected)


def outcome_of(call: Callable[[], torch.Tensor]) -> Any:
    """Return the values of a call, or the name of its error."""
    try:
        return call().cpu().tolist()
    except BluecommError as error:
        return type(error).__name__


def stack(x: torch.Tensor, i: int) -> list[Any]:
    """Return the outcomes of operations whose results have a part of each rank."""
    rank, size = bf.rank(), bf.size()
    uneven = x.new_full((rank + 1, 2), 10.0 * rank + i)
    even = x.new_full((2, 3), 10.0 * rank + i)
    before, after = (rank - 1) % size, (rank + 1) % size
    calls = [
        lambda: bf.allgather(even, name="even"),
        lambda: bf.allgather(uneven, name="uneven"),
        lambda: bf.gather(uneven, 0),
        lambda: bf.gather(even, 2),
        lambda: bf.neighbor_allgather(even, src_ranks=[before], dst_ranks=[after]),
        lambda: bf.neighbor_allgather(
            even, src_ranks=[0] * (rank == 1), dst_ranks=[1] * (rank == 0)
        ),
        lambda: bf.reduce(even, 1),
        lambda: bf.reduce(even, 2),
        lambda: bf.alltoall(x.new_full((size, 2), 1.0 * rank))[0],
        lambda: bf.reducescatter(even.repeat(3, 1), splits=[1, 2, 3], op=bf.Sum),
        lambda: bf.allgather(even, out=even.repeat(size, 1)),
        lambda: bf.allreduce(even.short(), op=bf.Sum),
        lambda: bf.allreduce(even.int(), op=bf.BitXor),
        lambda: bf.scatter([even] * size if rank == 1 else None, 1),
    ]
    if rank > 0:
        calls.append(lambda: bf.pair_gossip(x, 3 - rank, 0.25, 0.5))
    return [outcome_of(call) for call in calls]


def lose_while_stacking(fault: str) -> tuple[list[list[Any]], set[tuple[int, ...]]]:
    """Return the outcomes of rounds, in the third of which rank 2 is lost."""
    x = torch.full((4,), bf.rank() + 1.0)
    found = []
    with patient(), groups_of_tickets() as groups:
        for i in range(CALLS):
            if i == LOST_IN and bf.rank() == 2:
                set_fault(fault)
            found.append(stack(x, i))
    return found, groups


def test_operations_that_stack_rows_go_on_as_on_the_host():
    options: dict[str, Any] = {"survives_losses": True, "lost": [2]}
    expected = run_ranks(3, lose_while_stacking, "kill", **options)
    # Rank 2 is lost in no call, after a number, and between the numbers and the rows.
    for fault in ("kill", "ncclAllGather:1=kill", "rows"):
        found = run_ranks_on_gpus(
            *(3, lose_while_stacking, fault), environment=NCCL, **options
        )
        for rank in (0, 1):
            results, groups = found[rank]
            assert (0, 1) in groups
            # Calls of the round before may be repeated.
            for i in (0, *range(LOST_IN + 1, CALLS)):
                assert results[i] == expected[rank][0][i]


def average_machines() -> list[Any]:
    """Return the outcomes of averages of machines, before and after a loss."""
    x = torch.full((3,), bf.rank() + 1.0)
    found = []
    with patient():
        for tensor in (x, x.cpu()):
            found.append(bf.hierarchical_neighbor_allreduce(tensor).tolist())
        bf.barrier()
        if bf.rank() == 3:
            end_now()
        # The ranks that are left get the same sums, so they make as many calls.
        while bf.allreduce(x, op=bf.Sum).tolist() != [6.0] * 3:
            pass
        for _ in range(2):
            found.append(outcome_of(lambda: bf.hierarchical_neighbor_allreduce(x)))
        found.append(bf.allreduce(x, op=bf.Sum).tolist())
    return found


def test_averages_of_machines_need_a_lost_rank():
    options: dict[str, Any] = {"survives_losses": True, "lost": [3]}
    for found in run_ranks_on_gpus(
        *(4, average_machines), environment=NCCL, ranks_per_machine=2, **options
    )[:3]:
        through_nccl, on_host, *errors, total = found
        assert through_nccl == on_host
        assert errors == ["PeerLostError"] * 2
        assert total == [6.0] * 3


def leave_early() -> list[list[float]]:
    """Return sums of ranks of which rank 2 ends after the first."""
    x = torch.full((4,), bf.rank() + 1.0)
    found = []
    for _ in range(1 if bf.rank() == 2 else 4):
        found.append(bf.allreduce(x, op=bf.Sum).cpu().tolist())
        found.append(bf.neighbor_allreduce(x).cpu().tolist())
    return found


def test_the_others_go_on_when_a_rank_leaves():
    found = run_ranks_on_gpus(3, leave_early, environment=NCCL, survives_losses=True)
    for rank in (0, 1):
        assert found[rank][0] == [6.0] * 4
        assert found[rank][2::2] == [[3.0] * 4] * 3


def fail_without_loss(fault: str) -> list[str]:
    """Return the errors of calls when NCCL fails on rank 1, but nobody is lost."""
    x = torch.ones(4)
    bf.allreduce(x)
    if bf.rank() == 1:
        set_fake(FAIL=fault)
    texts = []
    with mock.patch.object(transactions, "REPORT_S", 0.1):
        for _ in range(2):
            with pytest.raises(BluecommError) as error:
                bf.allreduce(x, timeout_s=DEADLINE_S)
            texts.append(str(error.value))
        # The host's calls and other groups go on.
        assert bf.allreduce(torch.ones(1).cpu()).tolist() == [1.0]
    return texts


@pytest.mark.parametrize("fault", ["ncclAllReduce:1=2", "ncclAllReduce:1=6"])
def test_a_failure_without_a_loss_is_an_error(fault):
    for texts in run_ranks_on_gpus(
        3, fail_without_loss, fault, environment=NCCL, survives_losses=True
    ):
        for text in texts:
            assert "NCCL's communicator was aborted" in text


# --- Optimizers ----------------------------------------------------------------------

ALGORITHMS: dict[str, Mapping[str, Any]] = {
    "gradient_allreduce": {"algorithm": "gradient_allreduce", "bucket_bytes": 256},
    "fp16": {
        "algorithm": "gradient_allreduce",
        "compression": bf.Compression.fp16,
    },
    "allreduce": {"algorithm": "allreduce", "order": "cta", "bucket_bytes": 256},
    "neighbor, cta": {"algorithm": "neighbor_allreduce", "order": "cta"},
    "neighbor, atc": {"algorithm": "neighbor_allreduce", "order": "atc"},
    "one peer": {"algorithm": "neighbor_allreduce", "topology": "one_peer"},
    "exact_diffusion": {"algorithm": "exact_diffusion"},
    "diloco": {"algorithm": "diloco", "num_steps_per_communication": 2},
}


def train_and_lose(
    fault: str, batches: list[torch.Tensor]
) -> tuple[dict[str, list[torch.Tensor]], set[tuple[int, ...]]]:
    """Return the parameters of models that are trained together, by algorithm.

    Args:
        fault: The fault by which rank 2 is lost.
        batches: Images and labels.
    """
    models = {name: place(make_model()) for name in ALGORITHMS}
    optimizers = {}
    for name, model in models.items():
        bf.broadcast_parameters(model)
        optimizers[name] = distribute(model, ALGORITHMS[name])
    with patient(), groups_of_tickets() as groups:
        for step in range(4):
            if step == LOST_IN:
                for optimizer in optimizers.values():
                    optimizer.synchronize()
                bf.barrier()
                if bf.rank() == 2:
                    set_fault(fault)
            images, labels = batches[2 * (3 * step + bf.rank()) :][:2]
            for name, model in models.items():
                optimizers[name].zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizers[name].step()
        for optimizer in optimizers.values():
            optimizer.synchronize()
    found = {
        name: [one.detach().clone() for one in model.parameters()]
        for name, model in models.items()
    }
    return found, groups


def test_optimizers_train_on_as_on_the_host():
    options: dict[str, Any] = {"survives_losses": True, "lost": [2]}
    batches = make_batches()
    expected = run_ranks(3, train_and_lose, "kill", batches, **options)
    for fault in ("kill", "ncclAllReduce:1=kill"):
        found = run_ranks_on_gpus(
            *(3, train_and_lose, fault, batches), environment=NCCL, **options
        )
        for rank in (0, 1):
            assert (0, 1) in found[rank][1]
            for name in ALGORITHMS:
                tolerance = 1e-3 if name == "fp16" else 1e-5
                torch.testing.assert_close(
                    *(found[rank][0][name], expected[rank][0][name]),
                    rtol=tolerance,
                    atol=tolerance,
                )
