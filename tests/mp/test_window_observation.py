"""Windows in ``stats``, in the timeline, and in the table of pending waits."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import bluecomm as bf
from bluecomm.runtime import current_communicator
from bluecomm.runtime.stall import StallReport
from tests.support.deadlines import hear, say, wait_until
from tests.support.ranks import run_ranks
from tests.support.traces import check_timeline, slices_of

pytestmark = pytest.mark.mp

COUNT, NBYTES = 1000, 4000


def say_what_is_pending(folder: Path, word: str, blocker: int) -> str:
    """Wait until a call waits for ``blocker``; return the monitor's text."""
    world = current_communicator().world

    def waiting() -> list[Any]:
        return [
            one for one in world.engine.pending() if one["waiting_for"] == [blocker]
        ]

    wait_until(waiting, f"nothing waits for rank {blocker}")
    (operation,) = waiting()
    assert operation["wish"]
    text = str(StallReport.alone(world.rank, operation))
    say(folder, word)
    return text


def wait_for_each_other(folder: Path) -> list[str]:
    """Let rank 2 wait for a mutex of rank 1, and for a put while rank 1 sleeps."""
    told: list[str] = []

    def watch(word: str) -> threading.Thread:
        watcher = threading.Thread(
            target=lambda: told.append(say_what_is_pending(folder, word, 1))
        )
        watcher.start()
        return watcher

    if bf.rank() == 1:
        with bf.win_mutex("w", ranks=[0]):
            bf.barrier()
            hear(folder, "2 wants the mutex")
    elif bf.rank() == 0:
        bf.barrier()
    else:
        bf.barrier()
        watcher = watch("2 wants the mutex")
        with bf.win_mutex("w", ranks=[0]):
            watcher.join()
    bf.barrier()
    if bf.rank() == 1:
        bf.suspend()
        say(folder, "1 rests")
        if bf.stats().neighbors[0].transport != "shm":
            hear(folder, "0 puts")
        bf.resume()
    elif bf.rank() == 0 and bf.stats().neighbors[0].transport != "shm":
        hear(folder, "1 rests")
        watcher = watch("0 puts")
        bf.win_put(torch.ones(COUNT), "w")
        watcher.join()
    return told


def use_a_window(folder: Path) -> tuple[bf.Stats, list[str]]:
    """Call each operation on a one-way ring; return the counts and the waits."""
    bf.set_topology(bf.RingGraph(bf.size(), connect_style=2))
    x = torch.ones(COUNT)
    bf.reset_stats()
    bf.win_create(x, "w", zero_init=True)
    bf.win_put(x, "w")
    bf.win_wait(bf.win_put_nonblocking(x, "w"))
    bf.win_accumulate(x, "w")
    bf.win_get("w")
    bf.win_update("w")
    bf.barrier()
    counted = bf.stats()
    told = wait_for_each_other(folder)
    bf.barrier()
    stats = bf.stats()
    if bf.rank() == 2:
        mutex = stats.operations["win_mutex"]
        assert mutex.calls == 1
        assert mutex.exposed_s > 0
        assert mutex.duration_s > 0
        (holder,) = [each for each in stats.neighbors if each.rank == 1]
        assert holder.operations["win_mutex"].wait_s == mutex.duration_s
        assert stats.exposed_s >= mutex.exposed_s
    bf.win_free()
    bf.reset_stats()
    assert not {name for name in bf.stats().operations if name.startswith("win_")}
    return counted, told


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_stats_and_timeline_show_windows(transport: str, tmp_path: Path) -> None:
    prefix = f"{tmp_path}/t"
    run = run_ranks(
        3,
        use_a_window,
        tmp_path,
        transport=transport,
        environment={"BLUECOMM_TIMELINE": prefix},
    )
    for rank, (stats, _) in enumerate(run):
        _check_counts(stats, rank)
        timeline = json.loads(Path(f"{prefix}{rank}.json").read_text())
        check_timeline(timeline)
        _check_slices(timeline, rank, transport)
    _, told = run[2]
    assert len(told) == 1
    waited = r"win_mutex 'w' on rank 2 has waited \d+ s for rank 1 to release the mutex"
    assert re.match(f"{waited} of rank 0", told[0])
    if transport == "tcp":
        _, told = run[0]
        (put,) = told
        waited = r"win_put 'w' on rank 0 has waited \d+ s for rank 1 to answer"
        assert re.fullmatch(waited, put)


def _check_counts(stats: bf.Stats, rank: int) -> None:
    calls = {name: one.calls for name, one in stats.operations.items()}
    assert calls["win_put"] == 2
    assert [calls[f"win_{each}"] for each in ("create", "accumulate", "get")] == [1] * 3
    assert calls["win_update"] == 1
    assert all(one.failures == 0 for one in stats.operations.values())
    edges = {each.rank: each.operations for each in stats.neighbors}
    right, left = edges[(rank + 1) % 3], edges[(rank - 1) % 3]
    put, accumulate = right["win_put"], right["win_accumulate"]
    assert (put.messages_sent, put.bytes_sent) == (2, 2 * NBYTES)
    assert (accumulate.messages_sent, accumulate.bytes_sent) == (1, NBYTES)
    assert (put.messages_received, put.bytes_received) == (0, 0)
    got = left["win_get"]
    assert (got.messages_received, got.bytes_received) == (1, NBYTES)
    assert "win_put" not in left


def _check_slices(timeline: dict[str, Any], rank: int, transport: str) -> None:
    lanes = slices_of(timeline, rank, "communicate")
    by_name = {each["name"]: each for each in lanes}
    right, left = f"{(rank + 1) % 3}", f"{(rank - 1) % 3}"
    assert by_name["win_accumulate w"]["args"]["bytes_sent"] == {right: NBYTES}
    assert by_name["win_get w"]["args"]["bytes_received"] == {left: NBYTES}
    assert "group" not in by_name["win_get w"]["args"]
    assert "win_create w" in by_name
    assert "win_update w" not in by_name
    moved = [each["name"] for each in slices_of(timeline, rank, "combine")]
    assert "WIN_SYNC_COMPUTE_AVERAGE" in moved
    enqueued = {each["name"] for each in slices_of(timeline, rank, "enqueue")}
    if transport == "shm":
        assert moved.count("WIN_PUT") >= 2
        assert {"WIN_ACCUMULATE", "WIN_GET"} <= set(moved)
        assert "ENQUEUE_WIN_PUT" not in enqueued
    else:
        names = {"ENQUEUE_WIN_PUT", "ENQUEUE_WIN_ACCUMULATE", "ENQUEUE_WIN_GET"}
        assert names <= enqueued
    if rank == 2:
        waits = [each["name"] for each in slices_of(timeline, rank, "wait")]
        assert "Aquire_Mutex" in waits
        (held,) = [each for each in lanes if each["name"] == "win_mutex w"]
        assert held["dur"] > 0
