"""BlueFog's names for window operations, and its functions about MPI."""

from __future__ import annotations

from bluecomm.runtime import current_communicator
from bluecomm.runtime.rendezvous.mpi import MpiRendezvous
from bluecomm.window.get import win_get, win_get_nonblocking
from bluecomm.window.put import (
    win_accumulate,
    win_accumulate_nonblocking,
    win_put,
    win_put_nonblocking,
)

__all__ = [
    "get_skip_negotiate_stage",
    "mpi_threads_supported",
    "nccl_built",
    "neighbor_win_accumulate",
    "neighbor_win_accumulate_nonblocking",
    "neighbor_win_get",
    "neighbor_win_get_nonblocking",
    "neighbor_win_put",
    "neighbor_win_put_nonblocking",
    "set_skip_negotiate_stage",
    "unified_mpi_window_model_supported",
]

neighbor_win_put = win_put
neighbor_win_put_nonblocking = win_put_nonblocking
neighbor_win_accumulate = win_accumulate
neighbor_win_accumulate_nonblocking = win_accumulate_nonblocking
neighbor_win_get = win_get
neighbor_win_get_nonblocking = win_get_nonblocking


def nccl_built() -> bool:
    """Return whether operations accept CUDA tensors, which is ``False`` so far."""
    return False


def mpi_threads_supported() -> bool:
    """Return whether the program may call MPI from any thread, at any time.

    This holds if the ranks met over MPI and its thread level is
    ``MPI_THREAD_MULTIPLE``.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    rendezvous = current_communicator().world.rendezvous
    return isinstance(rendezvous, MpiRendezvous) and rendezvous.threads == "multiple"


def unified_mpi_window_model_supported() -> bool:
    """Return ``True``: a window is the owner's memory itself, without a second copy."""
    return True


def set_skip_negotiate_stage(value: bool) -> None:
    """Do nothing, because ranks never negotiate."""


def get_skip_negotiate_stage() -> bool:
    """Return ``True``, because ranks never negotiate."""
    return True
