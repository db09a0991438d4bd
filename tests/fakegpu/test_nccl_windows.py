"""The fake's one-sided puts between processes: values, signals, misuse, lost peers."""

import ctypes
import os
import signal

import pytest

from tests.support.deadlines import DEADLINE_S, hear, say
from tests.support.fakegpu.library import WaitDescription
from tests.support.fakegpu.nccl_rank import (
    COUNT,
    IN_PROGRESS,
    INT32,
    INVALID_ARGUMENT,
    REMOTE,
    Rank,
    WrongCalls,
    run,
)
from tests.support.ranks import RankFailure

pytestmark = pytest.mark.mp

SYMMETRIC = 1
NBYTES = 4 * COUNT
UNTAKEN = (0, 0, 0)  # signal, context, flags


class Windows(Rank):
    """A rank whose window has a part for each rank, and one to put from."""

    def __init__(self, rank, size, unique_id, *, windows=True):
        super().__init__(rank, size, unique_id)
        assert self.settle() == 0
        self.part = self.allocate(size * NBYTES)
        self.source = self.allocate(NBYTES)
        if windows:
            self.window = self.register(self.part, size * NBYTES)
            self.register(self.source, NBYTES)

    def allocate(self, nbytes):
        memory = ctypes.c_void_p()
        assert self.nccl.ncclMemAlloc(ctypes.byref(memory), nbytes) == 0
        return memory.value

    def register(self, memory, nbytes):
        window = ctypes.c_void_p()
        where = ctypes.byref(window)
        result = self.nccl.ncclCommWindowRegister(
            self.comm, memory, nbytes, where, SYMMETRIC
        )
        assert result == IN_PROGRESS
        assert self.settle() == 0
        return window

    def put(self, values, peer):
        """Put values into this rank's part of the peer's window."""
        self.write(self.source, values)
        return self.do(
            "ncclPutSignal",
            *(self.source, COUNT, INT32, peer, self.window),
            *(self.rank * NBYTES, *UNTAKEN),
        )

    def await_signals(self, peer, count=1):
        wait = WaitDescription(count, peer, 0, 0)
        return self.do("ncclWaitSignal", 1, ctypes.byref(wait))

    def left_by(self, peer):
        return self.values(self.part + peer * NBYTES)


def ring(rank, size, unique_id, *, rounds, waits=True):
    """Put to the next rank in each round, and return what the one before has put."""
    own = Windows(rank, size, unique_id)
    left, right = (rank - 1) % size, (rank + 1) % size
    found = []
    for number in range(rounds):
        assert own.put([number, rank, number * rank], right) == 0
        if waits:
            assert own.await_signals(left) == 0
        found.append(own.left_by(left))
        # The next put may come when the others have read this one.
        x = own.buffer([1])
        assert own.do("ncclAllReduce", x, x, 1, INT32, 0) == 0
        own.values(x, 1)
    return found, own.destroy()


def test_a_rank_that_waits_for_signals_reads_what_was_put(seed):
    for rank, (found, violations) in enumerate(run(ring, seed=seed, rounds=3)):
        left = (rank - 1) % 3
        assert found == [[number, left, number * left] for number in range(3)]
        assert violations == []


def test_a_read_without_a_wait_is_a_race_or_too_early(seed):
    ranks = run(ring, world=2, seed=seed, rounds=1, waits=False)
    for rank, (found, violations) in enumerate(ranks):
        is_race = any("race" in one and "ncclPutSignal" in one for one in violations)
        assert is_race or found != [[0, 1 - rank, 0]]


def several(rank, size, unique_id):
    """Put three times to rank 0, and wait there for all at once."""
    own = Windows(rank, size, unique_id)
    if rank == 0:
        assert own.await_signals(1, 2) == 0
        assert own.await_signals(1) == 0
        found = own.left_by(1)
        own.put([9, 9, 9], 0)  # to itself
        assert own.await_signals(0) == 0
        found += own.left_by(0)
    else:
        found = []
        for number in range(3):
            own.put([number] * COUNT, 0)
    return found, own.destroy()


def test_puts_of_one_rank_arrive_in_their_order(seed):
    found, violations = zip(*run(several, world=2, seed=seed), strict=True)
    assert found == ([2, 2, 2, 9, 9, 9], [])
    assert violations == ([], [])


