"""Scripts without a launcher: an import starts nothing, init makes one rank."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.deadlines import DEADLINE_S
from tests.support.launch import ROOT

pytestmark = pytest.mark.mp

IMPORT = """
import os, threading, torch

def state():
    children = open(f"/proc/self/task/{os.getpid()}/children").read()
    tasks = len(os.listdir("/proc/self/task"))
    return len(os.listdir("/proc/self/fd")), tasks, threading.active_count(), children

before = state()
import bluecomm
assert state() == before, (before, state())
"""

EVERY_OPERATION = """
import torch
import bluecomm as bf

bf.init()
assert (bf.size(), bf.rank(), bf.local_size(), bf.local_rank()) == (1, 0, 1, 0)
assert (bf.machine_size(), bf.machine_rank()) == (1, 0)
assert (bf.cross_size(), bf.cross_rank()) == (1, 0)
assert bf.is_homogeneous()
assert not bf.nccl_built()
assert bf.stats().neighbors == ()
bf.set_skip_negotiate_stage(True)
assert bf.get_skip_negotiate_stage()

assert bf.set_topology(bf.RingGraph(1))
assert bf.set_machine_topology(bf.RingGraph(1))
assert bf.in_neighbor_ranks() == bf.out_neighbor_ranks() == []
assert bf.in_neighbor_machine_ranks() == bf.out_neighbor_machine_ranks() == []

x = torch.arange(6.0).reshape(3, 2)
same = [
    bf.allreduce, bf.allreduce_, bf.allgather, bf.reducescatter, bf.alltoall,
    lambda y: bf.reduce(y, 0), lambda y: bf.gather(y, 0),
    lambda y: bf.scatter([y], 0),
    bf.neighbor_allreduce, bf.neighbor_allreduce_, bf.hierarchical_neighbor_allreduce,
    lambda y: bf.broadcast(y, 0),
    lambda y: bf.broadcast_(y, root_rank=0),
    lambda y: bf.grouped_allreduce([y])[0],
]
for operation in same:
    assert torch.equal(operation(x.clone()), x), operation
started = [
    bf.allreduce_async, bf.allreduce_async_, bf.allgather_async, bf.alltoall_async,
    bf.reducescatter_async, bf.neighbor_allreduce_nonblocking,
    bf.neighbor_allreduce_nonblocking_, bf.hierarchical_neighbor_allreduce_nonblocking,
    lambda y: bf.broadcast_async(y, 0),
    lambda y: bf.broadcast_async_(y, 0),
]
for operation in started:
    handle = operation(x.clone())
    assert torch.equal(bf.synchronize(handle), x), operation
    try:
        bf.poll(handle)
        raise AssertionError(operation)
    except ValueError as error:
        assert "waited for already" in str(error)
(summed,) = bf.synchronize(bf.grouped_allreduce_async([x]))
assert torch.equal(summed, x)
assert torch.equal(bf.sparse_allreduce(x.to_sparse()).to_dense(), x)
assert torch.equal(bf.compressed_allreduce(x, bf.Compression.fp16), x)
assert bf.neighbor_allgather(x).shape == (0, 2)
assert bf.broadcast_object("a") == "a"
assert bf.allgather_object("a") == ["a"]
bf.barrier()
group = bf.Communicator([0])
assert torch.equal(bf.allreduce(x, process_set=group), x)
try:
    bf.pair_gossip(x, 0)
    raise AssertionError("pair_gossip")
except ValueError as error:
    assert "one of the other ranks []" in str(error)
"""


@pytest.mark.parametrize("program", [IMPORT, EVERY_OPERATION])
def test_runs(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr


def test_an_exception_ends_the_program_beside_a_thread_that_communicates() -> None:
    program = """
import threading, time
import bluecomm as bf

def gossip():
    try:
        while True:
            bf.barrier()  # torch ends such a program by SIGABRT itself
    except bf.ShutdownError:
        pass  # the interpreter has shut bluecomm down before it ends this thread

bf.init()
threading.Thread(target=gossip, daemon=True).start()
time.sleep(0.2)
raise RuntimeError("the program's own")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("RuntimeError: the program's own\n")
    assert done.stderr.count("Traceback") == 1, done.stderr
