"""Makes the engine of a world from the settings and from what the launcher says."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from bluecomm.config import Config
from bluecomm.errors import BluecommError
from bluecomm.runtime.rendezvous.rendezvous import Rendezvous

if TYPE_CHECKING:
    from bluecomm._native import Engine, MpiSession, Recorder, SharedMemory


def make_engine(
    config: Config,
    rendezvous: Rendezvous,
    memory: SharedMemory,
    recorder: Recorder | None,
) -> Engine:
    """Return an engine that knows its own rank, but not the others yet.

    Args:
        config: Settings.
        rendezvous: Where the ranks meet.
        memory: Allocator of shared memory.
        recorder: Records the events of a timeline, if one is made.

    Raises:
        BluecommError: The settings ask for MPI, and there is none, or it cannot
            encrypt.
    """
    from bluecomm._native import Engine

    if config.encryption != "off":
        # Load the libcrypto of Python, because the system may have none.
        with contextlib.suppress(ImportError):
            import _ssl  # noqa: F401
    assignment = rendezvous.assignment
    return Engine(
        rank=assignment.rank,
        size=assignment.size,
        job=assignment.job,
        epoch=assignment.epoch,
        secret=assignment.secret,
        socket_dir=assignment.socket_dir,
        addresses=assignment.addresses,
        machine=assignment.machine,
        transport=config.transport,
        tcp_streams=config.tcp_stream_count,
        encryption=config.encryption,
        link_timeout_s=config.link_timeout_s,
        eager_bytes=config.eager_bytes,
        staging_bytes=config.shm_staging_bytes,
        survives_losses=assignment.survives_losses,
        splits=assignment.splits,
        memory=memory,
        recorder=recorder,
        mpi=mpi_session(config, rendezvous),
    )


def mpi_session(config: Config, rendezvous: Rendezvous) -> MpiSession | None:
    """Return what the transport over MPI needs, or None if it is not wanted.

    Raises:
        BluecommError: It is asked for, and cannot be.
    """
    if config.transport not in ("auto", "mpi"):
        return None
    assignment = rendezvous.assignment
    if config.encryption != "off":
        if config.transport == "auto":
            return None  # TCP carries the messages instead
        raise BluecommError(
            f"init on rank {assignment.rank}: BLUECOMM_ENCRYPTION is "
            f"{config.encryption}, but BLUECOMM_TRANSPORT is mpi, and messages over "
            "MPI cannot be encrypted; set BLUECOMM_TRANSPORT to auto or tcp, or "
            "BLUECOMM_ENCRYPTION to off",
            operation="init",
            rank=assignment.rank,
        )
    session = rendezvous.mpi
    if session is None and config.transport == "mpi" and assignment.size > 1:
        raise BluecommError(
            f"init on rank {assignment.rank}: BLUECOMM_TRANSPORT is mpi, but this "
            f"world has no MPI for it ({assignment.source}); start the script with "
            "mpirun, and MPI with thread level 'serialized' or 'multiple'",
            operation="init",
            rank=assignment.rank,
        )
    return session