def misuse(rank, size, unique_id):
    """Return the violations of calls that are wrong in one way each."""
    own = Windows(rank, size, unique_id)
    nccl, wrong = own.nccl, WrongCalls(own.device)
    note = wrong.note
    plain = own.buffer([1] * COUNT)

    def put(source=own.source, window=own.window, offset=0, last=UNTAKEN, peer=0):
        return own.do(
            "ncclPutSignal", source, COUNT, INT32, peer, window, offset, *last
        )

    def register(memory, nbytes, flags=SYMMETRIC):
        window = ctypes.c_void_p()
        where = ctypes.byref(window)
        return nccl.ncclCommWindowRegister(own.comm, memory, nbytes, where, flags)

    note("plain source", put(source=plain))
    note("no window", put(window=4096))
    note("offset", put(offset=4))
    note("signal", put(last=(1, 0, 0)))
    note("context", put(last=(0, 1, 0)))
    note("flags", put(last=(0, 0, 1)))
    note("rank", put(peer=7))
    note("nothing", own.await_signals(0, 0))
    note("plain memory", register(plain, NBYTES))
    note("too long", register(own.allocate(4), NBYTES))
    note("flags of a window", register(own.allocate(4), 4, 0))
    note("twice", register(own.source, NBYTES))
    note("free", nccl.ncclMemFree(plain))
    assert nccl.ncclCommWindowDeregister(own.comm, own.window) == 0
    note("closed", put())
    note("closed twice", nccl.ncclCommWindowDeregister(own.comm, own.window))
    return wrong.found


def test_misuse_is_reported():
    [found] = run(misuse, world=1)
    for name, text in {
        "plain source": "the source is not in a window",
        "no window": "not a window",
        "offset": "beyond the end of rank 0's part",
        "signal": "must be 0",
        "context": "must be 0",
        "flags": "must be 0",
        "rank": "no such rank",
        "nothing": "no signals",
        "plain memory": "not memory of ncclMemAlloc",
        "too long": "not memory of ncclMemAlloc, or longer",
        "flags of a window": "NCCL_WIN_COLL_SYMMETRIC",
        "twice": "registered already",
        "free": "not memory of ncclMemAlloc",
        "closed": "not a window",
        "closed twice": "not a window",
    }.items():
        result, violation = found[name]
        assert result == INVALID_ARGUMENT, name
        assert text in violation, name


def old(rank, size, unique_id):
    own = Windows(rank, size, unique_id, windows=False)
    window = ctypes.c_void_p()
    result = own.nccl.ncclCommWindowRegister(
        own.comm, own.source, NBYTES, ctypes.byref(window), SYMMETRIC
    )
    return result != 0, own.device.violations()


def test_old_versions_have_no_puts():
    environment = {"FAKEGPU_NCCL_VERSION": "22809"}
    [(fails, violations)] = run(old, world=1, environment=environment)
    assert fails
    assert "this version of NCCL lacks the function" in violations[0]


def unsupported(rank, size, unique_id):
    own = Windows(rank, size, unique_id)
    return own.window.value


def test_ranks_that_cannot_reach_each_other_get_no_window():
    environment = {"FAKEGPU_NCCL_WINDOWS": "0"}
    assert run(unsupported, world=2, environment=environment) == [None, None]


def last_words(rank, size, unique_id, *, dies, folder):
    """Return the error that ranks see which wait for a put of a dead one."""
    own = Windows(rank, size, unique_id)
    if rank == dies:
        for other in {*range(size)} - {dies}:  # a call after the death fails at once
            hear(folder, f"called-{other}")
        os.kill(os.getpid(), signal.SIGKILL)
    wait = WaitDescription(1, dies, 0, 0)
    answer = own.nccl.ncclWaitSignal(1, ctypes.byref(wait), own.comm, own.stream)
    say(folder, f"called-{rank}")
    error = own.await_error()
    assert own.nccl.ncclCommAbort(own.comm) == 0
    own.device.read(own.part, 4, own.stream)  # the stream goes on
    # A failure, since the rank that died fails the run anyway.
    raise AssertionError(f"answer {answer}, error {error}")


def test_a_killed_rank_is_an_async_error_and_the_abort_frees_the_stream(tmp_path):
    with pytest.raises(RankFailure) as failure:
        run(last_words, report_s=DEADLINE_S, dies=2, folder=tmp_path)
    text = f"answer {IN_PROGRESS}, error {REMOTE}"
    assert str(failure.value).count(text) == 2
