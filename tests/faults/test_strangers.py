"""Strangers connect to the ports and sockets of a running job, which is unaffected."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys

import pytest

from bluecomm._native import Engine, SharedMemory
from bluecomm.runtime.call import Call
from tests.support.deadlines import DEADLINE_S, wait_until
from tests.support.launch import launched

pytestmark = pytest.mark.faults

# Averages until a few rounds after the file `stop` appears. Prints its offers first, at
# the end the number of rounds and of descriptors that it gained.
STEADY = """
import json, os, pathlib, sys, time, torch
import bluecomm as bf
from bluecomm.runtime import current_communicator
bf.init()
count = lambda: len(os.listdir("/proc/self/fd"))
world = current_communicator().world
large = torch.ones(1 << 18)
bf.allreduce(large, name="first")
if bf.rank() == 0:
    peers = [{**peer.__dict__, "job": world.assignment.job} for peer in world.peers]
    print("peers " + json.dumps(peers), flush=True)
fds, rounds, left = count(), 0, torch.full((1,), 20)
while left:
    left -= int(pathlib.Path("stop").exists())
    bf.broadcast_(left, 0, name="left")
    assert float(bf.allreduce(large, name="x", op=bf.Sum)[-1]) == bf.size()
    rounds += 1
    time.sleep(0.01)
print(f"rounds {rounds} fds {count() - fds}", flush=True)
"""


def inodes_of(pids):
    """Return the sockets that are open in these processes."""
    found = set()
    for pid in pids:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                kind, _, inode = os.readlink(f"/proc/{pid}/fd/{fd}").partition(":")
                found.update([inode.strip("[]")] if kind == "socket" else [])
    return found


def table(name):
    """Return the rows of a /proc table of sockets, split into columns."""
    with open(f"/proc/net/{name}") as file:
        return [line.split() for line in list(file)[1:]]


def doors(pids):
    """Return a connecting function for each listener of these processes."""
    inodes = inodes_of(pids)
    ports = []
    for row in table("tcp"):
        if row[3] == "0A" and row[9] in inodes:
            address, port = row[1].split(":")
            host = socket.inet_ntoa(bytes.fromhex(address)[::-1])
            ports.append((host.replace("0.0.0.0", "127.0.0.1"), int(port, 16)))
    paths = {row[7] for row in table("unix") if len(row) > 7 and row[6] in inodes}
    return [lambda at=at: socket.create_connection(at, 5) for at in ports] + [
        lambda path=path: _connect_unix(path) for path in sorted(paths)
    ]


def _connect_unix(path):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(5)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


def annoy(door):
    """Treat a listener as scanners do; return the connections that stay open."""
    opened = []
    for data in (
        b"",
        b"\x00",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        os.urandom(4096),
        b"\xff" * 65536,
        b"\x00\x00\x00\x00" * 1000,
    ):
        with contextlib.suppress(OSError), door() as connection:
            connection.sendall(data)
    # Incomplete handshakes, more than a listener admits at a time.
    for _ in range(80):
        with contextlib.suppress(OSError):
            connection = door()
            opened.append(connection)
            connection.settimeout(0.5)
            connection.sendall(b"\x01")
    return opened


def has_ended(connection):
    """Return whether the other end has closed a connection."""
    connection.setblocking(False)
    try:
        while connection.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def impostor(peers, transport, folder):
    """Return an engine that claims to be rank 1 without the job's secret."""
    engine = Engine(
        rank=1,
        size=2,
        job=peers[0]["job"],
        epoch=0,
        secret=bytes(32),
        socket_dir=str(folder),
        addresses=["127.0.0.1"],
        machine=peers[0]["machine"],
        transport=transport,
        memory=SharedMemory(),
    )
    mine = {**peers[1], "offers": engine.offers(), "pid": os.getpid()}
    keys = ("rank", "host", "machine", "pid", "offers")
    engine.start([{key: peer[key] for key in keys} for peer in (peers[0], mine)])
    engine.add_group(7, [0, 1], [0, 0])
    return engine


def stop(job, folder):
    """End the job; return what its ranks printed."""
    (folder / "stop").touch()
    assert job.wait() == 0, job.err
    assert job.left() == {}
    assert job.err == ""
    lines = [line.split() for line in job.out.splitlines() if "rounds" in line]
    return [(int(line[2]), int(line[4])) for line in lines]


def run_steady(folder, transport):
    (folder / "program.py").write_text(STEADY)
    options = ["-np", "2", "-x", f"BLUECOMM_TRANSPORT={transport}"]
    return launched(folder, *options, sys.executable, "program.py")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_scanners_and_garbage(transport, tmp_path):
    with run_steady(tmp_path, transport) as job:
        peers = json.loads(job.wait_for(r"peers (.*)")[1])
        ranks = {peer["pid"] for peer in peers}
        of_ranks, of_others = doors(ranks), doors(job.left().keys() - ranks)
        assert len(of_ranks) >= 2
        assert of_others
        at_ranks = [one for door in of_ranks for one in annoy(door)]
        opened = at_ranks + [one for door in of_others for one in annoy(door)]
        # A connection may take a while to authenticate itself.
        wait_until(lambda: all(map(has_ended, at_ranks)), "strangers stay connected")
        told = stop(job, tmp_path)
        for connection in opened:
            connection.close()
        assert len(told) == 2
        for rounds, fds in told:
            assert rounds >= 20
            assert fds <= 2


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_of_another_key(transport, tmp_path):
    with run_steady(tmp_path, transport) as job:
        peers = json.loads(job.wait_for(r"peers (.*)")[1])
        engine = impostor(peers, transport, tmp_path)
        block = SharedMemory().allocate(8)
        span = (block.address, block.nbytes)
        call = Call("allreduce", "float32", [2], span, span, (block,), lambda _: None)
        call.name = "x"
        call.group_id = 7
        call.limit_s = 3.0
        handle = engine.submit(call)
        completion = engine.wait(handle, DEADLINE_S)
        assert completion is not None
        assert completion.code != 0
        engine.close(0.0)
        for rounds, fds in stop(job, tmp_path):
            assert rounds >= 20
            assert fds <= 2
