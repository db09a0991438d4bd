"""The files that ``pytest tests/mp --over-fakegpu`` runs, and tests that fail there.

It runs the files in ``FILES``, without the tests in ``NOT_RUN``; ``LEFT_OUT`` says why
it does not run the others. The tests in ``TESTS`` work only on the host, and those in
``THROUGH_NCCL`` not through NCCL: if one of them passes, the run fails, so that its
line is removed.
"""

from __future__ import annotations

FILES = [
    "test_agreement",
    "test_allreduce",
    "test_completion",
    "test_compressed_allreduce",
    "test_elastic",
    "test_free_process_set",
    "test_gradient_order",
    "test_gradients",
    "test_horovod_operations",
    "test_join",
    "test_member_cell",
    "test_neighbor_allreduce",
    "test_optim_agreement",
    "test_optim_async",
    "test_optim_autotune",
    "test_optim_bytegrad",
    "test_optim_bytegrad_machines",
    "test_optim_coded_averaging",
    "test_optim_coded_diloco",
    "test_optim_coded_machines",
    "test_optim_convergence",
    "test_optim_decentralized",
    "test_optim_defaults",
    "test_optim_demo",
    "test_optim_desloc",
    "test_optim_fused",
    "test_optim_gradient_allreduce",
    "test_optim_helpers",
    "test_optim_local_parameters",
    "test_optim_method_errors",
    "test_optim_methods",
    "test_optim_models",
    "test_optim_momentum_machines",
    "test_optim_muloco",
    "test_optim_one_sided",
    "test_optim_onebit_adam",
    "test_optim_parameter_averaging",
    "test_optim_powersgd",
    "test_optim_qadam",
    "test_optim_quorum",
    "test_optim_rebucket",
    "test_optim_sparse",
    "test_optim_sparse_loco",
    "test_optim_state",
    "test_optim_steps",
    "test_optim_switching",
    "test_optim_uneven_inputs",
    "test_optim_zero_one_adam",
    "test_outputs",
    "test_point_to_point",
    "test_predecessors_defects",
    "test_rank_lists",
    "test_regrouping",
    "test_rooted_operations",
    "test_shutdown",
    "test_sparse_allreduce",
    "test_stats",
    "test_suspend",
    "test_sync_batch_norm",
    "test_timeline",
    "test_timeline_parts",
    "test_torch_attacks",
    "test_torch_collectives",
    "test_torch_comm_hooks",
    "test_torch_errors",
    "test_torch_group_life",
    "test_torch_hooks",
    "test_torch_interfaces",
    "test_torch_point_to_point",
    "test_torch_training",
    "test_window_errors",
    "test_window_observation",
    "test_windows",
]

_OWN_PROGRAMS = "its ranks are programs of their own, without a fake device"
_HOST_ITSELF = "it tests what only the host has"
_COMPILED = "torch.compile also compiles the fake, which is in Python"

# Why a file is not run.
LEFT_OUT = {
    **dict.fromkeys(
        (
            "test_bench_compare",
            "test_bench_launch",
            "test_bench_torch",
            "test_bench_train",
            "test_bfrun_local",
            "test_lightning",
            "test_lightning_checkpoints",
            "test_notebook_engines",
            "test_packages",
            "test_plain_python",
            "test_trainers",
            "test_trainers_over_gloo",
        ),
        _OWN_PROGRAMS,
    ),
    "test_bench": "the benchmark chooses where its tensors are",
    "test_data": "samples and batches are on the host",
    "test_encryption": f"{_HOST_ITSELF}: encrypted links",
    "test_idle": f"{_HOST_ITSELF}: cores, which idle ranks leave to others",
    "test_many_ranks": f"{_HOST_ITSELF}: the memory of 64 ranks",
    "test_monitored_barrier": "it has no tensors",
    "test_optim_autotune_machines": f"{_HOST_ITSELF}: the engine's sums and links",
    "test_result_pool": f"{_HOST_ITSELF}: results in shared memory, also after forks",
    "test_share_memory": f"{_HOST_ITSELF}: tensors in shared memory",
    "test_staged_operations": "its tensors claim to be on a device of another kind",
}

# Why a test of a file that is run is not, as it passes in some runs and not in others.
NOT_RUN = {
    "test_optim_models.py::test_compiled_models": _COMPILED,
    "test_optim_state.py::test_changes_in_flight_are_errors": (
        "the body changes parameters while a copy or NCCL may still read them"
    ),
}

_FORKED = "forked workers of a DataLoader cannot use CUDA"

# Why a test works only on the host, by its file and name. A name without parameters is
# that of all cases of a test.
TESTS = {
    "test_optim_models.py::test_data_loader_workers": _FORKED,
    "test_torch_group_life.py::test_workers_are_forked_while_ddp_trains": _FORKED,
    "test_torch_training.py::test_buckets_of_ddp_move_into_shared_memory[1]": (
        f"{_HOST_ITSELF}: buckets in shared memory"
    ),
    "test_torch_training.py::test_compiled_models": _COMPILED,
}

_HOST_BYTES = "stats().bytes_sent counts links of the engine, and NCCL has its own"
_ROUNDED = "averages through NCCL are rounded after each addition"

THROUGH_NCCL = {
    **{
        f"test_agreement.py::test_{name}": _ROUNDED
        for name in (
            "dynamic_topologies_keep_agreement_for_any_number_of_terms",
            "no_number_is_closer_to_the_exact_average",
            "one_peer_schedules_keep_agreement",
            "static_topologies_keep_agreement",
        )
    },
    "test_optim_bytegrad.py::test_sends_a_quarter_of_the_bytes": _HOST_BYTES,
    "test_optim_demo.py::test_resumed_equals_uninterrupted_and_live_models_change": (
        _HOST_BYTES
    ),
    "test_optim_gradient_allreduce.py::test_compression_halves_the_traffic": (
        _HOST_BYTES
    ),
    "test_optim_qadam.py::test_switching_on_a_live_model_and_bytes": _HOST_BYTES,
    "test_optim_sparse_loco.py::"
    "test_resumed_equals_uninterrupted_and_live_models_change": _HOST_BYTES,
    "test_outputs.py::test_memory_of_the_wrong_length_fails_on_all_ranks": (
        "the error tells numbers of rows, not bytes"
    ),
    "test_torch_point_to_point.py::test_sends_and_receives": (
        "NCCL has no receive from any rank"
    ),
}


def reasons(transport: str) -> dict[str, str]:
    """Return why each test must fail in a mode of ``--over-fakegpu``."""
    return {**TESTS, **(THROUGH_NCCL if transport == "nccl" else {})}
