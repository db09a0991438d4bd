"""``suspend`` and ``resume``: no thread runs in between, and no data is lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

import bluecomm as bf
from bluecomm.runtime import current_communicator
from tests.support.deadlines import DEADLINE_S, hear, say, wait_until
from tests.support.ranks import run_ranks


def threads_that_run() -> int:
    """Return how often the process's other threads have been scheduled so far."""
    own, total = str(threading.get_native_id()), 0
    for thread in os.listdir("/proc/self/task"):
        if thread != own:
            with open(f"/proc/self/task/{thread}/schedstat") as file:
                total += int(file.read().split()[2])
    return total


def refuse_and_go_on() -> None:
    x = torch.ones(3)
    bf.barrier()
    bf.suspend()
    bf.suspend()
    for call in (bf.allreduce, bf.neighbor_allreduce, bf.allreduce_nonblocking):
        with pytest.raises(bf.SuspendedError, match=r"on rank .: .*suspended.*resume"):
            call(x, name="x")
    if bf.rank() == 0:  # The other threads have not been counted either.
        with pytest.raises(RuntimeError, match="suspended"):
            bf.allreduce(x)
    bf.resume()
    bf.resume()
    assert bf.allreduce(x, op=bf.Sum, name="x").tolist() == [bf.size()] * 3
    assert bf.allreduce(x, op=bf.Sum).tolist() == [bf.size()] * 3


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_operations_are_refused_in_between(transport: str) -> None:
    run_ranks(2, refuse_and_go_on, transport=transport)


def sleep_through() -> None:
    bf.barrier()
    bf.suspend()
    # The monitor and the progress thread sleep within one of their ticks ...
    before = -1
    while before != (now := threads_that_run()):
        before = now
        time.sleep(1.0)
    bf.resume()
    bf.barrier()


def test_no_thread_runs_in_between() -> None:
    run_ranks(2, sleep_through)


def keep_what_is_under_way(folder: Path) -> float:
    """Let rank 1 call rank 0's operation late, while rank 0 is suspended."""
    large = torch.full((300_000,), float(bf.rank()))
    bf.barrier()
    if bf.rank() == 1:
        hear(folder, "suspended")
        handle = bf.allreduce_nonblocking(large, name="large")
        say(folder, "started")
    else:
        handle = bf.allreduce_nonblocking(large, name="large")
        bf.suspend()
        say(folder, "suspended")
        hear(folder, "started")
        with pytest.raises(bf.SuspendedError, match="suspended"):
            bf.wait(handle)
        assert not bf.poll(handle)
        bf.resume()
    return float(bf.wait(handle)[-1])


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_operations_under_way_continue_afterwards(
    transport: str, tmp_path: Path
) -> None:
    got = run_ranks(2, keep_what_is_under_way, tmp_path, transport=transport)
    assert got == [0.5, 0.5]


def interrupt_and_go_on() -> float:
    """End a wait of rank 0 by a signal, and another thread's by suspend."""
    x = torch.full((4,), float(bf.rank()))
    bf.barrier()
    if bf.rank() == 0:
        handle = bf.allreduce_nonblocking(x, name="hung")
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            start_and_wait(timer, handle)
        timer.join()
        seen: list[BaseException] = []
        thread = threading.Thread(target=wait_for_error, args=(handle, seen))
        thread.start()
        world = current_communicator().world
        wait_until(lambda: world._waiting, "the thread does not wait")
        bf.suspend()
        thread.join(DEADLINE_S)
        assert [type(error) for error in seen] == [bf.SuspendedError]
        bf.resume()
        bf.barrier()  # Lets rank 1 continue.
        return float(bf.wait(handle)[0])
    bf.barrier()
    return float(bf.allreduce(x, name="hung")[0])


def start_and_wait(timer: threading.Timer, handle: bf.Handle[torch.Tensor]) -> None:
    timer.start()
    bf.wait(handle)


def wait_for_error(handle: bf.Handle[torch.Tensor], seen: list[BaseException]) -> None:
    try:
        bf.wait(handle)
    except Exception as error:
        seen.append(error)


def test_a_hung_wait_can_be_interrupted_and_repeated() -> None:
    assert run_ranks(2, interrupt_and_go_on) == [0.5, 0.5]


def end_while_suspended() -> None:
    bf.barrier()
    bf.suspend()
    bf.shutdown()
    with pytest.raises(bf.ShutdownError):
        bf.resume()
    bf.init()
    assert bf.allreduce(torch.ones(1), op=bf.Sum).item() == bf.size()


def test_shutdown_resumes() -> None:
    run_ranks(2, end_while_suspended)
