"""What ``pytest tests/mp --over-fakegpu`` leaves to the host.

Only the files in ``FILES`` are run. Of these, the tests in ``TESTS`` must fail: one
that passes fails the run, so that its line is removed.
"""

from __future__ import annotations

FILES = [
    "test_allreduce",
    "test_compressed_allreduce",
    "test_horovod_operations",
    "test_neighbor_allreduce",
    "test_optim_bytegrad",
    "test_optim_fused",
    "test_optim_gradient_allreduce",
    "test_optim_helpers",
    "test_optim_methods",
    "test_optim_parameter_averaging",
    "test_optim_powersgd",
    "test_optim_state",
    "test_optim_steps",
    "test_outputs",
    "test_point_to_point",
    "test_rooted_operations",
    "test_window_errors",
    "test_windows",
]

_NO_SPARSE = "the fake device has no sparse tensors"

# Why a test is of the host, by its file and name; without parameters: all of them.
TESTS = {
    "test_compressed_allreduce.py::test_equals_the_formula": (
        "it encodes with RandomK itself, whose positions the fake makes on the host"
    ),
    "test_horovod_operations.py::"
    "test_sparse_gradients_sent_as_dense_ones_suit_sparse_adam": (
        "sparse gradients of parameters on a GPU are refused"
    ),
    "test_optim_bytegrad.py::"
    "test_sparse_gradients_and_wrong_options_are_refused_on_all_ranks": _NO_SPARSE,
    "test_optim_powersgd.py::test_follows_its_recursion": _NO_SPARSE,
}
