"""Starts the peers that bluecomm is compared with: gloo, MPI, the machine's limit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from bluecomm import size
from bluecomm.bench.gloo import Gloo
from bluecomm.bench.limit import MemoryLimit, StreamLimit
from bluecomm.bench.mpi import Mpi, why_not_here
from bluecomm.bench.operations import Case
from bluecomm.bench.results import GLOO, LIMIT, MPI
from bluecomm.bench.timing import Implementation
from bluecomm.runtime import current_communicator


class UnavailablePeer(RuntimeError):
    """A requested peer cannot be measured here; raised on all ranks."""


def start_peers(
    wanted: Sequence[str] | None,
    cases: Sequence[Case],
    stack: contextlib.ExitStack,
    versions: dict[str, str],
    notes: list[str],
) -> Iterator[Implementation]:
    """Start and yield the peers; collective.

    Args:
        wanted: Names of the peers; ``None`` for all that are available.
        cases: The cases that will be measured.
        stack: Receives the callbacks that close the peers.
        versions: Receives the version of each peer, by name.
        notes: Receives a line for each peer that is not available.

    Raises:
        UnavailablePeer: A peer in ``wanted`` is not available.
    """
    if wanted is None or GLOO in wanted:
        gloo = Gloo(current_communicator().layout.machine_of)
        stack.callback(gloo.close)
        versions[GLOO] = f"torch {torch.__version__}"
        yield gloo
    for name, start in ((MPI, _start_mpi), (LIMIT, _start_limit)):
        if wanted is not None and name not in wanted:
            continue
        try:
            peer = start(cases, stack, versions)
        except (OSError, RuntimeError) as error:
            if wanted is not None:
                raise UnavailablePeer(f"--libraries {name}: {error}") from error
            notes.append(f"{name} left out: {error}")
            continue
        yield peer


def _machines() -> list[str]:
    """Return the machine of each rank, as hosts: simulated machines count as one."""
    return [peer.machine for peer in current_communicator().world.peers]


def _start_mpi(
    cases: Sequence[Case], stack: contextlib.ExitStack, versions: dict[str, str]
) -> Implementation:
    if len(set(_machines())) > 1:
        raise RuntimeError("MPI is measured only on one machine")
    missing = why_not_here()
    if missing:
        raise RuntimeError(missing)
    mpi = Mpi(size())
    stack.callback(mpi.close)
    versions[MPI] = mpi.version
    return mpi


def _start_limit(
    cases: Sequence[Case], stack: contextlib.ExitStack, versions: dict[str, str]
) -> Implementation:
    machines = _machines()
    if any(case.is_written for case in cases):
        raise RuntimeError("the limit does not write inputs")
    if len(set(machines)) == 1:
        versions[LIMIT] = "loops over shared memory"
        return MemoryLimit(max(case.nbytes for case in cases))
    if len(set(machines)) < len(machines):
        raise RuntimeError("between machines the limit needs one rank per machine")
    streams = StreamLimit()
    stack.callback(streams.close)
    versions[LIMIT] = "one plain TCP stream to the next rank"
    return streams
