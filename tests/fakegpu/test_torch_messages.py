"""Messages of groups of torch.distributed through NCCL, on the fake's tensors."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.fakegpu.test_torch_nccl import NCCL, RANKS, inputs_of_groups
from tests.fakegpu.test_torch_operations import held_stream, on_other_stream
from tests.support.deadlines import DEADLINE_S, hear, say, wait_until
from tests.support.errors import error_text
from tests.support.fakegpu.faults import report_killed, set_fake
from tests.support.fakegpu.ranks import run_ranks_on_gpus, this_memory
from tests.support.ranks import RankFailure, run_ranks
from tests.support.torch_world import torch_world

pytestmark = pytest.mark.mp

Tensor = torch.Tensor


def on_streams(tensors: list[Tensor], folder: Path) -> list[Any]:
    """Return results of messages that several streams use."""
    with torch_world(folder, RANKS) as rank:
        x = tensors[rank] * 2
        after, before = (rank + 1) % RANKS, (rank - 1) % RANKS
        results: list[Any] = []
        # The stream of the wait reads what another one has had written.
        received = torch.zeros_like(x)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.irecv, received, before),
                dist.P2POp(dist.isend, x + 1, after),
            ]
        )

        def take() -> Tensor:
            for work in works:
                work.wait()
            return received * 3

        results.append(on_other_stream(take))
        # The sender overwrites what it has sent, and drops its work and its tensor.
        for i in range(4):
            sent = x + i
            first, second = torch.zeros_like(x), torch.zeros_like(x)
            left = dist.isend(sent, after), dist.isend(sent * 2, after)
            dist.recv(first, before)
            dist.recv(second, before)
            assert left[0] is not None
            left[0].wait()
            sent.zero_()
            del sent, left
            results += [first * 2, second + first]
        # Future and work of an all_to_all whose output has gaps.
        wide = [torch.zeros(2, 10) for _ in range(RANKS)]
        work = dist.all_to_all(
            [one[:, ::2] for one in wide], list(x.chunk(RANKS)), async_op=True
        )
        future = work.get_future()
        on_other_stream(work.wait)
        future.wait()
        results += [one * 2 for one in wide]
        return results


def test_streams_see_messages(seed, tmp_path):
    (tmp_path / "host").mkdir()
    (tmp_path / "gpu").mkdir()
    tensors = inputs_of_groups()
    expected = run_ranks(RANKS, on_streams, tensors, tmp_path / "host")
    found = run_ranks_on_gpus(
        *(RANKS, on_streams, tensors, tmp_path / "gpu"), seed=seed, environment=NCCL
    )
    torch.testing.assert_close(found, expected)


# --- Messages that wait --------------------------------------------------------------


def wait_for_receivers(folder: Path) -> list[list[float]]:
    """Return what rank 0 receives while its sends to rank 1 wait for receives."""
    with torch_world(folder, RANKS) as rank:
        x = torch.full((3,), float(rank + 1))
        found = []
        if rank == 0:
            sends = [dist.isend(x, 1, tag=tag) for tag in range(2)]
            received = torch.zeros(3)
            dist.recv(received, 2)
            total = x + 0
            pair = dist.all_reduce(total, group=dist.new_group([0, 2]), async_op=True)
            pair.wait()
            found = [received.tolist(), total.tolist()]  # the device has finished them
            say(folder, "received")
            for work in sends:
                assert work is not None
                work.wait()
        elif rank == 1:
            dist.new_group([0, 2])
            hear(folder, "received")
            for tag in (1, 0):
                dist.recv(x, 0, tag=tag)
            found = [x.tolist()]
        else:
            dist.send(x, 0)
            dist.all_reduce(x, group=dist.new_group([0, 2]))
        return found


def test_a_send_without_a_receive_holds_nothing_back(tmp_path):
    found = run_ranks_on_gpus(RANKS, wait_for_receivers, tmp_path, environment=NCCL)
    assert found == [[[3.0] * 3, [4.0] * 3], [[1.0] * 3], []]


def receive_from_one_that_leaves(folder: Path) -> list[str]:
    """Return errors of receives from rank 1, which destroys the group."""
    with torch_world(folder, RANKS) as rank:
        x = torch.ones(3)
        group = dist.new_group(list(range(RANKS)))
        assert group is not None
        texts = []
        waiting = dist.irecv(x, 1, group=group) if rank == 0 else None
        dist.barrier()
        if rank == 1:
            dist.destroy_process_group(group)
        else:
            if waiting is not None:
                texts.append(error_text(waiting.wait))
            texts.append(error_text(lambda: dist.recv(x, 1, group=group)))
            (dist.recv if rank else dist.send)(x, 2 - rank, group=group)
        dist.barrier()
        return texts


@pytest.mark.parametrize("transport", ["nccl", "staged"])
def test_receives_from_a_member_that_has_left_fail_at_once(transport, tmp_path):
    # A wait for the deadline would be a CommunicationTimeout.
    found = run_ranks_on_gpus(
        *(RANKS, receive_from_one_that_leaves, tmp_path),
        environment={"BLUECOMM_DEVICE_TRANSPORT": transport},
    )
    assert [len(texts) for texts in found] == [2, 0, 1]
    for text in found[0] + found[2]:
        assert text.startswith("ShutdownError"), text
        assert "rank 1" in text
        assert "has freed the process set" in text


# --- Barrier -------------------------------------------------------------------------


def wait_for_devices(folder: Path) -> tuple[bool, bool]:
    """Return whether a barrier ends before and after the device of rank 0 goes on."""
    with torch_world(folder, 2) as rank:
        dist.all_reduce(torch.ones(3))
        x = torch.ones(3)
        token = this_memory().download(x)
        stays = contextlib.nullcontext() if rank else held_stream()
        with stays:
            work = dist.barrier(async_op=True)
            # Rank 1 looks when both have called.
            dist.broadcast(token, 0)
            ended_early = work.is_completed()
            dist.broadcast(token, 1)
        work.wait()
        return ended_early, work.is_completed()


def test_a_barrier_waits_for_the_devices(tmp_path):
    found = run_ranks_on_gpus(2, wait_for_devices, tmp_path, environment=NCCL)
    assert found == [(False, True)] * 2


# --- Errors --------------------------------------------------------------------------


def exchange(make: Callable[[int], Tensor]) -> str:
    """Return the error of a message from rank 0 to rank 1."""
    rank = dist.get_rank()
    if rank == 0:
        return error_text(lambda: dist.send(make(0), 1))
    return error_text(lambda: dist.recv(make(1), 0)) if rank == 1 else ""


def wrong_messages(folder: Path) -> dict[str, str]:
    """Return the errors of messages that do not match; right ones follow each."""
    with torch_world(folder, RANKS) as rank:
        texts = {
            "size": exchange(lambda end: torch.ones(3 + end)),
            "type": exchange(
                lambda end: torch.ones(3).to([torch.int32, torch.float][end])
            ),
            "any": error_text(lambda: dist.recv(torch.ones(3))),
        }
        ok = torch.full((2,), float(rank))
        if rank < 2:
            (dist.recv if rank else dist.send)(ok, 1 - rank)
        texts["right"] = str(ok.tolist())
        splits = [1, 1, 1 + (rank == 0)]
        texts["all_to_all"] = error_text(
            lambda: dist.all_to_all_single(
                torch.ones(3), torch.ones(sum(splits)), [1, 1, 1], splits
            )
        )
        parts = [torch.ones(2 + (i == 2 and rank == 0)) for i in range(RANKS)]
        texts["all_gather"] = error_text(lambda: dist.all_gather(parts, torch.ones(2)))
        texts["gather"] = error_text(
            lambda: dist.gather(
                torch.ones(2 + (rank == 2)),
                None if rank else [torch.ones(2) for _ in range(RANKS)],
            )
        )
        texts["scatter"] = error_text(
            lambda: dist.scatter(
                torch.ones(2 + (rank == 2)),
                None if rank else [torch.ones(2) for _ in range(RANKS)],
            )
        )
        total = torch.ones(2)
        dist.all_reduce(total)
        return {**texts, "sum": str(total.tolist())}


def test_messages_that_do_not_match_are_errors(tmp_path):
    found = run_ranks_on_gpus(RANKS, wrong_messages, tmp_path, environment=NCCL)
    for texts in found[:2]:
        assert "MismatchError" in texts["size"]
        assert "MismatchError" in texts["type"]
        assert "message 1 of tag 0 from rank 0 to rank 1" in texts["size"]
        assert texts["right"] == "[0.0, 0.0]"
    for rank, texts in enumerate(found):
        assert f"recv on rank {rank}: NCCL has no receive from any rank" in texts["any"]
        for kind in ("all_to_all", "all_gather", "gather", "scatter"):
            assert texts[kind].startswith("MismatchError"), (kind, texts)
        assert "rank 0 sends 8 bytes to rank 2, which expects 4" in texts["all_to_all"]
        assert "rank 2 sends 12 bytes to rank 0, which expects 8" in texts["gather"]
        assert "rank 0 sends 8 bytes to rank 2, which expects 12" in texts["scatter"]
        assert texts["sum"] == "[3.0, 3.0]"


def meet_a_tensor_of_the_host(folder: Path) -> str:
    """Return the error of a message to a tensor of the host."""
    with torch_world(folder, 2) as rank:
        x = torch.ones(3)
        group = dist.group.WORLD
        assert group is not None
        # Not before, because the ranks may meet later than that.
        group.set_timeout(datetime.timedelta(seconds=2))
        return error_text(
            lambda: dist.recv(this_memory().download(x), 0) if rank else dist.send(x, 1)
        )


def test_a_message_to_the_host_says_that_it_comes_from_a_gpu(tmp_path):
    sent, received = run_ranks_on_gpus(
        2, meet_a_tensor_of_the_host, tmp_path, environment=NCCL
    )
    assert "from rank 0 to rank 1, between GPUs" in sent
    assert "Error" in received or "Timeout" in received


def lose_the_sender(folder: Path) -> None:
    """Lose the sender of a message, when the receiver has issued its call."""
    with torch_world(folder, RANKS) as rank:
        x = torch.ones(4)
        if rank == 1:
            set_fake(FAIL="ncclSend:2=kill")
        for _ in range(2):
            error = "no error"
            if rank == 1:
                dist.send(x, 0)
            elif rank == 0:
                error = error_text(lambda: dist.recv(x, 1))
        report_killed(1)
        x.tolist()  # the device goes on after the abort
        if rank == 0 and error == "no error":
            error = error_text(lambda: dist.recv(x, 1))
        # The pair of those that are left is not affected.
        (dist.recv if rank else dist.send)(x, 2 - rank)
        # A rank that leaves would end what the other one waits for.
        (folder / f"past-{rank}").touch()
        other = folder / f"past-{2 - rank}"
        wait_until(other.exists, f"rank {2 - rank} has not come here")
        # A failure, since the rank that died fails the run anyway.
        raise AssertionError(f"rank {rank}: {error}")


@pytest.mark.parametrize("remote_errors", ["0", "1"])
def test_a_lost_sender_frees_the_receiver_and_no_other_pair(remote_errors, tmp_path):
    environment = {**NCCL, "FAKEGPU_REMOTE_ERRORS": remote_errors}
    with pytest.raises(RankFailure) as failure:
        run_ranks_on_gpus(
            *(RANKS, lose_the_sender, tmp_path),
            environment=environment,
            report_s=DEADLINE_S,
        )
    assert "AssertionError: rank 0: PeerLostError" in str(failure.value)
    assert "AssertionError: rank 2: no error" in str(failure.value)


def fail_to_copy(folder: Path) -> str:
    """Let a copy to the host fail on rank 0; return what each rank is told."""
    with torch_world(folder, 2) as rank:
        x = torch.full((2,), 7.0)
        if rank == 0:
            set_fake(FAIL="cuMemcpyDtoHAsync:1=2")
            text = error_text(lambda: dist.send(x, 1))
            set_fake(FAIL="")
            dist.send(x, 1)
        else:
            text = error_text(lambda: dist.recv(torch.empty(5), 0))
            dist.recv(x.zero_(), 0)
        assert x.tolist() == [7.0] * 2
        return text


def test_a_message_whose_copy_cannot_be_started_fails_its_receive(tmp_path):
    environment = {"BLUECOMM_DEVICE_TRANSPORT": "staged"}
    sent, received = run_ranks_on_gpus(
        2, fail_to_copy, tmp_path, environment=environment
    )
    assert "cuMemcpyDtoHAsync" in sent
    assert received.endswith(sent)


# --- What is recorded ----------------------------------------------------------------


def record(folder: Path) -> list[Any]:
    """Return the shapes of recorded calls."""
    with torch_world(folder, 2) as rank:
        x = torch.ones(3)
        dist.all_reduce(x)
        dist.all_to_all_single(torch.zeros(2), torch.ones(2))
        (dist.recv if rank else dist.send)(x, 1 - rank)
        group: Any = dist.group.WORLD
        flight = group._flight
        return [
            (one.operation, one.inputs, one.outputs)
            for one in [*flight.entries][-2:] + [*flight.messages][-1:]
        ]


def test_calls_through_nccl_are_recorded(tmp_path):
    found = run_ranks_on_gpus(
        *(2, record, tmp_path),
        environment={**NCCL, "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "flight")},
    )
    for rank, calls in enumerate(found):
        assert calls == [
            ("all_reduce", [(3,)], [(3,)]),
            ("all_to_all_single", [(2,)], [(2,)]),
            ("recv", [()], [(3,)]) if rank else ("send", [(3,)], [()]),
        ]
