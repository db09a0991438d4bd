"""``bfrun --on-failure continue``: process groups of torch survive lost ranks."""

from __future__ import annotations

import re

import pytest

from tests.support.launch import launched, python
from tests.support.survival_of_ddp import check_ddp, ddp_command

pytestmark = pytest.mark.faults


@pytest.mark.parametrize(
    ("transport", "victims", "when"),
    [
        ("shm", [2], "uncommitted"),
        ("tcp", [0], "released"),
        ("auto", [1, 3], "repeated"),
    ],
    ids=["one", "rank 0", "twice"],
)
def test_ddp_trains_on_with_equal_bits(transport, victims, when, tmp_path):
    environ = {"BLUECOMM_TRANSPORT": transport, "OMP_NUM_THREADS": "1"}
    options = ["--on-failure", "continue", "-np", "4"]
    command = ddp_command(victims, when)
    with launched(tmp_path, *options, *command, environ=environ) as job:
        assert job.wait() == 0, job.out + job.err
        check_ddp(job, 4, victims)
        assert job.left() == {}


# Rank 0 goes while the others wait for it in several calls.
NOT_REPEATED = """
import os, signal, time, types, torch
import torch.distributed as dist
import bluecomm as bf
dist.init_process_group("bluecomm")
group = dist.group.WORLD
handles = [None] * 3
dist.all_gather_object(handles, group.get_reconfigure_handle())
rank, size = dist.get_rank(), dist.get_world_size()
one = torch.ones(1)
parts = [torch.zeros(1) for _ in range(size)]
dist.all_gather(parts, one)
dist.barrier()
if rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
while not any(event.kind == "epoch" for event in bf.elastic.events()):
    time.sleep(0.01)
calls = {
    "all_gather": lambda: dist.all_gather(parts, one),
    "scatter": lambda: dist.scatter(one, None, src=0),
    "broadcast": lambda: dist.broadcast(one, src=0),
    "alltoall": lambda: dist.all_to_all_single(torch.zeros(size), torch.ones(size)),
    "reduce_scatter": lambda: dist.reduce_scatter_tensor(one, torch.ones(size)),
    "send": lambda: dist.send(one, 0),
    "recv": lambda: dist.recv(one, 0),
}
for name, call in calls.items():
    try:
        call()
    except bf.PeerLostError as error:
        print(f"{name}: {error}", flush=True)
    dist.all_reduce(one)
print("sum:", int(one), flush=True)
options = types.SimpleNamespace(uuid=1, handles=handles[1:], timeout=None)
assert group.reconfigure(options).wait()
parts = [torch.zeros(1) for _ in range(dist.get_world_size())]
dist.all_gather(parts, torch.tensor([float(rank)]))
print("members:", *(int(part) for part in parts), flush=True)
"""


def test_calls_that_need_a_lost_rank_say_so_on_all_ranks(tmp_path):
    options = ["--on-failure", "continue", "-np", "3"]
    with launched(tmp_path, *options, *python(NOT_REPEATED)) as job:
        assert job.wait() == 0, job.out + job.err
        for rank in (1, 2):
            found = re.findall(rf"^\[{rank}\] (\w+): (.*)$", job.out, re.MULTILINE)
            said = dict(found)
            parts = "a part for each rank, lost ones too; gone: rank 0"
            for name in ("all_gather", "alltoall", "reduce_scatter"):
                assert parts in said[name], job.out
            assert "its root, rank 0, is lost" in said["broadcast"], job.out
            for name in ("scatter", "send", "recv"):
                assert "rank 0" in said[name], job.out
            assert said["sum"] == str(2**7), job.out
            assert said["members"] == "1 2", job.out


# Rank 0 is the root of each step, until the others start over with another root.
STARTED_OVER = """
import os, signal, torch
import torch.distributed as dist
import bluecomm as bf
dist.init_process_group("bluecomm")
rank = dist.get_rank()
model = torch.nn.Linear(3, 1)
state = bf.elastic.TorchState(model, step=0, root=0)

def choose():
    state.root = bf.elastic.members()[0]

state.register_reset_callbacks([choose])

@bf.elastic.run
def train(state):
    while state.step < 12:
        if (rank, state.step) == (0, 5):
            os.kill(os.getpid(), signal.SIGKILL)
        values = torch.full((5,), float(rank))
        dist.broadcast(values, state.root)
        with torch.no_grad():
            state.model.weight += values[0] + 1
        dist.all_reduce(values)
        state.step += 1
        state.commit()
    return state.model.weight

weight = train(state)
same = weight.clone()
dist.all_reduce(same, dist.ReduceOp.AVG)
print("equal:", torch.equal(weight, same), "root:", state.root, flush=True)
"""


def test_elastic_run_starts_over_after_a_call_of_a_lost_root(tmp_path):
    options = ["--on-failure", "continue", "-np", "3"]
    with launched(tmp_path, *options, *python(STARTED_OVER)) as job:
        assert job.wait() == 0, job.out + job.err
        for rank in (1, 2):
            said = rf"^\[{rank}\] equal: True root: 1$"
            assert re.search(said, job.out, re.MULTILINE), job.out + job.err
