"""Measure when a rank learns that another one was killed: over shm, and by a pidfd.

    bfrun --on-failure continue -np 8 python -m tests.bench.death --mib 512

All ranks but rank 0 kill themselves, one after another. Rank 0 waits for each of them
in an average of two. It prints how long after the signal the average went on, and when
a pidfd of the killed process was readable in another process.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import bluecomm as bf

INTERVAL_S = 0.7
OBSERVER = """
import os, select, sys, time
poll = select.epoll()
rank_of = {os.pidfd_open(int(pid)): rank for rank, pid in enumerate(sys.argv[1:], 1)}
for process in rank_of:
    poll.register(process, select.EPOLLIN)
print("ready", flush=True)
while rank_of:
    for process, _ in poll.poll():
        print(rank_of.pop(process), time.monotonic_ns(), flush=True)
        poll.unregister(process)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--mib", type=int, default=1, help="memory of each killed rank (default: 1)"
    )
    args = parser.parse_args()
    bf.init()
    pids = bf.allgather(torch.tensor([os.getpid()])).tolist()
    if bf.rank() == 0:
        with tempfile.TemporaryDirectory(prefix="bluecomm-death-") as folder:
            bf.broadcast_object(folder, 0)
            _observe(Path(folder), pids[1:])
    else:
        _die(Path(bf.broadcast_object(None, 0)), args.mib)


def _die(folder: Path, mib: int) -> None:
    memory = torch.ones(mib << 18)
    bf.barrier()
    time.sleep(INTERVAL_S * bf.rank())
    text = f"{time.monotonic_ns()} {memory.numel()}"
    (folder / str(bf.rank())).write_text(text)
    os.kill(os.getpid(), signal.SIGKILL)


def _observe(folder: Path, pids: list[int]) -> None:
    observer = subprocess.Popen(
        [sys.executable, "-c", OBSERVER, *map(str, pids)],
        stdout=subprocess.PIPE,
        text=True,
    )
    with observer:
        assert observer.stdout is not None
        observer.stdout.readline()
        bf.barrier()
        went_on = []
        for rank in range(1, bf.size()):
            bf.pair_gossip(torch.ones(1000), rank, name=f"with {rank}")
            went_on.append(time.monotonic_ns())
        for line in observer.stdout:
            rank, readable = map(int, line.split())
            killed = int((folder / str(rank)).read_text().split()[0])
            average, pidfd = went_on[rank - 1] - killed, readable - killed
            print(
                f"rank {rank}: average {average / 1e6:.2f} ms, "
                f"pidfd {pidfd / 1e6:.2f} ms after SIGKILL",
                flush=True,
            )


if __name__ == "__main__":
    main()
