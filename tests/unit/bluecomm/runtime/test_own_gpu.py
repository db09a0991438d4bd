"""Which GPU a rank has, and which tensors it may pass."""

from types import SimpleNamespace

import pytest

from bluecomm.config import Config
from bluecomm.device import runtime
from bluecomm.runtime.layout import layout_of
from bluecomm.runtime.own_gpu import check_own_gpu, own_gpu


def world(rank, machines, **settings):
    return SimpleNamespace(
        rank=rank,
        config=Config(**settings),
        real_layout=layout_of(machines),
    )


@pytest.mark.parametrize(
    ("rank", "machines", "settings", "count", "expected"),
    [
        (3, "aabb", {}, 2, 1),
        (3, "aabb", {}, 0, None),
        (3, "aaaa", {"ranks_per_machine": 2}, 4, 3),
        (3, "aaaa", {"gpus_per_rank": 2}, 2, 0),
        (3, "aaaa", {"share_gpus": True}, 2, 1),
        (3, "aaaa", {"share_gpus": True, "gpus_per_rank": 1}, 1, 0),
    ],
)
def test_each_rank_has_a_gpu(rank, machines, settings, count, expected):
    assert own_gpu(world(rank, machines, **settings), count) == expected


def test_more_ranks_than_gpus_is_an_error():
    with pytest.raises(
        RuntimeError,
        match=r"local_device on rank 1: its machine has 3 ranks and 2 visible GPUs; "
        r".*--share-gpus.*BLUECOMM_GPUS_PER_RANK",
    ):
        own_gpu(world(1, "aaab"), 2)


@pytest.fixture
def sees():
    """Returns a context in which the process sees this many GPUs."""
    return lambda count: runtime.use(SimpleNamespace(count=lambda: count))


def test_the_gpu_of_another_rank_is_refused(sees):
    with sees(8):
        for allowed in (1, 2, 7):  # its own, and those that no rank has
            check_own_gpu(world(3, "aabb"), "allreduce", allowed)
        with pytest.raises(
            ValueError,
            match=r"allreduce on rank 3: the tensor is on GPU 0, which is that of "
            r"another rank; this rank's is GPU 1 "
            r".*set_device\(bluecomm.local_device\(\)\)"
            r".*BLUECOMM_GPUS_PER_RANK.*--share-gpus",
        ):
            check_own_gpu(world(3, "aabb"), "allreduce", 0)
        for settings in ({"share_gpus": True}, {"gpus_per_rank": 1}):
            check_own_gpu(world(3, "aabb", **settings), "allreduce", 0)


def test_a_rank_that_sees_fewer_gpus_than_ranks_may_use_each(sees):
    with sees(1):
        check_own_gpu(world(3, "aabb"), "allreduce", 0)
