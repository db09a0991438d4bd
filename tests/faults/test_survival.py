"""``bfrun --on-failure continue``: the others train on when ranks are lost."""

from __future__ import annotations

import re

import pytest

import bluecomm as bf
from bluecomm.optim.registry import names_that_survive_losses
from tests.support.launch import launched, python
from tests.support.survival import check_survivors, survival_command

pytestmark = pytest.mark.faults

EACH = [name for name in names_that_survive_losses() if name != "local"]


@pytest.mark.parametrize(
    ("transport", "size", "victims", "how", "algorithms"),
    [
        ("shm", 4, [2], "kill", EACH),
        ("tcp", 4, [0], "kill", EACH),
        ("shm", 4, [1], "raise", ["neighbor_allreduce"]),
        ("auto", 8, [1, 2, 4, 7], "kill", ["neighbor_allreduce"]),
    ],
    ids=["one", "rank 0", "exception", "half"],
)
def test_the_others_train_on(transport, size, victims, how, algorithms, tmp_path):
    command = survival_command(victims, how, algorithms)
    environ = {"BLUECOMM_TRANSPORT": transport, "OMP_NUM_THREADS": "1"}
    options = ["--on-failure", "continue", "-np", str(size)]
    with launched(tmp_path, *options, *command, environ=environ) as job:
        code = job.wait()
        assert code == 0, job.out + job.err
        check_survivors(job, size, victims, algorithms)
        for rank in victims:
            what = r"was killed by SIGKILL" if how == "kill" else r"raised KeyError"
            pattern = (
                rf"bfrun: rank {rank} on localhost .*{what}.*; the job goes on with"
            )
            assert re.search(pattern, job.err), job.err
        assert job.left() == {}


# Each rank but the first raises the same error, with other numbers.
SAME_ERROR = """
import bluecomm as bf
bf.init()
if bf.rank() > 0:
    raise ValueError(f"loss is NaN at step {7 * bf.rank()}")
while True:
    bf.neighbor_allreduce(__import__("torch").ones(3))
"""


def test_the_same_error_on_two_ranks_ends_the_job(tmp_path):
    options = ["--on-failure", "continue", "-np", "4"]
    with launched(tmp_path, *options, *python(SAME_ERROR)) as job:
        assert job.wait() == 1
        assert re.search(r"job failed: rank [123] .* raised ValueError", job.err)
        assert job.left() == {}


# Calls that are not covered raise on all ranks, before any rank is lost.
REFUSED = """
import torch, torch.distributed as dist
import bluecomm as bf
bf.init()
parameter = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([parameter], lr=0.1)

def distributed(algorithm, **options):
    bf.DistributedOptimizer(optimizer, algorithm=algorithm, **options)

for make in (
    lambda: distributed("gradient_allreduce"),
    lambda: distributed("gossip_pga"),
    lambda: distributed("neighbor_allreduce", uneven_inputs=True),
    lambda: dist.init_process_group("bluecomm"),
):
    try:
        make()
    except Exception as error:
        print(f"refused: {error}", flush=True)
"""


def test_what_is_not_covered_is_refused_by_name(tmp_path):
    options = ["--on-failure", "continue", "-np", "2"]
    with launched(tmp_path, *options, *python(REFUSED)) as job:
        assert job.wait() == 0, job.out + job.err
        for rank in (0, 1):
            said = re.findall(rf"^\[{rank}\] refused: (.*)$", job.out, re.MULTILINE)
            assert len(said) == 4, job.out + job.err
            for text, name in zip(
                said[:2], ("gradient_allreduce", "gossip_pga"), strict=True
            ):
                assert f"does not cover the algorithm {name} yet; use one of" in text
            assert "uneven_inputs=True needs all ranks" in said[2]
            assert "does not cover the process groups of torch yet" in said[3]


def test_every_covered_algorithm_is_tested():
    covered = set(EACH) | {"local"}
    assert covered < set(bf.algorithm_names())
