"""A rank on the fake's device that trains while another one is lost, and started again.

``python -m tests.support.joining_on_gpus FOLDER``: rank 2 kills itself after 2 steps.
All ranks take 4 more steps once nobody is missing, and print the ranks of the groups in
which NCCL has carried out calls, and the last sum.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch

import bluecomm as bf
from bluecomm.device import runtime
from bluecomm.ops.nccl_call import NcclTickets
from tests.support.fakegpu.library import load
from tests.support.fakegpu.mode import kernels
from tests.support.fakegpu.ranks import FakeRuntime
from tests.support.fakegpu.tensors import DeviceMemory

RANKS, VICTIM, KILLED_AT, AFTER = 3, 2, 2, 4


def main() -> None:
    """Train, and print what the ranks have computed."""
    rank = int(os.environ["BLUECOMM_RANK"])
    marker = Path(sys.argv[1]) / f"rank-{rank}"
    is_newcomer = marker.exists()
    marker.touch()
    bf.init()
    memory = DeviceMemory(rank)
    with runtime.use(FakeRuntime(memory)), kernels(memory, makes_tensors=True):
        found = train(rank, is_newcomer=is_newcomer)
    texts = load().violations()
    assert not texts, "\n".join(texts)
    print(json.dumps(found), flush=True)


def train(rank: int, *, is_newcomer: bool) -> dict[str, object]:
    """Add up the numbers of the ranks in each step; return the last sum, and groups."""
    groups: set[tuple[int, tuple[int, ...]]] = set()
    make = NcclTickets.make

    def make_in(self: NcclTickets, group: bf.Communicator) -> object:
        groups.add((group.world.assignment.epoch, group.ranks))
        return make(self, group)

    NcclTickets.make = make_in
    state = bf.elastic.ObjectState(step=0, left=AFTER)
    sums: list[float] = []

    @bf.elastic.run
    def run(state: bf.elastic.ObjectState) -> None:
        while state.left:
            total = bf.allreduce(torch.full((4,), rank + 1.0), op=bf.Sum)
            averaged = bf.neighbor_allreduce(total)
            sums.append(averaged.tolist()[0])
            state.step += 1
            if rank == VICTIM and not is_newcomer and state.step == KILLED_AT:
                os.kill(os.getpid(), signal.SIGKILL)
            if len(bf.elastic.members()) == RANKS and state.step > KILLED_AT:
                state.left -= 1
            state.commit()

    run(state)
    bf.shutdown()
    return {"rank": rank, "sum": sums[-1], "groups": sorted(groups)}


if __name__ == "__main__":
    main()
