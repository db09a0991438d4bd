"""Computation of the test's own process, to be compared with that of ranks."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Compute with one thread, as ``run_ranks`` lets ranks do.

    On some CPUs the last bits of a product depend on the number of threads.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
