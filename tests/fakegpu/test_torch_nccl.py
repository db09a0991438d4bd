"""Groups of torch.distributed whose tensors go through NCCL, on the fake's tensors."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import bluecomm as bf
from bluecomm.runtime import current_communicator
from bluecomm.torch_backend import device_call
from tests.fakegpu.test_torch_devices import train
from tests.fakegpu.test_torch_operations import (
    inputs,
    labelled_waits,
    on_other_stream,
    run_all,
)
from tests.support.deadlines import DEADLINE_S, wait_until
from tests.support.errors import error_text
from tests.support.fakegpu.faults import report_killed, set_fake
from tests.support.fakegpu.ranks import run_ranks_on_gpus, this_memory
from tests.support.fakegpu.transports import NCCL
from tests.support.fakegpu.waits import unneeded_waits, waits_of
from tests.support.ranks import RankFailure, run_ranks
from tests.support.torch_world import torch_world

pytestmark = pytest.mark.mp
RANKS = 3

Tensor = torch.Tensor


@contextlib.contextmanager
def kinds_through_nccl() -> Iterator[set[str]]:
    """Collect the kinds of the calls of groups that go through NCCL."""
    kinds: set[str] = set()
    send = device_call.send_through_nccl

    def note(comm, staging, call, work):
        kinds.add(call.kind)
        send(comm, staging, call, work)

    with mock.patch.object(device_call, "send_through_nccl", note):
        yield kinds


def run_and_name_kinds(
    tensors: list[Tensor], folder: Path
) -> tuple[dict[str, object], list[str]]:
    """Return results, and the kinds of the operations that went through NCCL."""
    with kinds_through_nccl() as kinds:
        results = run_all(tensors, folder)
    return results, sorted(kinds)


def overlap(tensors: list[Tensor], folder: Path) -> list[Any]:
    """Return the results of asynchronous calls that several streams use."""
    with torch_world(folder, RANKS) as rank, labelled_waits():
        x = tensors[rank] * 2
        results: list[Any] = []
        # Waited for twice: each wait lets its stream follow. The second stream reads at
        # once, as the device may still be late then.
        shared = x + 1
        reduced = dist.all_reduce(shared, async_op=True)
        assert reduced.wait()
        results.append(on_other_stream(lambda: reduced.wait() and shared * 3))
        results.append(shared * 2)
        futures = []
        for i in range(4):
            one = x + i
            futures.append(dist.all_reduce(one, async_op=True).get_future())
        results += [future.wait()[0] * 2 for future in futures]
        for i in range(4):
            dist.broadcast(x, i % RANKS)
            x += 1
        for i in range(8):  # nobody waits for these, and their tensors are dropped
            dropped = dist.all_reduce(x + i, async_op=True)
            pending = dropped._pending
            wait_until(
                lambda pending=pending: all(one.done() for one in pending),
                "a call has not ended",
                look_s=0.001,
            )
            del dropped, pending
            current_communicator().world.reap()
        results += turned_on_another_stream(x)
        return [*results, x]


def turned_on_another_stream(x: Tensor) -> list[Tensor]:
    """Return sums whose memory on the way another stream still reads when dropped."""
    memory, sums = this_memory(), []
    stream = 0 if memory is None else memory.new_stream()
    on_other = contextlib.nullcontext if memory is None else memory.on_stream
    for i in range(4):
        sums.append(x + i)
        work = dist.all_reduce(sums[-1].t(), async_op=True)
        with on_other(stream):
            work.wait()
        del work
    if memory is not None:
        with on_other(stream):
            memory.synchronize()
    return sums


def inputs_of_groups() -> list[Tensor]:
    return [one.round() for one in inputs()]


def in_groups(tensors: list[Tensor], folder: Path) -> list[Any]:
    """Return results of groups that overlap, whose calls come in orders that differ."""
    with torch_world(folder, RANKS) as rank:
        x = tensors[rank] * 2
        groups = [dist.new_group(ranks) for ranks in ([0, 1], [1, 2], [0, 2])]
        mine = [one for one in groups if dist.get_rank(one) >= 0]
        results = []
        for i in range(4):
            started = {}
            for one in mine if (rank + i) % 2 else mine[::-1]:
                total = x + i
                started[one] = total, dist.all_reduce(total, group=one, async_op=True)
            for one in mine:
                total, work = started[one]
                work.wait()
                results.append(total * 2)
        for one in groups:
            dist.destroy_process_group(one)
        again = dist.new_group([0, 1, 2])
        dist.all_reduce(x, group=again)
        return [*results, x]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return {
        body: run_ranks(RANKS, body, inputs_of_groups(), tmp_path_factory.mktemp("h"))
        for body in (run_all, overlap, in_groups)
    }


@pytest.mark.parametrize("body", [overlap, in_groups])
def test_results_are_those_of_the_host(expected, body, seed, tmp_path):
    found = run_ranks_on_gpus(
        RANKS, body, inputs_of_groups(), tmp_path, seed=seed, environment=NCCL
    )
    torch.testing.assert_close(found, expected[body])


def test_collectives_go_through_nccl(expected, seed, tmp_path):
    found = run_ranks_on_gpus(
        RANKS,
        run_and_name_kinds,
        inputs_of_groups(),
        tmp_path,
        seed=seed,
        environment=NCCL,
    )
    torch.testing.assert_close([results for results, _ in found], expected[run_all])
    for _, kinds in found:
        assert kinds == [
            *("allgather", "allreduce", "alltoall", "broadcast", "gather", "reduce"),
            *("reducescatter", "scatter"),
        ]


def test_each_wait_is_needed(expected, tmp_path_factory):
    """The backend without one of its waits races, or gives something else."""

    def run(environment):
        return run_ranks_on_gpus(
            RANKS,
            overlap,
            inputs_of_groups(),
            tmp_path_factory.mktemp("gpu"),
            environment={**NCCL, **environment},
        )

    def check(environment):
        torch.testing.assert_close(run(environment), expected[overlap])

    waits = waits_of(run, tmp_path_factory.mktemp("sites") / "sites")
    assert any("_settle" in one for one in waits)
    assert sum("cuStreamWaitEvent" in one for one in waits) == 3
    assert not unneeded_waits(check, waits)


# --- Training ------------------------------------------------------------------------


def train_and_name_kinds(
    batches: Tensor, folder: Path, view: bool
) -> tuple[list[Tensor], set[str]]:
    """Return a model trained by DDP, and what went through NCCL."""
    with kinds_through_nccl() as kinds:
        return train(batches, folder, view), kinds


@pytest.mark.parametrize("view", [False, True])
def test_ddp_trains_as_on_the_host(view, seed, tmp_path):
    generator = torch.Generator().manual_seed(0)
    batches = torch.randn(2, 4, 5, 4, generator=generator)
    (tmp_path / "host").mkdir()
    (tmp_path / "gpu").mkdir()
    expected = run_ranks(2, train, batches, tmp_path / "host", view)
    found = run_ranks_on_gpus(
        2,
        train_and_name_kinds,
        batches,
        tmp_path / "gpu",
        view,
        seed=seed,
        environment=NCCL,
    )
    torch.testing.assert_close([model for model, _ in found], expected)
    assert all("allreduce" in kinds for _, kinds in found)


# --- The choice of the ranks ---------------------------------------------------------


def choose(folder: Path, other: bool) -> tuple[str, list[float]]:
    """Return what ranks choose that meet in torch's store, and a sum."""
    if other and bf.rank() == 1:
        set_fake(NCCL_VERSION="21805")
    bf.shutdown()
    with torch_world(folder, 2):
        x = torch.ones(2)
        dist.all_reduce(x)
        return current_communicator().world.device_transport.path, x.tolist()


