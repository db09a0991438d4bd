"""Sparse gradients of parameters on GPUs, by tests of the host."""

from __future__ import annotations

import pytest

from tests.mp import test_optim_sparse as on_host
from tests.support.fakegpu.over import over_fakegpu

pytestmark = pytest.mark.mp


@pytest.mark.parametrize("transport", ["nccl", "staged"])
def test_gradients_are_those_of_the_host(transport: str) -> None:
    with over_fakegpu(transport, seed=1):
        # With and without the layer's own word that its gradient is sparse.
        for is_layer in (True, False):
            on_host.test_equals_dense_training(3, is_layer, 1 << 20)
        on_host.test_gradients_that_are_dense_after_all(True)
        on_host.test_ranks_without_a_gradient(is_layer=False, idle=[0])


def test_ranks_with_other_gradients_and_without_data() -> None:
    with over_fakegpu("nccl", seed=2):
        on_host.test_sums_and_compresses()
        on_host.test_sparse_adam()
        on_host.test_join_averages_over_the_ranks_with_data(True)
        on_host.test_sparse_here_and_dense_there_is_an_error(False)
