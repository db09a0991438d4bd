"""torch's cases that bluecomm does not pass on purpose, and why."""

_NAME = (
    "torch's monitored_barrier accepts no backend but Gloo; see bf.monitored_barrier"
)

EXCEPTIONS = {
    "test_monitored_barrier_failure_order": _NAME,
    "test_monitored_barrier_gloo": _NAME,
    "test_monitored_barrier_gloo_rank_0_timeout": _NAME,
    "test_monitored_barrier_gloo_subgroup": _NAME,
    "test_monitored_barrier_wait_all_ranks": _NAME,
}