@pytest.mark.parametrize(("other", "chosen"), [(False, "nccl"), (True, "staged")])
def test_ranks_choose_nccl_if_all_have_it(other, chosen, tmp_path):
    found = run_ranks_on_gpus(2, choose, tmp_path, other)
    assert found == [(chosen, [2.0] * 2)] * 2


# --- Errors --------------------------------------------------------------------------


def differ(folder: Path) -> list[str]:
    """Make calls that do not match, and right ones afterwards."""
    rank = bf.rank()
    with torch_world(folder, RANKS):
        x = torch.ones(4 + (rank == 1))
        texts = [error_text(lambda: dist.all_reduce(x))]
        outputs = torch.zeros(RANKS * x.numel())
        texts.append(error_text(lambda: dist.all_gather_into_tensor(outputs, x)))
        same = torch.ones(3)
        texts.append(
            error_text(
                lambda: dist.broadcast(same, 0) if rank else dist.all_reduce(same)
            )
        )
        dist.all_reduce(same)
        return [*texts, str(same.tolist())]


def test_calls_that_differ_fail_on_all_ranks_and_others_go_on(tmp_path):
    for texts in run_ranks_on_gpus(RANKS, differ, tmp_path, environment=NCCL):
        assert all("MismatchError" in text for text in texts[:3])
        assert texts[3] == str([float(RANKS)] * 3)


