"""The loader over leases: passes, states, and ranks that are threads."""

from __future__ import annotations

import logging
import random
import re
import threading

import numpy as np
import pytest

from bluecomm.data import DataLoader
from bluecomm.data.dynamic.local_cell import LocalCell
from bluecomm.data.permutation import Permutation
from tests.support.deadlines import DEADLINE_S
from tests.unit.bluecomm.data.dynamic.thread_ranks import ThreadRanks
from tests.unit.bluecomm.data.worlds import Sized


def loader_of(length, batch_size=2, **options):
    options = {"num_workers": 0, "partition": "dynamic", **options}
    return DataLoader(Sized(length), batch_size, **options)


def lists(batches):
    return [batch.tolist() for batch in batches]


def flat(batches):
    return [index for batch in batches for index in batch.tolist()]


@pytest.mark.parametrize("uneven", [False, True])
def test_one_rank_passes_over_each_epoch(uneven):
    loader = loader_of(11, uneven=uneven)
    assert len(loader) == 6
    first, second = flat(loader), flat(loader)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(11))
    assert loader.epoch == 2
    assert loader.state_dict()["done"] == []
    assert flat(loader_of(5, shuffle=False)) == list(range(5))
    assert flat(loader_of(0)) == []


def test_workers_load_ahead_and_only_used_batches_count():
    options = {"num_workers": 2, "prefetch_factor": 3, "shuffle": False}
    options["multiprocessing_context"] = "fork"
    loader = loader_of(30, **options)
    taken = []
    for batch in loader:
        taken.append(batch)
        if len(taken) == 4:
            state = loader.state_dict()
    assert flat(taken) == list(range(30))
    assert state["done"] == [[0, 8]]
    assert loader.counted == 30
    resumed = loader_of(30, batch_size=5, shuffle=False)
    resumed.load_state_dict(state)
    assert len(resumed) == 5
    assert resumed.state_dict() == state
    assert flat(resumed) == list(range(8, 30))
    assert resumed.epoch == 1


def test_a_pass_that_was_broken_off_is_no_epoch():
    loader = loader_of(9)
    for batch in loader:
        taken = batch.tolist()
        break
    # The batch in hand was given back.
    assert loader.state_dict()["done"] == []
    assert lists(loader)[0] == taken
    batches = iter(loader)
    next(batches)
    assert loader.state_dict()["done"] == [[0, 2]]
    other = iter(loader)
    next(other)
    with pytest.raises(RuntimeError, match="another pass over this loader has begun"):
        next(batches)
    assert len(list(other)) == 4
    assert loader.epoch == 2


def test_ranks_in_different_epochs_are_refused(monkeypatch):
    """Rank 0 breaks its first pass off, so it repeats the epoch."""
    threads = ThreadRanks(monkeypatch, 2)

    def body(rank):
        loader = loader_of(8, uneven=True)
        for number, _ in enumerate(loader):
            if number == 0:
                threads.meet()
            if rank == 0:
                break
        if rank == 1:
            threads.meet()
            list(loader)
            return
        batches = iter(loader)
        next(batches)
        threads.meet()

    with pytest.raises(ValueError, match="rank 1 begins epoch 1, and other ranks have"):
        threads.run(body)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("partition", ["static", "dynamic"])
def test_a_pass_ends_when_the_program_goes_elsewhere(partition, workers):
    options = {"partition": partition, "num_workers": workers, "shuffle": False}
    if workers:
        options["multiprocessing_context"] = "fork"
    loader = loader_of(9, **options)
    state = loader.state_dict()
    for go_elsewhere in (
        lambda: loader.load_state_dict(state),
        lambda: loader.set_epoch(loader.epoch + 1),
    ):
        batches = iter(loader)
        next(batches)
        go_elsewhere()
        with pytest.raises(
            RuntimeError, match="set_epoch or load_state_dict has ended"
        ):
            next(batches)
        assert sorted(flat(loader)) == list(range(9))


