"""``bfrun --on-failure continue``: the others read the records of lost ranks."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections import Counter

import pytest

from tests.support.cluster_cache import LENGTH as SAMPLES
from tests.support.deadlines import JOB_S
from tests.support.launch import launched, python

pytestmark = pytest.mark.faults

LENGTH = 600

# Each pass loses the ranks that the first argument lists for it, in the third batch.
PASSES = """
import json, os, signal, sys, torch
from pathlib import Path
import bluecomm as bf
from tests.support.deadlines import hear, say
bf.init()
victims = json.loads(sys.argv[1])
uneven = sys.argv[2] == "uneven"
action = signal.SIGSTOP if sys.argv[3] == "stop" else signal.SIGKILL
loader = bf.data.DataLoader(
    torch.arange(600), 8, partition="dynamic", uneven=uneven, num_workers=0
)
for number, lost in enumerate(victims):
    used = []
    for step, batch in enumerate(loader):
        if bf.rank() in lost and step == 2:
            print(json.dumps({"pass": number, "dead": True, "used": used}), flush=True)
            say(Path(), f"lost-{number}-{bf.rank()}")
            os.kill(os.getpid(), action)
        # Fast ranks could take all records before a slow one gets its third batch.
        for each in lost if step == 2 else ():
            hear(Path(), f"lost-{number}-{each}")
        used += batch.tolist()
        if not uneven:
            bf.allreduce(torch.ones(1))
    print(json.dumps({"pass": number, "used": used, "steps": step,
        "counted": loader.counted}), flush=True)
    bf.barrier()
"""


@pytest.mark.parametrize(
    ("how", "end", "size", "victims"),
    [
        # A rank that only holds records; the server; the rank with the copy.
        ("uneven", "kill", 5, [[4], [0], [2]]),
        # The server and the rank with the copy at once; all others.
        ("even", "kill", 4, [[0, 1], [2]]),
        # The others exclude a rank that is stopped, and bfrun kills it.
        ("uneven", "stop", 3, [[0]]),
    ],
    ids=["uneven", "even", "stopped"],
)
def test_the_others_use_all_records(how, end, size, victims, tmp_path):
    command = [*python(PASSES), json.dumps(victims), how, end]
    options = ["--on-failure", "continue", "-np", str(size)]
    with launched(tmp_path, *options, *command) as job:
        assert job.wait() == 0, job.out + job.err
        passes = [[] for _ in victims]
        for found in re.findall(r"^\[\d+\] (\{.*\})$", job.out, re.MULTILINE):
            one = json.loads(found)
            passes[one["pass"]].append(one)
        left = size
        for ones, lost in zip(passes, victims, strict=True):
            left -= len(lost)
            living = [one for one in ones if "dead" not in one]
            assert len(living) == left
            assert {one["counted"] for one in living} == {LENGTH}
            used = Counter(record for one in living for record in one["used"])
            # A lost rank may have finished its first two batches.
            known = {record for one in ones for record in one["used"]}
            assert known == set(range(LENGTH))
            if how == "uneven":
                assert max(used.values()) == 1
            else:
                assert len({one["steps"] for one in living}) == 1
        assert job.left() == {}
        assert "Traceback" not in job.err


# Rank 2 is stopped while it holds records. It continues when the others have used them.
# The others do not wait for a core as long as a lease lasts.
SILENT = """
import os, signal, torch
from pathlib import Path
import bluecomm as bf
from tests.support.deadlines import hear, say
bf.init()
loader = bf.data.DataLoader(
    torch.arange(60), 4, partition="dynamic", uneven=True, lease_s=8.0, num_workers=0
)
used = []
for step, batch in enumerate(loader):
    if bf.rank() == 2 and step == 0:
        print("stops", os.getpid(), batch.tolist(), flush=True)
        say(Path(), "holds")
        os.kill(os.getpid(), signal.SIGSTOP)
    # Fast ranks could take all records before a slow one gets any.
    hear(Path(), "holds")
    used += batch.tolist()
print("used", used, flush=True)
bf.barrier()
"""


def test_others_use_the_records_of_a_rank_that_is_silent(tmp_path):
    with launched(tmp_path, "-np", "3", *python(SILENT)) as job:
        stopped = job.wait_for(r"^\[2\] stops (\d+) (.*)$")
        for rank in (0, 1):
            job.wait_for(rf"^\[{rank}\] used .*$")
        os.kill(int(stopped[1]), signal.SIGCONT)
        assert job.wait() == 0, job.out + job.err
        used = {
            int(rank): json.loads(records)
            for rank, records in re.findall(
                r"^\[(\d)\] used (.*)$", job.out, re.MULTILINE
            )
        }
        assert sorted(used[0] + used[1]) == list(range(60))
        assert used[2] == json.loads(stopped[2])
        assert "was silent for so long" in job.err


# Rank 0, which keeps the ledger, is killed in its first pass and joins again. The ranks
# read on until it has passed over all records with them.
JOINING = """
import os, signal, torch
import bluecomm as bf
bf.init()
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = bf.DistributedOptimizer(optimizer, model, algorithm="gradient_allreduce")
state = bf.elastic.TorchState(model, optimizer, position=None)

def has_joined():
    return any(event.kind == "joined" for event in bf.elastic.events())

@bf.elastic.run
def train(state):
    loader = bf.data.DataLoader(
        torch.arange(600.0), 4, partition="dynamic", num_workers=0
    )
    position = bf.broadcast_object(state.position, bf.elastic.members()[0])
    if position is not None:
        loader.load_state_dict(position)
    while True:
        for step, batch in enumerate(loader):
            if bf.rank() == 0 and step == 3 and not has_joined():
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            model(batch.view(-1, 1)).mean().backward()
            optimizer.step()
            state.position = loader.state_dict()
            state.commit()
        print("counted", loader.counted, has_joined(), flush=True)
        if has_joined():
            return

train(state)
"""


def test_newcomers_read_on_where_the_others_are(tmp_path):
    options = ["--on-failure", "continue", "--respawn", "-np", "3"]
    with launched(tmp_path, *options, *python(JOINING)) as job:
        # The newcomer imports torch anew.
        assert job.wait(2 * JOB_S) == 0, job.out + job.err
        found = re.findall(r"^\[(\d)\] counted (\d+) (\w+)$", job.out, re.MULTILINE)
        assert {int(counted) for _, counted, _ in found} == {LENGTH}, job.out
        last = sorted(int(rank) for rank, _, is_last in found if is_last == "True")
        assert last == [0, 1, 2], job.out + job.err
        assert "finished with 3 of 3 ranks" in job.err


def test_newcomers_serve_a_part_of_the_cache(tmp_path):
    options = ["--on-failure", "continue", "--respawn", "-np", "3"]
    options += ["--ranks-per-machine", "1"]
    command = [sys.executable, "-m", "tests.support.joining_a_cache"]
    with launched(tmp_path, *options, *command, str(tmp_path / "loaded")) as job:
        # The newcomer imports torch anew.
        assert job.wait(2 * JOB_S) == 0, job.out + job.err
        found = re.findall(r"^\[(\d)\] loaded (\[.*\])$", job.out, re.MULTILINE)
        epochs = {rank: [] for rank in "012"}
        for rank, loaded in found:
            epochs[rank].append(json.loads(loaded))
        # All machines together load each sample once.
        assert [*epochs.values()] == [[list(range(SAMPLES)), []]] * 3, job.err
        assert "finished with 3 of 3 ranks" in job.err
