"""The process's place in its job: ``init``, ``rank``, ``size`` and their kin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bluecomm.runtime import Communicator, current_communicator, current_process
from bluecomm.runtime.process import TopologyFunction
from bluecomm.runtime.stats import Stats

__all__ = [
    "ProcessSet",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "machine_rank",
    "machine_size",
    "rank",
    "reset_stats",
    "resume",
    "shutdown",
    "size",
    "stats",
    "suspend",
]


def init(
    topology_fn: TopologyFunction | None = None,
    is_weighted: bool = False,
    *,
    comm: Any = None,
) -> None:
    """Find this process's world and connect to it.

    Under bfrun, torchrun, MPI's mpirun and srun the world is the job's ranks; a script
    that no launcher started gets a world of one. Collective. Called again, it only
    resets the topology. After ``shutdown`` it starts anew. With the world comes its
    end: ``shutdown`` runs at the exit of the interpreter.

    Args:
        topology_fn: Makes the topology from the number of ranks, the same on all
            ranks. Default: ``ExponentialGraph``.
        is_weighted: Whether the weights of its edges are in force; see
            ``set_topology``.
        comm: Communicator of mpi4py, also one of some processes: its ranks are the
            world, and all of them call ``init``. MPI is used as the program started it.
            For the first ``init`` of a process only. Default: all of the job's ranks.

    Raises:
        ValueError: A ``BLUECOMM_*`` variable is unknown or cannot be parsed; or
            ``comm`` is null, or not given to the first ``init``.
        TypeError: ``comm`` is no communicator of mpi4py.
        OSError: A timeline is wanted (``BLUECOMM_TIMELINE``) that cannot be written.
        MismatchError: The ranks have differing versions of bluecomm, or start with
            differing topologies or settings.
        CommunicationTimeout: Some ranks did not come within the start timeout.
        BluecommError: The launcher cannot be reached, or refuses this process.
    """
    current_process().init(topology_fn, is_weighted, comm)


def shutdown() -> None:
    """Leave the world: say goodbye to the peers and free what ``init`` made.

    Outstanding operations fail with ``ShutdownError``. Does nothing without a world.
    """
    current_process().shutdown()


def is_initialized() -> bool:
    """Return whether there is a world, that is, ``init`` was called last."""
    return current_process().is_initialized


class ProcessSet(Communicator):
    """Some ranks of the world, to be given to operations as ``process_set``.

    Every rank of the world makes the same process sets in the same order, also those
    that it is not in; ``included`` tells whether it is a member. Making one needs no
    communication.

    Args:
        ranks: The members, in any order; they are numbered in ascending order.

    Raises:
        NotInitializedError: ``init`` has not been called.
        ValueError: No rank, a rank twice, or one that is out of range.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        process = current_process()
        members, creation = process.register_members(ranks)
        super().__init__(process.communicator.world, members, creation)


def suspend() -> None:
    """Let this rank's engine sleep until ``resume``, and free its core altogether.

    For notebooks, between cells. Nothing moves meanwhile: new operations raise
    ``SuspendedError``, and so do waits that are under way in other threads, unless the
    operation is over. Operations under way are kept, with what the peers have sent for
    them, and go on after ``resume``; their deadlines on this rank are put off by the
    time between. To its peers a suspended rank is a silent one, whose operations run
    into their deadlines: suspend all ranks, or none that others wait for. Called again,
    it does nothing; ``shutdown`` resumes first.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    current_communicator().world.suspend()


def resume() -> None:
    """Go on after ``suspend``; without one, do nothing.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    current_communicator().world.resume()


def size(*, process_set: Communicator | None = None) -> int:
    """Return the number of ranks.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    return current_communicator(process_set).size


def rank(*, process_set: Communicator | None = None) -> int:
    """Return the number of this rank, -1 if it is not in ``process_set``.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    return current_communicator(process_set).rank


def local_size() -> int:
    """Return the number of ranks on this machine.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    return current_communicator().local_size


def local_rank() -> int:
    """Return the number of this rank among the ranks of its machine.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    return current_communicator().local_rank


def machine_size() -> int:
    """Return the number of machines.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    return current_communicator().machine_size


def machine_rank() -> int:
    """Return the number of this machine among the machines.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    return current_communicator().machine_rank


def is_homogeneous() -> bool:
    """Return whether each machine has the same number of ranks.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    return current_communicator().layout.is_homogeneous


def stats() -> Stats:
    """Return what this rank has exchanged, and whom it has waited for.

    Costs nothing while it is not called: the counters are always on.

    Returns:
        Counters per neighbor and kind of operation since ``init`` or ``reset_stats``:
        bytes, messages, seconds waited for each neighbor, seconds of exposed
        communication, and the slowest neighbor.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    return current_communicator().world.stats()


def reset_stats() -> None:
    """Let ``stats`` count from 0 again, on this rank.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    current_communicator().world.reset_stats()
