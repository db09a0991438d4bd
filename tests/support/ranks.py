"""Runs a function on several ranks, which are processes of a reused pool.

::

    def body(x):
        return bf.allreduce(x[bf.rank()])

    results = run_ranks(4, body, x)

A rank is a forked child of a server that has imported torch and bluecomm, so that
starting it takes milliseconds. It is reused by the next test; after a failure or a
timeout the whole pool is replaced.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from tests.support.control import ControlServer
from tests.support.deadlines import DEADLINE_S, JOB_S

_CONTEXT = multiprocessing.get_context("forkserver")
_PRELOADED = ["torch", "numpy", "networkx", "bluecomm", "tests.support.ranks"]


# Changes a body, its arguments and the environment of its ranks.
Around = Callable[
    [int, Callable[..., Any], tuple[Any, ...], Mapping[str, str]],
    tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, str]],
]
_around: Around | None = None


class RankFailure(AssertionError):
    """Some ranks failed or did not finish; the text holds the error of each."""


@contextlib.contextmanager
def runs_within(around: Around | None) -> Iterator[None]:
    """Let ``run_ranks`` run what ``around`` makes of its arguments.

    ``None`` leaves them as they are.
    """
    global _around
    before, _around = _around, around
    try:
        yield
    finally:
        _around = before


_limit_s = JOB_S


@contextlib.contextmanager
def limit_of_ranks(limit_s: float) -> Iterator[None]:
    """Kill ranks after so many seconds in a block, unless a call has its own limit."""
    global _limit_s
    before, _limit_s = _limit_s, limit_s
    try:
        yield
    finally:
        _limit_s = before


def run_ranks(
    world_size: int,
    body: Callable[..., Any],
    *args: Any,
    transport: str = "auto",
    machines: Sequence[int] | None = None,
    ranks_per_machine: int | None = None,
    environment: Mapping[str, str] | None = None,
    initialize: bool = True,
    survives_losses: bool = False,
    lost: Collection[int] = (),
    limit_s: float | None = None,
    report_s: float = 3.0,
) -> list[Any]:
    """Return what ``body(*args)`` returns on each rank of a fresh world.

    Args:
        world_size: Number of ranks.
        body: Module-level function; runs between ``bf.init`` and ``bf.shutdown``.
        *args: Its arguments, picklable.
        transport: ``BLUECOMM_TRANSPORT``.
        machines: The machine that each rank is told to be on; ranks on different
            machines use TCP. Default: one machine.
        ranks_per_machine: ``BLUECOMM_RANKS_PER_MACHINE``.
        environment: Additional environment variables.
        initialize: Whether to call ``init`` and ``shutdown`` around ``body``.
        survives_losses: Whether the ranks are told to go on without lost ones.
        lost: Ranks whose processes end during ``body``; their results are ``None``.
        limit_s: Seconds after which the ranks are killed. Default: as
            ``limit_of_ranks`` says, or ``JOB_S``.
        report_s: Seconds in which each of the others may end after a failure.

    Raises:
        RankFailure: Some ranks raised or missed the limit; holds all tracebacks.
    """
    where = [str(machine) for machine in machines or [0] * world_size]
    server = ControlServer(world_size, where, survives_losses=survives_losses)
    variables = {"BLUECOMM_TRANSPORT": transport, **(environment or {})}
    if ranks_per_machine is not None:
        variables["BLUECOMM_RANKS_PER_MACHINE"] = str(ranks_per_machine)
    if _around is not None:
        body, args, variables = _around(world_size, body, args, variables)
    try:
        workers = _pool.take(world_size)
        for rank, worker in enumerate(workers):
            own = {**variables, **server.environment(rank)}
            worker.submit((own, body, args, initialize))
        results = _collect(workers, lost, limit_s or _limit_s, report_s)
        if lost:
            _pool.close()
        return results
    except RankFailure:
        _pool.close()
        raise
    finally:
        server.close()


def _collect(
    workers: Sequence[_Worker], lost: Collection[int], limit_s: float, report_s: float
) -> list[Any]:
    results: list[Any] = []
    failures = []
    deadline = time.monotonic() + limit_s
    for rank, worker in enumerate(workers):
        left = deadline - time.monotonic() if not failures else report_s
        answer = worker.answer(max(0.0, left))
        if rank in lost and worker.has_ended():
            results.append(None)
        elif answer is None:
            failures.append(f"rank {rank}: no result within {limit_s:g} s")
        elif answer[0]:
            results.append(answer[1])
        else:
            failures.append(f"rank {rank}:\n{answer[1]}")
    if failures:
        raise RankFailure("\n".join(failures))
    return results


class _Worker:
    """One process of the pool."""

    def __init__(self) -> None:
        self._pipe, theirs = _CONTEXT.Pipe()
        # Not a daemon, because ranks may have children such as DataLoader workers.
        self._process = _CONTEXT.Process(target=_work, args=(theirs,))
        self._process.start()
        theirs.close()

    def submit(self, task: tuple[Any, ...]) -> None:
        self._pipe.send(task)

    def answer(self, timeout_s: float) -> tuple[bool, Any] | None:
        try:
            if not self._pipe.poll(timeout_s):
                return None
            answer: tuple[bool, Any] = self._pipe.recv()
            return answer
        except (EOFError, ConnectionError):
            self._process.join(timeout=DEADLINE_S)
            return False, f"process ended, exit code {self._process.exitcode}"

    def has_ended(self) -> bool:
        return not self._process.is_alive()

    def close(self) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.join(timeout=DEADLINE_S)
        self._process.close()


class _Pool:
    """Worker processes, started on first use."""

    def __init__(self) -> None:
        self._workers: list[_Worker] = []
        self._owner = os.getpid()
        atexit.register(self.close)

    def take(self, count: int) -> list[_Worker]:
        if not self._workers:
            _CONTEXT.set_forkserver_preload(_PRELOADED)
        while len(self._workers) < count:
            self._workers.append(_Worker())
        return self._workers[:count]

    def close(self) -> None:
        if os.getpid() != self._owner:
            return
        for worker in self._workers:
            worker.close()
        self._workers.clear()


_pool = _Pool()


def _work(pipe: Connection) -> None:
    """Serve tasks until the pool closes the connection."""
    import torch

    torch.set_num_threads(1)
    clean = dict(os.environ)
    while True:
        try:
            variables, body, args, initialize = pipe.recv()
        except (EOFError, ConnectionError):
            return
        os.environ.clear()
        os.environ.update({**clean, **variables})
        if fake := sys.modules.get("tests.support.fakegpu.library"):
            fake.reset_loaded()  # the settings of its last test end
        pipe.send(_run(body, args, initialize))


def _run(body: Callable[..., Any], args: Any, initialize: bool) -> tuple[bool, Any]:
    import bluecomm as bf
    from bluecomm.runtime import current_process

    orderly = False
    try:
        if initialize:
            bf.init()
        result = body(*args)
        orderly = True
        return True, result
    except BaseException:
        return False, traceback.format_exc()
    finally:
        current_process().leave(orderly=orderly)
