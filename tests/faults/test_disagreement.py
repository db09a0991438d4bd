"""Ranks call one operation with differing arguments, and all of them learn how."""

from __future__ import annotations

import logging

import pytest
import torch

import bluecomm as bf
from bluecomm.errors import MismatchError
from bluecomm.ops.recv import post_receive
from bluecomm.ops.send import post_send
from bluecomm.runtime import current_communicator
from tests.support.deadlines import DEADLINE_S, hear, say
from tests.support.outcome import outcome_of
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.faults

# Much shorter than the default deadline of operations, 600 s.
AT_ONCE_S = DEADLINE_S


def _ones(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


def _allreduce(tensor=None, **options):
    return lambda: bf.allreduce(
        _ones(3, 4) if tensor is None else tensor, name="x", **options
    )


# The call of rank 1, the call of the others, and how the error describes both.
DISAGREEMENTS = {
    "shape": (
        _allreduce(_ones(4, 4)),
        _allreduce(),
        "float32 [4, 4] average",
        "float32 [3, 4] average",
        "same shape and dtype",
    ),
    "dimensions": (
        _allreduce(_ones(12)),
        _allreduce(),
        "float32 [12]",
        "float32 [3, 4]",
        "same shape and dtype",
    ),
    "large shape": (
        _allreduce(_ones(1 << 20)),
        _allreduce(_ones(1 << 19)),
        "[1048576]",
        "[524288]",
        "same shape and dtype",
    ),
    "large and small": (
        _allreduce(_ones(1 << 20)),
        _allreduce(_ones(1)),
        "[1048576]",
        "[1]",
        "same shape and dtype",
    ),
    "dtype": (
        _allreduce(_ones(3, 4, dtype=torch.float64)),
        _allreduce(),
        "allreduce float64",
        "allreduce float32",
        "same shape and dtype",
    ),
    "reduction": (
        _allreduce(op=bf.Sum),
        _allreduce(op=bf.Max),
        "[3, 4] sum",
        "[3, 4] max",
        "same reduction",
    ),
    "prescale": (
        _allreduce(prescale_factor=2.0),
        _allreduce(),
        "prescale 2",
        "[3, 4] average",
        "scale factors",
    ),
    "postscale": (
        _allreduce(postscale_factor=0.5),
        _allreduce(),
        "postscale 0.5",
        "[3, 4] average",
        "scale factors",
    ),
    "hierarchical": (
        _allreduce(is_hierarchical_local=True),
        _allreduce(),
        "inside the machine",
        "[3, 4] average",
        "inside the machine, or over all",
    ),
    "kind": (
        lambda: bf.broadcast(_ones(3), 0, name="x"),
        lambda: bf.allreduce(_ones(3), name="x"),
        "called broadcast float32 [3] from root 0",
        "called allreduce float32 [3] average",
        "same operation under one name",
    ),
    "kind of gather": (
        lambda: bf.allgather(_ones(3), name="x"),
        lambda: bf.alltoall(_ones(3), name="x"),
        "called allgather",
        "called alltoall",
        "same operation under one name",
    ),
    "trailing dimensions": (
        lambda: bf.allgather(_ones(2, 5), name="x"),
        lambda: bf.allgather(_ones(7, 4), name="x"),
        "[2, 5]",
        "[7, 4]",
        "except for the first dimension",
    ),
    "alltoall": (
        lambda: bf.alltoall(_ones(3, 2, dtype=torch.int32), name="x"),
        lambda: bf.alltoall(_ones(3, 2), name="x"),
        "int32",
        "float32",
        "same dtype",
    ),
    "reducescatter": (
        lambda: bf.reducescatter(_ones(6, 2), name="x"),
        lambda: bf.reducescatter(_ones(3, 2), name="x"),
        "[6, 2]",
        "[3, 2]",
        "same shape and dtype",
    ),
    "neighbor_allreduce": (
        lambda: bf.neighbor_allreduce(_ones(9), name="x"),
        lambda: bf.neighbor_allreduce(_ones(8), name="x"),
        "called neighbor_allreduce float32 [9]",
        "called neighbor_allreduce float32 [8]",
        "same shape and dtype",
    ),
    "neighbor_allgather": (
        lambda: bf.neighbor_allgather(_ones(2, 5), name="x"),
        lambda: bf.neighbor_allgather(_ones(2, 6), name="x"),
        "[2, 5]",
        "[2, 6]",
        "except for the first dimension",
    ),
    "hierarchical_neighbor_allreduce": (
        lambda: bf.hierarchical_neighbor_allreduce(_ones(9), name="x"),
        lambda: bf.hierarchical_neighbor_allreduce(_ones(8), name="x"),
        "[9]",
        "[8]",
        "same shape and dtype",
    ),
}

# In these calls a rank may finish before it can learn that others disagree.
ONE_WAY = {
    "gather": (
        lambda: bf.gather(_ones(2, 5), 0, name="x"),
        lambda: bf.gather(_ones(7, 4), 0, name="x"),
    ),
    "reduce": (
        lambda: bf.reduce(_ones(3), 1, name="x"),
        lambda: bf.reduce(_ones(3), 0, name="x"),
    ),
    "root": (
        lambda: bf.broadcast(_ones(3), 1, name="x"),
        lambda: bf.broadcast(_ones(3), 0, name="x"),
    ),
    "broadcast shape": (
        lambda: bf.broadcast(_ones(5), 0, name="x"),
        lambda: bf.broadcast(_ones(3), 0, name="x"),
    ),
    "broadcast dtype": (
        lambda: bf.broadcast(_ones(3, dtype=torch.float64), 0, name="x"),
        lambda: bf.broadcast(_ones(3), 0, name="x"),
    ),
    "broadcast of a large tensor": (
        lambda: bf.broadcast(_ones(1 << 21), 0, name="x"),
        lambda: bf.broadcast(_ones(1 << 20), 0, name="x"),
    ),
    "allgather": (
        lambda: bf.allgather(_ones(2, 5), name="x"),
        lambda: bf.allgather(_ones(7, 4), name="x"),
    ),
    "alltoall": (
        lambda: bf.alltoall(_ones(6, 2, dtype=torch.int32), name="x"),
        lambda: bf.alltoall(_ones(6, 2), name="x"),
    ),
    "neighbor_allreduce": (
        lambda: bf.neighbor_allreduce(_ones(9), name="x"),
        lambda: bf.neighbor_allreduce(_ones(8), name="x"),
    ),
    "neighbor_allgather": (
        lambda: bf.neighbor_allgather(_ones(2, 5), name="x"),
        lambda: bf.neighbor_allgather(_ones(2, 6), name="x"),
    ),
}


def _disagree(case):
    odd, usual, *_ = DISAGREEMENTS[case]
    outcome = outcome_of(odd if bf.rank() == 1 else usual)
    return outcome, _mix_in_any_order()


def _mix_in_any_order():
    """Each rank starts the same named operations, in an order of its own."""
    names = [f"mix.{i}" for i in range(8)]
    shift = 3 * bf.rank() % len(names)
    handles = {
        name: bf.allreduce_nonblocking(torch.full((5,), float(name[4:])), name=name)
        for name in names[shift:] + names[:shift]
    }
    return [float(handles[name].wait().sum()) for name in names]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("case", DISAGREEMENTS)
def test_all_ranks_learn_who_called_what(case, transport):
    *_, odd, usual, remedy = DISAGREEMENTS[case]
    machines = {"ranks_per_machine": 1} if "hierarchical_" in case else {}
    outcomes = run_ranks(3, _disagree, case, transport=transport, **machines)
    for rank, (outcome, after) in enumerate(outcomes):
        error = outcome.error
        assert isinstance(error, MismatchError), outcome
        assert outcome.seconds < AT_ONCE_S
        assert "'x'" in outcome.text
        assert "rank 1 (host0) called" in outcome.text
        assert "rank 0 (host0)" in outcome.text or "rank 2 (host0)" in outcome.text
        assert odd in outcome.text
        assert usual in outcome.text
        assert remedy in outcome.text
        assert error.name == "x"
        assert error.rank == rank
        assert error.operation in outcome.text
        assert after == [5.0 * i for i in range(8)]


def _disagree_one_way(case):
    odd, usual = ONE_WAY[case]
    first = outcome_of(odd if bf.rank() == 1 else usual)
    agreed = []
    for i in range(6):
        tensor = _ones(5)

        def allreduce(tensor=tensor, name=f"agreed.{i}"):
            bf.allreduce_(tensor, op=bf.Sum, name=name)

        agreed.append(outcome_of(allreduce))
        # A call that raises an earlier failure has been carried out.
        assert tensor.tolist() == [bf.size()] * 5
    return first, agreed


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("case", ONE_WAY)
def test_each_rank_raises_a_disagreement_once(case, transport):
    """A rank that had finished raises it in its next call, and no other rank does."""
    for rank, (first, agreed) in enumerate(
        run_ranks(3, _disagree_one_way, case, transport=transport)
    ):
        failed = [outcome for outcome in (first, *agreed) if outcome.error]
        assert len(failed) == 1, failed
        assert isinstance(failed[0].error, MismatchError)
        assert agreed[-1].error is None
        for part in (" 'x': rank", "rank 1 (host0) called"):
            assert part in failed[0].text
        if first.error is None:
            assert f"on rank {rank} was carried out; an earlier operation" in (
                failed[0].text
            )
            assert f"after rank {rank} had finished its part of it" in failed[0].text


def _send_own_messages():
    """Return outcomes of bluecomm's own messages after a send that has failed late."""
    other = 1 - bf.rank()
    if bf.rank() == 0:
        told = bf.recv_nonblocking(torch.empty(1), 1, tag=1)
        bf.send(_ones(3), 1)
        told.wait()
    else:
        outcome_of(lambda: bf.recv(_ones(4), 0))
        bf.send(_ones(1), 0, tag=1)
    got, comm = torch.zeros(2), current_communicator()
    handles = [post_receive(got, other, 2, comm), post_send(_ones(2), other, 2, comm)]
    own = [outcome_of(handle.wait) for handle in handles]
    return own, got.tolist(), outcome_of(bf.barrier), outcome_of(bf.barrier)


def test_messages_of_bluecomm_leave_failures_to_the_program():
    for rank, (own, got, first, second) in enumerate(run_ranks(2, _send_own_messages)):
        assert [outcome.error for outcome in own] == [None, None]
        assert got == [1.0] * 2
        assert ("was carried out; an earlier" in first.text) == (rank == 0)
        assert second.error is None


def _end_after_a_disagreement(folder):
    """Return the errors that a rank raised and the texts that it logged at its end."""
    texts = []
    handler = logging.Handler()
    handler.emit = lambda record: texts.append(record.getMessage())
    bf.init()
    logging.getLogger("bluecomm").addHandler(handler)
    if bf.rank() == 1:
        hear(folder, "through")
    size = 5 if bf.rank() == 1 else 3
    outcome = outcome_of(lambda: bf.broadcast(_ones(size), 0, name="x"))
    if bf.rank() == 2:  # the root waits until rank 1 has read its tensor
        say(folder, "through")
    if bf.rank() == 1:
        say(folder, "failed")
    hear(folder, "failed")
    bf.shutdown()
    logging.getLogger("bluecomm").removeHandler(handler)
    return outcome, texts


def test_a_rank_that_calls_nothing_more_logs_it_at_its_end(tmp_path):
    outcomes = run_ranks(3, _end_after_a_disagreement, tmp_path, initialize=False)
    assert outcomes[2][0].error is None  # it had finished before rank 1 called
    for rank, (outcome, texts) in enumerate(outcomes):
        logged = [text for text in texts if "rank 1 (host0) called" in text]
        assert len(logged) == (0 if outcome.error else 1)
        for text in logged:
            assert f"rank {rank} ends, but an earlier operation failed" in text


OF_NEIGHBORS = {"neighbor_allreduce", "neighbor_allgather"}


@pytest.mark.parametrize("case", sorted(ONE_WAY.keys() - OF_NEIGHBORS))
def test_calls_released_together_raise_a_disagreement_in_no_later_call(case):
    for first, agreed in run_ranks(3, _disagree_one_way, case, survives_losses=True):
        assert isinstance(first.error, MismatchError)
        assert "rank 1 (host0) called" in first.text
        assert not [outcome.text for outcome in agreed if outcome.error]


def _broadcast_to_roots_of_their_own():
    return outcome_of(lambda: bf.broadcast(_ones(3), bf.rank(), name="x"))


@pytest.mark.parametrize("world_size", [2, 4])
def test_every_rank_broadcasts_from_itself(world_size):
    """BlueFog silently broadcast nothing in this case."""
    for outcome in run_ranks(world_size, _broadcast_to_roots_of_their_own):
        assert isinstance(outcome.error, MismatchError)
        assert "same root rank" in outcome.text
        assert outcome.seconds < AT_ONCE_S


def _disagree_without_names(transposed):
    shape = (2, 3) if bf.rank() == transposed else (3, 2)
    first = outcome_of(lambda: bf.allreduce(_ones(*shape)))
    second = outcome_of(lambda: bf.allreduce(_ones(2)))
    return first, second


def test_unnamed_calls_match_by_order_and_go_on_after_a_failure():
    for first, second in run_ranks(2, _disagree_without_names, 1):
        assert isinstance(first.error, MismatchError)
        assert "[2, 3]" in first.text
        assert "[3, 2]" in first.text
        assert second.error is None


def _disagree_in_the_background():
    """The failure belongs to its handle; concurrent operations succeed."""
    bad = bf.allreduce_nonblocking(_ones(2 + bf.rank()), name="bad")
    good = [bf.allreduce_nonblocking(_ones(1000), name=f"good.{i}") for i in range(20)]
    sums = [float(handle.wait().sum()) for handle in good]
    return sums, outcome_of(bad.wait)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_disagreement_harms_no_other_handle(transport):
    for sums, bad in run_ranks(3, _disagree_in_the_background, transport=transport):
        assert sums == [1000.0] * 20
        assert isinstance(bad.error, MismatchError)


def _some_disagree_in_a_ring():
    bf.set_topology(bf.RingGraph(bf.size()))
    tensor = _ones(8 if bf.rank() == 2 else 9)
    failed = outcome_of(lambda: bf.neighbor_allreduce(tensor, name="x"))
    # A rank that had finished learns of it in a later call.
    for _ in range(4):
        outcome_of(bf.barrier)
    return failed, outcome_of(lambda: bf.neighbor_allreduce(_ones(4), name="y"))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_neighbors_of_neighbors_do_not_hang(transport):
    """Ranks that are not involved may succeed; no rank hangs, and all can go on."""
    outcomes = run_ranks(6, _some_disagree_in_a_ring, transport=transport)
    for rank, (failed, again) in enumerate(outcomes):
        assert failed.seconds < AT_ONCE_S
        if rank in (1, 2, 3):
            assert isinstance(failed.error, MismatchError)
            assert "rank 2 (host0) called neighbor_allreduce float32 [8]" in failed.text
        assert again.error is None
        assert float(again.result.sum()) == pytest.approx(4.0)


def _disagree_in_a_pair():
    size = 3 + bf.rank()
    return outcome_of(lambda: bf.pair_gossip(_ones(size), 1 - bf.rank(), name="x"))


def test_a_pair_that_disagrees():
    for outcome in run_ranks(2, _disagree_in_a_pair):
        assert isinstance(outcome.error, MismatchError)
        assert "pair_gossip 'x" in outcome.text
        assert "[3]" in outcome.text
        assert "[4]" in outcome.text


def _send_where_nobody_receives():
    peers = {0: [1], 1: [], 2: []}[bf.rank()]
    weights = {"self_weight": 1.0, "src_weights": {}, "dst_weights": peers}
    checked = outcome_of(lambda: bf.neighbor_allreduce(_ones(3), name="x", **weights))
    weights["enable_topo_check"] = False
    calls = [lambda: bf.neighbor_allreduce(_ones(3), name="y", **weights)]
    calls += [lambda i=i: bf.allreduce(_ones(1), name=f"after.{i}") for i in range(5)]
    return checked, [outcome_of(call) for call in calls]


def test_a_message_without_a_receiver():
    outcomes = run_ranks(3, _send_where_nobody_receives)
    for rank, (checked, unchecked) in enumerate(outcomes):
        assert isinstance(checked.error, ValueError)
        assert "rank 0 sends to rank 1, which does not receive from it" in checked.text
        failed = [outcome for outcome in unchecked if outcome.error]
        if rank == 2:  # it has nothing to do with the others' message
            assert not failed
            continue
        assert len(failed) == 1
        assert isinstance(failed[0].error, MismatchError)
        assert "rank 0 (host0) called neighbor_allreduce" in failed[0].text
        assert "where it sends to rank 1 (host0), but rank 1 (host0)" in failed[0].text
        assert "does not receive from" in failed[0].text
        assert unchecked[-1].error is None


def _disagree_on_members():
    members = [0, 1] if bf.rank() == 0 else [0, 1, 2]
    group = bf.ProcessSet(members)
    return outcome_of(
        lambda: bf.allreduce(_ones(2), name="x", process_set=group, timeout_s=2.0)
    )


def test_process_sets_that_differ_do_not_hang():
    for outcome in run_ranks(3, _disagree_on_members):
        assert outcome.error is not None
        assert outcome.seconds < AT_ONCE_S