def hang_on_rank_1(folder: Path) -> list[str]:
    """Return the error of calls after one that the device does not finish.

    That one may have returned before. The last texts are the error and the result of
    a call of another group.
    """
    with torch_world(folder, RANKS):
        x = torch.ones(4)
        dist.all_reduce(x)
        part = dist.new_group(list(range(RANKS)))
        group = dist.group.WORLD
        assert group is not None
        if bf.rank() == 1:
            set_fake(FAIL="ncclAllReduce:1=hang")
        # A rank that comes late would let the call time out before the device has it.
        bf.barrier()
        # Only this call has a short deadline. A later one would time out by itself.
        group.set_timeout(datetime.timedelta(seconds=10))
        error_text(lambda: dist.all_reduce(x))
        group.set_timeout(datetime.timedelta(seconds=DEADLINE_S))
        deadline = time.monotonic() + DEADLINE_S
        while (later := error_text(lambda: dist.all_reduce(x))) == "no error":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        x = torch.ones(4)
        other = error_text(lambda: dist.all_reduce(x, group=part))
        return [later, other, str(x.tolist())]


def test_a_call_that_the_device_does_not_finish_ends_its_group(tmp_path):
    for later, other, x in run_ranks_on_gpus(
        RANKS, hang_on_rank_1, tmp_path, environment=NCCL
    ):
        assert "NCCL's communicator was aborted" in later
        # A rank may hear of the failure on rank 1 only now, while its own is known.
        late = "was carried out; an earlier operation failed on rank 1"
        assert other == "no error" or late in other
        assert x == str([float(RANKS)] * 4)


def miss_a_call(folder: Path) -> tuple[str, str]:
    """Return the errors of a call that rank 1 does not make."""
    with torch_world(folder, RANKS):
        x = torch.ones(4)
        found = "", ""
        if bf.rank() != 1:
            group = dist.group.WORLD
            assert group is not None
            group.set_timeout(datetime.timedelta(seconds=1))
            work = dist.all_reduce(x, async_op=True)
            future = work.get_future()
            found = error_text(work.wait), error_text(future.wait)
        bf.barrier()  # the end of the group would be another error
        return found


def test_a_timeout_raises(tmp_path):
    found = run_ranks_on_gpus(RANKS, miss_a_call, tmp_path, environment=NCCL)
    for text, of_future in (found[0], found[2]):
        # The rank whose deadline passes first tells the other.
        assert text.partition(":")[0] in ("CommunicationTimeout", "PeerLostError")
        assert text.partition(": ")[2] in of_future


def lose_rank_1(folder: Path) -> None:
    """Lose a rank that has got the number of a call, but has not issued it."""
    with torch_world(folder, RANKS):
        x = torch.ones(4)
        dist.all_reduce(x)
        if bf.rank() == 1:
            set_fake(FAIL="ncclAllReduce:1=kill")
        error = error_text(lambda: dist.all_reduce(x))
        report_killed(1)
        x.tolist()  # the device goes on after the abort
        if error == "no error":
            error = error_text(lambda: dist.all_reduce(x))
        # If this rank ends its group before the other has noticed the loss, the call of
        # the other ends with ShutdownError.
        (folder / f"rank-{bf.rank()}").touch()
        wait_until(
            lambda: len([*folder.glob("rank-*")]) == RANKS - 1,
            "not all ranks have noticed the loss",
        )
        # A failure, since the rank that died fails the run anyway.
        raise AssertionError(f"survivor: {error}")


@pytest.mark.parametrize("remote_errors", ["0", "1"])
def test_a_lost_rank_frees_the_others(remote_errors, tmp_path):
    environment = {**NCCL, "FAKEGPU_REMOTE_ERRORS": remote_errors}
    with pytest.raises(RankFailure) as failure:
        run_ranks_on_gpus(
            RANKS, lose_rank_1, tmp_path, environment=environment, report_s=DEADLINE_S
        )
    assert str(failure.value).count("AssertionError: survivor: PeerLostError") == 2
