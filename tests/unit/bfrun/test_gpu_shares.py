"""Which GPUs of a host each rank sees."""

import pytest

from bfrun.errors import LaunchError
from bfrun.gpu_shares import gpus_of_rank

GPUS = ["0", "1", "GPU-a", "5"]


def shares(gpus, each, ranks, *, is_shared=False):
    return [
        gpus_of_rank("h", gpus, each, number, ranks, is_shared)
        for number in range(ranks)
    ]


def test_each_rank_gets_its_own():
    assert shares(GPUS, 2, 2) == [("0", "1"), ("GPU-a", "5")]
    assert shares(GPUS, 1, 2) == [("0",), ("1",)]


def test_ranks_take_turns_if_they_share():
    of_ranks = shares(GPUS[:3], 1, 4, is_shared=True)
    assert of_ranks == [("0",), ("1",), ("GPU-a",), ("0",)]
    assert shares(GPUS[:3], 2, 2, is_shared=True) == [("0", "1"), ("GPU-a", "0")]


@pytest.mark.parametrize(("each", "is_shared"), [(2, False), (5, True)])
def test_too_few_are_an_error_with_a_remedy(each, is_shared):
    with pytest.raises(
        LaunchError,
        match=rf"--gpus-per-rank {each}: host 'h' needs {3 * each} GPUs for 3 ranks, "
        "but it has 4; lower .* or add --share-gpus",
    ):
        shares(GPUS, each, 3, is_shared=is_shared)
