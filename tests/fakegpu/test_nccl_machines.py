"""Operations of machines through NCCL on the fake's tensors, compared with the host."""

from __future__ import annotations

import pytest
import torch

import bluecomm as bf
from tests.support.deadlines import DEADLINE_S
from tests.support.errors import error_text
from tests.support.fakegpu.faults import set_fake
from tests.support.fakegpu.ranks import place, run_ranks_on_gpus
from tests.support.fakegpu.transports import NCCL
from tests.support.nccl_calls import gradient_of
from tests.support.ranks import RankFailure, run_ranks

pytestmark = pytest.mark.mp


def average_machines(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return averages between two machines of two ranks."""
    x = tensors[bf.rank()] * 2
    name = {"name": "same"}
    started = [
        bf.hierarchical_neighbor_allreduce_nonblocking(x + i, **name) for i in range(3)
    ]
    results = [handle.wait() * 2 for handle in started]
    bf.hierarchical_neighbor_allreduce_nonblocking(x, name="dropped")
    other = 1 - bf.machine_rank()

    def uneven(y):
        return bf.hierarchical_neighbor_allreduce(
            y,
            self_weight=0.5,
            src_machine_weights={other: 0.25},
            dst_machine_weights={other: 2.0},
        )

    mates = bf.ProcessSet([0, 1]), bf.ProcessSet([2, 3])
    inside = {"process_set": mates[bf.machine_rank()]}
    alone = {"src_machine_weights": {}, "dst_machine_weights": {}}
    return [
        *results,
        uneven(x),
        uneven(x[:1, :1]),  # fewer elements than ranks of a machine
        uneven(x.bfloat16()),
        gradient_of(uneven, x),
        bf.hierarchical_neighbor_allreduce(x, self_weight=0.5, **alone, **inside),
        *train_on_machines(x),
    ]


def train_on_machines(x: torch.Tensor) -> list[torch.Tensor]:
    """Return parameters that machines have averaged after each of some steps."""
    torch.manual_seed(bf.rank())
    model = place(torch.nn.Linear(5, 3))
    plain = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = bf.DistributedOptimizer(
        plain, model, algorithm="hierarchical_neighbor_allreduce"
    )
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    optimizer.synchronize()
    return [one.detach().clone() for one in model.parameters()]


def machine_inputs() -> list[torch.Tensor]:
    return [torch.full((3, 5), float(rank)) + torch.arange(5) for rank in range(4)]


@pytest.fixture(scope="module")
def expected_of_machines():
    return run_ranks(4, average_machines, machine_inputs(), ranks_per_machine=2)


def test_averages_of_machines_are_those_of_the_host(expected_of_machines, seed):
    found = run_ranks_on_gpus(
        *(4, average_machines, machine_inputs()),
        seed=seed,
        environment=NCCL,
        ranks_per_machine=2,
    )
    torch.testing.assert_close(found, expected_of_machines)


def reduce_on_machines(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return reductions inside machines, in orders that differ between machines."""
    x = tensors[bf.rank()] * 2

    def start(name):
        return bf.allreduce_nonblocking(x, False, True, name)

    def gradient(op):
        return gradient_of(lambda y: bf.allreduce(y, None, True, op=op) * 1, x)

    names = ["a", "b"] if bf.machine_rank() == 0 else ["b", "a"]
    started = {name: start(name) for name in names}
    total = bf.allreduce(x)
    calls = bf.stats().devices.nccl_calls
    results = [
        total,
        *(started[name].wait() for name in sorted(names)),
        bf.allreduce(x, None, True),
        bf.allreduce_(x.clone(), None, True, op=bf.Max),
        bf.allreduce(x.bfloat16(), None, True, op=bf.Sum, postscale_factor=0.5),
        gradient(bf.Average),
        gradient(bf.Min),
        bf.allreduce(x.int(), None, True, op=bf.BitXor),
        bf.allreduce(x, None, True, op=bf.Adasum),
        bf.allreduce(x.double(), None, True, op=bf.Adasum),  # staged
    ]
    if calls:  # on a device
        copies = bf.stats().devices.copies_to_host
        assert (bf.stats().devices.nccl_calls - calls, copies) == (11, 1)
    return results


@pytest.fixture(scope="module")
def expected_inside():
    return run_ranks(5, reduce_on_machines, inputs_of(5), machines=[0, 1, 0, 1, 1])


def inputs_of(ranks: int) -> list[torch.Tensor]:
    return [torch.full((3, 5), float(rank)) + torch.arange(5) for rank in range(ranks)]


def test_reductions_inside_machines_are_those_of_the_host(expected_inside, seed):
    found = run_ranks_on_gpus(
        *(5, reduce_on_machines, inputs_of(5)),
        seed=seed,
        environment=NCCL,
        machines=[0, 1, 0, 1, 1],
    )
    torch.testing.assert_close(found, expected_inside)


def differ_on_a_machine() -> list[str]:
    """Return errors of calls that differ on the second machine."""
    x = torch.ones(4)
    rank = bf.rank()
    narrow = x[:3] if rank == 3 else x
    host = x.cpu() if rank == 3 else x
    wrong = x.int() if rank == 3 else x
    unfit = {"unfit": 1} if rank == 3 else {}
    found = [
        error_text(lambda y=y: bf.allreduce(y, None, True, name="inside"))
        for y in (narrow, host, wrong)
    ]
    assert bf.allreduce(x, None, True, op=bf.Sum).tolist() == [2.0] * 4
    found.append(error_text(lambda: bf.allreduce(wrong, None, True)))
    found.append(error_text(lambda: bf.allreduce(x, None, True, **unfit)))
    assert bf.allreduce(x, None, True, op=bf.Sum).tolist() == [2.0] * 4
    return found


def test_calls_that_differ_fail_on_their_machine_only():
    results = run_ranks_on_gpus(
        4, differ_on_a_machine, environment=NCCL, ranks_per_machine=2
    )
    assert results[:2] == [["no error"] * 5] * 2
    for rank, found in enumerate(results[2:]):
        shape, host, refused, unnamed, unfit = found
        assert "MismatchError: allreduce 'inside'" in shape
        assert "One rank's tensor goes through NCCL" in host
        for text in (refused, unnamed, unfit):
            assert ("refused its call" in text) == (rank == 0), text


def join_early() -> list[float]:
    """Return sums of a machine, one of whose ranks has joined before the first one."""
    if bf.rank() == 1:
        bf.join()
        return []
    x = torch.ones(2).cpu()
    total = bf.allreduce(x, None, True, op=bf.Sum)
    bf.join()
    return total.tolist()


def test_a_rank_that_has_joined_answers_calls_of_its_machine():
    found = run_ranks_on_gpus(4, join_early, environment=NCCL, ranks_per_machine=2)
    assert found == [[1.0] * 2, [], [2.0] * 2, [2.0] * 2]


def fail_midway(fault: str) -> list[str]:
    """Return errors of averages of machines; a part of the second fails on rank 1."""
    x = torch.ones(6)
    bf.hierarchical_neighbor_allreduce(x)
    if bf.rank() == 1:
        set_fake(FAIL=fault)
    texts = [
        error_text(lambda: bf.hierarchical_neighbor_allreduce(x)) for _ in range(3)
    ]
    if fault.endswith("kill"):
        # A failure, since the rank that died fails the run anyway.
        raise AssertionError(f"survivor: {texts[-1]}")
    return texts


# Each machine adds slices by ncclReduce, exchanges them by ncclSend, and gathers them.
@pytest.mark.parametrize("call", ["ncclReduce", "ncclSend", "ncclAllGather"])
def test_all_ranks_learn_which_part_of_an_average_has_failed_where(call):
    """A wait for the deadline fails the test."""
    results = run_ranks_on_gpus(
        *(4, fail_midway, f"{call}:1=2"),
        # NCCL would perhaps tell ranks of a loss before the engine tells them why.
        environment={**NCCL, "FAKEGPU_REMOTE_ERRORS": "0"},
        ranks_per_machine=2,
    )
    failed = [[text for text in texts if text != "no error"] for texts in results]
    for texts in failed:
        for text in texts:
            assert text.startswith("BluecommError: hierarchical_neighbor_"), text
    # Without the sum no other rank gets as far.
    told = failed if call == "ncclReduce" else failed[1:2]
    for texts in told:
        assert "rank 1" in texts[0], texts
        assert f"{call}: unhandled system error" in texts[0], texts
    assert all(failed)


@pytest.mark.parametrize("call", ["ncclReduce", "ncclSend"])
def test_all_ranks_learn_which_rank_is_lost_within_an_average(call):
    with pytest.raises(RankFailure) as failure:
        run_ranks_on_gpus(
            *(4, fail_midway, f"{call}:1=kill"),
            environment=NCCL,
            ranks_per_machine=2,
            report_s=DEADLINE_S,
        )
    text = str(failure.value)
    assert text.count("AssertionError: survivor: PeerLostError") == 3, text


# Each machine has another number of ranks, and the last one has one.
UNLIKE = [0, 1, 0, 1, 1, 2]


def average_unlike_machines(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return averages between machines with unlike numbers of ranks."""
    x = tensors[bf.rank()] * 2
    left, right = (bf.machine_rank() - 1) % 3, (bf.machine_rank() + 1) % 3

    def around(y):
        return bf.hierarchical_neighbor_allreduce(
            y,
            self_weight=0.5,
            src_machine_weights={right: 0.25},
            dst_machine_weights={left: 2.0},
        )

    name = {"name": "same"}
    started = [
        bf.hierarchical_neighbor_allreduce_nonblocking(x + i, **name) for i in range(3)
    ]
    results = [handle.wait() * 2 for handle in started]
    results += [around(x), around(x.bfloat16()), gradient_of(around, x)]
    devices = bf.stats().devices
    assert not devices.nccl_calls or not devices.copies_to_host
    return [*results, *train_on_machines(x)]


@pytest.fixture(scope="module")
def expected_of_unlike():
    return run_ranks(6, average_unlike_machines, inputs_of(6), machines=UNLIKE)


def test_averages_of_unlike_machines_are_those_of_the_host(expected_of_unlike, seed):
    found = run_ranks_on_gpus(
        *(6, average_unlike_machines, inputs_of(6)),
        seed=seed,
        environment=NCCL,
        machines=UNLIKE,
    )
    torch.testing.assert_close(found, expected_of_unlike)