def test_no_thread_is_left():
    before = {*threading.enumerate()}  # a thread of an earlier test may end meanwhile
    loader = loader_of(9)
    list(loader)
    for _ in loader:
        break
    assert {*threading.enumerate()} <= before


@pytest.mark.parametrize(
    ("length", "ranks", "batch_size"), [(23, 3, 2), (2, 3, 2), (24, 3, 4), (0, 2, 1)]
)
def test_ranks_in_step_make_equally_many_steps(monkeypatch, length, ranks, batch_size):
    threads = ThreadRanks(monkeypatch, ranks)

    def body(rank):
        batches = []
        for batch in loader_of(length, batch_size, shuffle=False):
            batches.append(batch)
            threads.meet()
        return batches

    results = threads.run(body)
    steps = -(-length // (ranks * batch_size))
    assert [len(batches) for batches in results] == [steps] * ranks
    indices = [index for batches in results for index in flat(batches)]
    assert {*indices} == {*range(length)}
    if length >= ranks:
        assert len(indices) == length


def test_ranks_in_step_go_on_without_one_that_is_lost(monkeypatch):
    """Rank 1 is lost in its third step, so only two of its batches count."""
    threads = ThreadRanks(monkeypatch, 3)
    others = threading.Barrier(2, timeout=DEADLINE_S)
    left_open = []

    def body(rank):
        taken = []
        batches = iter(loader_of(31, shuffle=False))
        for batch in batches:
            taken.append(batch)
            if len(taken) > 3:
                others.wait()
                continue
            threads.meet()
            if len(taken) == 3 and rank == 1:
                threads.lost.append(1)
                left_open.append(batches)
                break
        return taken

    results = threads.run(body)
    (cell,) = threads.cells.values()
    assert cell.ledger()["done"] == [[0, 31]]
    assert len(results[0]) == len(results[2])
    counted = [*flat(results[0]), *flat(results[1][:2]), *flat(results[2])]
    assert {*counted} == {*range(31)}
    left_open[0].close()


@pytest.mark.parametrize("seed", range(4))
def test_other_worlds_go_on_from_a_state(monkeypatch, seed):
    """The second world uses all that the state of the first one does not have."""
    draw = random.Random(seed)
    length = draw.randrange(20, 60)
    state = {}

    def begin(rank, steps):
        loader = loader_of(length, sizes[0], seed=seed, uneven=True)
        used = []
        for batch in loader:
            used.append(batch)
            if len(used) == steps[rank]:
                break
        if rank == 0:
            state.update(loader.state_dict())

    def go_on(rank):
        loader = loader_of(length, sizes[1], seed=seed)
        loader.load_state_dict(state)
        used = []
        for batch in loader:
            used.append(batch)
            threads.meet()
        return len(used), flat(used), loader.counted

    sizes = [draw.randint(1, 4), draw.randint(1, 4)]
    worlds = [draw.randint(1, 3), draw.randint(1, 4)]
    steps = [draw.randint(1, 5) for _ in range(worlds[0])]
    threads = ThreadRanks(monkeypatch, worlds[0])
    threads.run(lambda rank: begin(rank, steps))
    threads = ThreadRanks(monkeypatch, worlds[1])
    results = threads.run(go_on)
    assert len({number for number, _, _ in results}) == 1
    assert {counted for _, _, counted in results} == {length}
    used = {index for _, indices, _ in results for index in indices}
    done = [index for begin, end in state["done"] for index in range(begin, end)]
    order = Permutation(length, seed, 0)
    left = {*range(length)} - {*order.at(np.array(done, dtype=np.int64)).tolist()}
    assert left <= used


def test_fast_ranks_take_more(monkeypatch):
    """Rank 0 keeps its first batch until the other one has used all others."""
    threads = ThreadRanks(monkeypatch, 2)
    has_taken = threading.Event()
    is_rest_used = threading.Event()

    def body(rank):
        taken = 0
        for _ in loader_of(40, shuffle=False, uneven=True):
            taken += 1
            if rank == 0 and taken == 1:
                has_taken.set()
                assert is_rest_used.wait(DEADLINE_S)
            elif rank == 1 and taken == 1:
                assert has_taken.wait(DEADLINE_S)
            elif rank == 1 and taken == 15:
                is_rest_used.set()
        return taken

    slow, fast = threads.run(body)
    assert slow + fast == 20
    assert fast >= 15


def test_a_rank_waits_for_no_more_than_the_deadline(monkeypatch):
    threads = ThreadRanks(monkeypatch, 2)
    threads.deadline_s = 0.05
    has_failed = threading.Event()

    def body(rank):
        loader = loader_of(2, batch_size=1, uneven=True)
        for _ in loader:
            threads.meet()
            if rank == 0:
                assert has_failed.wait(DEADLINE_S)
                return

    def fail(rank):
        try:
            body(rank)
        except TimeoutError as error:
            has_failed.set()
            return str(error)

    text = threads.run(fail)[1]
    assert "DataLoader: rank 1 waits for the last records of the epoch, which" in text
    assert "rank 0 has leased, and no lease has begun or ended for 0 s" in text


def test_an_error_of_the_ledger_reaches_the_program(monkeypatch):
    loader = loader_of(9)
    batches = iter(loader)
    next(batches)

    def fail(cell, request):
        raise OSError("the store is gone")

    monkeypatch.setattr(LocalCell, "call", fail)
    with pytest.raises(OSError, match="the store is gone"):
        list(batches)


def test_a_pass_may_end_after_the_ledger(monkeypatch, caplog):
    """As at the end of a program that holds an unfinished pass."""
    loader = loader_of(9)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()

    def fail(cell, *request):
        raise OSError("the store is gone")

    monkeypatch.setattr(LocalCell, "call", fail)
    with caplog.at_level(logging.INFO, logger="bluecomm"):
        loader._source._pass._queue.close()
    assert "the leases were not given back: the store is gone" in caplog.text
    monkeypatch.setattr(LocalCell, "ledger", fail)
    batches.close()
    assert loader.state_dict() == state


def test_batches_that_others_use_again_are_reported(caplog):
    loader = loader_of(4, uneven=True)
    batches = iter(loader)
    next(batches)
    queue = loader._source._pass._queue
    request = {"holder": "1", "number": 1, "lost": ["0"]}
    queue._cell.call(request)
    with caplog.at_level(logging.WARNING, logger="bluecomm"):
        list(batches)
    assert "rank 0 was silent for so long that others use" in caplog.text
    assert "pass a longer lease_s" in caplog.text


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"drop_last": True},
            TypeError,
            "drop_last cannot be passed with",
        ),
        ({"partition": "static", "uneven": True}, TypeError, "uneven cannot be passed"),
        (
            {"partition": "fair"},
            ValueError,
            "'dynamic'], got 'fair'",
        ),
        (
            {"lease_s": 0},
            ValueError,
            "got batch_size=2 and lease_s=0",
        ),
        ({"batch_size": 0}, ValueError, "expected a batch_size of at least 1"),
    ],
)
def test_arguments_that_exclude_each_other_are_refused(options, error, text):
    with pytest.raises(error, match=re.escape(text)):
        loader_of(4, **options)


def test_a_dataset_without_length_is_refused():
    with pytest.raises(TypeError, match=r"DataLoader: the dataset .* has no length"):
        DataLoader(iter([1]), 2, num_workers=0, partition="dynamic")


def test_states_of_other_data_and_partitions_are_refused():
    static = DataLoader(Sized(4), 2, num_workers=0)
    dynamic = loader_of(4)
    with pytest.raises(ValueError, match='expected a state of partition="dynamic"'):
        dynamic.load_state_dict(static.state_dict())
    with pytest.raises(ValueError, match="expected the keys"):
        static.load_state_dict(dynamic.state_dict())
    with pytest.raises(ValueError, match="other data: length was 5 and is 4"):
        dynamic.load_state_dict(loader_of(5).state_dict())
