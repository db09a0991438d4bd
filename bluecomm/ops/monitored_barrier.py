"""Monitored barrier: a barrier whose error names exactly the ranks that are missing."""

from __future__ import annotations

import contextlib
import itertools
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence

import torch

from bluecomm.errors import BluecommError, CommunicationTimeout, PeerLostError
from bluecomm.ops.recv import recv_nonblocking
from bluecomm.ops.send import send_nonblocking
from bluecomm.runtime import Communicator, Handle, current_communicator
from bluecomm.runtime.check_timeout import check_timeout
from bluecomm.runtime.handle import abandon_all, wait_all

__all__ = ["monitored_barrier"]

# A tag that programs are unlikely to use.
_TAG = (1 << 62) + 0x6D62
# The first member's verdict on each member.
_CAME, _SILENT, _LOST = range(3)

_rounds: weakref.WeakKeyDictionary[Communicator, Iterator[int]] = (
    weakref.WeakKeyDictionary()
)


def monitored_barrier(
    process_set: Communicator | None = None, *, timeout_s: float | None = None
) -> None:
    """Wait until every rank has called this function, or raise with those that did not.

    The error of a ``barrier`` names the ranks that this rank waited for, some of which
    may themselves wait for others. Here all ranks report to the first one, which tells
    each of them who is missing. So it takes longer than a ``barrier`` and is meant for
    finding out which rank hangs.

    Args:
        process_set: Ranks that take part. Default: all.
        timeout_s: Seconds that the first rank waits for the others. The others wait
            twice as long for what it has found. Default: the configured deadline.

    Raises:
        CommunicationTimeout: Some ranks did not come in time; ``peers`` and the text
            name them. A rank that comes later raises it, too.
        PeerLostError: Some ranks are lost.
    """
    comm = current_communicator(process_set)
    limit_s = comm.world.config.operation_timeout_s
    if timeout_s is not None:
        check_timeout("monitored_barrier", timeout_s)
        limit_s = timeout_s
    number = next(_rounds.setdefault(comm, itertools.count()))
    if comm.rank == 0:
        states = _collect(comm, number, limit_s)
    else:
        states = _report(comm, number, limit_s)
    _raise_for(comm, states, limit_s)


def _collect(comm: Communicator, number: int, limit_s: float) -> Sequence[int]:
    """Wait for all other members, tell them what each has done, and return it."""
    deadline = time.monotonic() + limit_s
    states = [_CAME, *(_SILENT for _ in comm.ranks[1:])]
    boxes = {
        member: torch.zeros(1, dtype=torch.int64) for member in range(1, comm.size)
    }

    def receive(member: int) -> Handle[int]:
        left = max(1e-3, deadline - time.monotonic())
        rank = comm.ranks[member]
        return recv_nonblocking(boxes[member], rank, _TAG, comm, timeout_s=left)

    waiting = {member: receive(member) for member in boxes}
    with _abandoned_on_error(waiting):
        for member in boxes:
            while states[member] == _SILENT:
                try:
                    waiting[member].wait()
                except CommunicationTimeout:
                    break
                except PeerLostError:
                    states[member] = _LOST
                    break
                if boxes[member].item() == number:
                    states[member] = _CAME
                else:  # it came too late for an earlier barrier
                    waiting[member] = receive(member)
    answer = torch.tensor([number, *states])
    told = [
        send_nonblocking(answer, comm.ranks[member], _TAG, comm, timeout_s=limit_s)
        for member in boxes
        if states[member] != _LOST
    ]
    if not any(states):  # otherwise a silent member takes its answer when it comes
        wait_all(told)
    return states


def _report(comm: Communicator, number: int, limit_s: float) -> Sequence[int]:
    """Report to the first member; return what it says that each member has done."""
    deadline = time.monotonic() + 2 * limit_s
    first = comm.ranks[0]
    answer = torch.full((1 + comm.size,), -1)
    send_nonblocking(
        torch.tensor([number]), first, _TAG, comm, timeout_s=2 * limit_s
    ).wait()
    while answer[0].item() != number:
        left = max(1e-3, deadline - time.monotonic())
        told = recv_nonblocking(answer, first, _TAG, comm, timeout_s=left)
        try:
            with _abandoned_on_error({0: told}):
                told.wait()
        except CommunicationTimeout:
            return [_SILENT, *(_CAME for _ in comm.ranks[1:])]
    states: list[int] = answer[1:].tolist()
    return states


@contextlib.contextmanager
def _abandoned_on_error(receives: Mapping[int, Handle[int]]) -> Iterator[None]:
    """End receives after an error, so that they take no message of a later barrier."""
    try:
        yield
    except BaseException:
        abandon_all(receives.values(), "the monitored_barrier has failed")
        raise


def _raise_for(comm: Communicator, states: Sequence[int], limit_s: float) -> None:
    missing = [rank for rank, state in zip(comm.ranks, states, strict=True) if state]
    if not missing:
        return
    lost = [
        rank for rank, state in zip(comm.ranks, states, strict=True) if state == _LOST
    ]
    noun = "rank" if len(missing) == 1 else "ranks"
    what = f"{noun} {', '.join(map(str, missing))} did not call it within {limit_s:g} s"
    if lost:
        what += f"; of these, {', '.join(map(str, lost))} are lost"
    kind: type[BluecommError] = PeerLostError if lost else CommunicationTimeout
    raise kind.describe(
        what,
        operation="monitored_barrier",
        rank=comm.world.rank,
        peers=missing,
        timeout_s=limit_s,
        remedy="Find out where these ranks are, for example with py-spy dump",
    )
