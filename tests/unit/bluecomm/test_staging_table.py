"""Each device has one staging, also when several threads ask for it at once."""

import threading

import torch

from bluecomm.device import runtime, staging_table
from tests.support.deadlines import DEADLINE_S

VALUES = torch.zeros(2)


def test_threads_that_start_at_once_get_the_same_staging(monkeypatch):
    both_make_one = threading.Barrier(2)
    named = []

    class SlowStaging:
        def __init__(self, index, recorder):
            both_make_one.wait(DEADLINE_S)

        def name_rank(self, rank):
            named.append(rank)

    class Runtime:
        def index_of(self, tensor):
            return 3

    monkeypatch.setattr(staging_table, "CudaStaging", SlowStaging)
    monkeypatch.setattr(staging_table, "_cuda", {})
    monkeypatch.setattr(staging_table, "_rank", 5)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(staging_table.staging_of(VALUES)))
        for _ in range(2)
    ]
    with runtime.use(Runtime()):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        first, second = found
        assert first is second
        assert named == [5, 5]
        assert staging_table.staging_of(VALUES) is first
    assert staging_table.staging_of(VALUES) is None
