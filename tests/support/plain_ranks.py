"""Starts ranks as plain processes of Python, without a launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from tests.support.deadlines import JOB_S
from tests.support.launch import ROOT
from tests.support.ports import held_port

Words = Callable[[int], Sequence[str]]


def run_plain_ranks(
    size: int, words: Words, environ: Callable[[int], Mapping[str, str]]
) -> list[subprocess.CompletedProcess[str]]:
    """Run ranks to their ends, and return their outcomes in order of rank.

    Args:
        size: Number of ranks.
        words: Returns the arguments of Python for a rank.
        environ: Returns variables of a rank, besides those of this process.
    """
    ranks = [
        subprocess.Popen(
            [sys.executable, *words(rank)],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environ(rank)},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        said = [rank.communicate(timeout=JOB_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [
        subprocess.CompletedProcess(rank.args, rank.returncode, out, err)
        for rank, (out, err) in zip(ranks, said, strict=True)
    ]


def run_ranks_of_env(
    size: int, words: Words, environ: Mapping[str, str]
) -> list[subprocess.CompletedProcess[str]]:
    """Run ranks with the variables of ``env://``.

    Args:
        size: Number of ranks.
        words: Returns the arguments of Python for a rank.
        environ: More variables of all ranks.
    """
    with held_port() as port:
        common = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(size),
            **environ,
        }
        return run_plain_ranks(size, words, lambda rank: {**common, "RANK": str(rank)})
