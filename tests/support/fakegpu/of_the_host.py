"""The files that ``pytest tests/mp --over-fakegpu`` runs, and tests that fail there.

It runs the files in ``FILES``. The tests in ``TESTS`` work only on the host: if one of
them passes, the run fails, so that its line is removed.
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

# Why a test works only on the host, by its file and name. A name without parameters is
# that of all cases of a test.
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
