"""States that several ranks share, and notices that the job will be ended."""

from __future__ import annotations

import os
import re
import signal

import pytest
import torch

import bluecomm as bf
from tests.support.launch import launched, python
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp


def make(**attributes):
    model = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(model.weight, bf.rank())
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    sampler = bf.elastic.ElasticSampler(range(24), shuffle=False)
    return bf.elastic.TorchState(model, optimizer, sampler=sampler, **attributes)


def sync():
    """The rank with the newest commit counts, and all positions."""
    rank = bf.rank()
    state = make(seen=[rank])
    state.sync()
    assert state.seen == [0]
    assert state.model.weight.tolist() == [[0, 0]]
    assert list(state.sampler) == list(range(rank, 24, 3))
    state.sampler.record_batch(0, 2)
    for _ in range([1, 2, 2][rank]):
        state.seen.append(rank)
        state.commit()
    state.sync()
    assert state.commits == 2
    assert state.seen == [0, 1, 1]
    assert list(state.sampler) == list(range(6 + rank, 24, 3))
    state.seen.append(3)
    state.restore()
    assert state.seen == [0, 1, 1]


def algorithms():
    """Each rank's corrections belong to its own model, so all begin anew."""
    model = torch.nn.Linear(2, 1)
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
        model,
        algorithm="exact_diffusion",
    )
    state = bf.elastic.TorchState(model, optimizer)

    def train():
        optimizer.zero_grad()
        # The correction of a rank whose gradient is the mean would be zero.
        model(torch.full((1, 2), 2.0 ** bf.rank())).sum().backward()
        optimizer.step()

    def corrections():
        memory = optimizer.state_dict()["bluecomm"]["algorithm"]["memory"]
        return torch.cat([t.flatten() for t in memory["correction"].values()])

    for _ in range(3):
        train()
    state.commit()
    committed = corrections()
    assert committed.any()
    train()
    state.restore()
    assert torch.equal(corrections(), committed)
    state.sync()
    assert not corrections().any()
    assert optimizer.state_dict()["bluecomm"]["schedule"]["round"] == 3
    train()


def disagree():
    """Errors name the attribute and the rank, and later calls are not affected."""
    odd = bf.rank() == 1
    with pytest.raises(
        bf.MismatchError,
        match=r"TorchState.sync: attribute 'x' is missing on ranks 0, 2, but present "
        r"on rank 1\. Make the state with the same attributes on all ranks",
    ):
        make(**({"x": 1} if odd else {})).sync()
    state = make(value=(lambda: 1) if odd else 2)
    kind = TypeError if odd else bf.MismatchError
    text = r"on rank 1: attribute 'value' \(function\) cannot be pickled"
    with pytest.raises(kind, match=text):
        state.sync()
    plain = torch.optim.SGD(torch.nn.Linear(2, 1 + odd).parameters(), 0.1)
    state = bf.elastic.TorchState(optimizer=plain)
    with pytest.raises(bf.MismatchError, match=r"param_groups\[0\]\['params'\]\[0\]"):
        state.sync()
    assert bf.allreduce(torch.ones(1)).item() == 1


@pytest.mark.parametrize("body", [sync, algorithms, disagree])
def test_states_of_several_ranks(body):
    run_ranks(3, body)


# A rank that is slow makes the calls at other times.
STOPPING = """
import signal, time
import bluecomm as bf
assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
bf.init()
calls = 0
while not bf.elastic.should_stop():
    calls += 1
    time.sleep(0.01 * bf.rank())
    bf.neighbor_allreduce(__import__("torch").ones(3))
    if calls == 20:
        print("ready", flush=True)
print("stopped after", calls, flush=True)
bf.barrier()
"""


def test_a_notice_to_bfrun_stops_all_ranks_at_the_same_step(tmp_path):
    with launched(tmp_path, "-v", "-np", "3", *python(STOPPING)) as job:
        job.wait_for(r"^\[\d\] ready")
        for pid in job.agent():  # Slurm may signal them, too
            os.kill(pid, signal.SIGUSR1)
        job.signal(signal.SIGUSR1)
        job.signal(signal.SIGUSR1)
        assert job.wait() == 0, job.out + job.err
    said = re.findall(r"^\[\d\] stopped after (\d+)$", job.out, re.MULTILINE)
    assert len(said) == 3
    assert len(set(said)) == 1
    assert job.err.count("SIGUSR1: told all ranks that the job will be ended soon") == 1


# The rank that gets the signal tells the others.
SIGNALLED = """
import os, signal
import bluecomm as bf
bf.init()
heard = []
signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
calls = 0
while not bf.elastic.should_stop():
    calls += 1
    bf.barrier()
    if calls == 20 and bf.rank() == 1:
        os.kill(os.getpid(), signal.SIGUSR1)
print("stopped after", calls, heard, flush=True)
"""


def test_a_notice_to_a_rank_stops_all_ranks_at_the_same_step(tmp_path):
    with launched(tmp_path, "-np", "2", *python(SIGNALLED)) as job:
        assert job.wait() == 0, job.out + job.err
    said = dict(re.findall(r"^\[(\d)\] stopped after (\d+ .*)$", job.out, re.MULTILINE))
    calls = said["0"].split()[0]
    assert said == {"0": f"{calls} []", "1": f"{calls} [10]"}
    assert int(calls) >= 20
    assert "bfrun: rank 1 has got a signal: told all ranks" in job.err
