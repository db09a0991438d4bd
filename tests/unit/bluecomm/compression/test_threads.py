"""``share_out``: which threads call the function, and when it returns."""

import threading
import time

import pytest
import torch

from bluecomm.compression.kernels import threads
from bluecomm.compression.kernels.threads import share_out
from tests.support.deadlines import DEADLINE_S


@pytest.fixture
def four_threads(monkeypatch):
    number = torch.get_num_threads()
    monkeypatch.setattr(threads, "_pools", {})
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(number)
    for pool in threads._pools.values():
        pool.shutdown()


@pytest.mark.parametrize("chunks", [0, 1, 2, 3, 4, 5, 11])
@pytest.mark.usefixtures("four_threads")
def test_each_chunk_belongs_to_one_call(chunks):
    parts = []
    share_out(chunks, lambda first, end: parts.append(range(first, end)))
    assert sorted(k for part in parts for k in part) == list(range(chunks))
    assert len(parts) == max(1, min(4, chunks))


@pytest.mark.usefixtures("four_threads")
def test_all_numbers_of_chunks_share_the_same_threads():
    workers = set()
    for chunks in (2, 3, 4, 9):
        together = threading.Barrier(min(4, chunks))

        def work(first, end, together=together):
            together.wait(DEADLINE_S)
            workers.add(threading.current_thread())

        share_out(chunks, work)
    assert len(workers) == 4


@pytest.mark.usefixtures("four_threads")
def test_an_error_waits_for_the_other_threads():
    running, ended = threading.Barrier(4), []

    def work(first, end):
        running.wait(DEADLINE_S)
        if first == 0:
            raise ArithmeticError
        time.sleep(0.1)
        ended.append(first)

    with pytest.raises(ArithmeticError):
        share_out(4, work)
    assert sorted(ended) == [1, 2, 3]


@pytest.mark.usefixtures("four_threads")
def test_an_error_of_another_thread_is_raised():
    def work(first, end):
        if first == 2:
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        share_out(4, work)
