"""The benchmark accepts tensors of a GPU only on the path that was asked for."""

import pytest

from bluecomm.bench.device_path import UnexpectedPath, check_paths


@pytest.mark.parametrize(
    ("used", "asked", "needs_nccl"),
    [
        (["nccl", "nccl"], "nccl", True),
        (["staged", ""], "staged", True),
        (["staged", "nccl"], "nccl", False),  # such as windows
        (["", ""], "nccl", True),  # nothing was exchanged
    ],
)
def test_the_path_that_was_asked_for_is_accepted(used, asked, needs_nccl):
    check_paths("ops", used, asked, needs_nccl=needs_nccl)


def test_tensors_that_were_staged_instead_are_refused():
    with pytest.raises(
        UnexpectedPath, match=r"allreduce_: the tensors of rank 1 were copied .* nccl"
    ):
        check_paths("allreduce_", ["nccl", "staged"], "nccl", needs_nccl=True)


def test_calls_of_nccl_in_a_job_without_it_are_refused():
    with pytest.raises(UnexpectedPath, match=r"rank 0 were passed to NCCL.* staged"):
        check_paths("win_put", ["nccl"], "staged", needs_nccl=False)
