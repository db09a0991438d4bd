"""Functions about the process and its job: ``init``, ``rank``, ``size`` and others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from bluecomm.device.runtime import current_runtime
from bluecomm.runtime import Communicator, current_communicator, current_process
from bluecomm.runtime.first_topology import TopologyFunction
from bluecomm.runtime.own_gpu import own_gpu
from bluecomm.runtime.process_sets import members_of
from bluecomm.runtime.stats import Stats

__all__ = [
    "ProcessSet",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_device",
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
    """Connect this process to the other ranks of its job.

    Collective. The ranks connected are the *world*: all ranks that bfrun, torchrun,
    MPI's mpirun or srun started, or this process alone if no launcher started it.
    Further calls only reset the topology. After ``shutdown``, the next call connects
    anew. ``shutdown`` runs by itself when the interpreter exits.

    Until ``shutdown``, ``sys.excepthook``, ``threading.excepthook`` and ``sys.exit``
    are wrapped. Under bfrun, the peers learn at once of an uncaught exception or a
    ``sys.exit(n)`` that ends this rank's program, and their errors name it. If an
    uncaught exception ends a thread other than the main one, all ranks log a warning.

    Args:
        topology_fn: Function that returns the topology for a number of ranks. It must
            be the same on all ranks. Default: ``ExponentialGraph``.
        is_weighted: Whether the weights of the edges count; see ``set_topology``.
        comm: Communicator of mpi4py whose processes become the world; all of them must
            call ``init``. bluecomm then uses the MPI that the program initialized. Only
            the first ``init`` of a process accepts it. Default: all ranks of the job.

    Raises:
        ValueError: A ``BLUECOMM_*`` variable is unknown or cannot be parsed; or
            ``comm`` is the null communicator, or was passed to a later ``init``.
        TypeError: ``comm`` is not a communicator of mpi4py.
        OSError: The timeline that ``BLUECOMM_TIMELINE`` requests cannot be written.
        MismatchError: The ranks have different versions of bluecomm, or start with
            different topologies or settings.
        CommunicationTimeout: Some ranks did not start within the start timeout.
        BluecommError: The launcher cannot be reached, or rejects this process.
    """
    current_process().init(topology_fn, is_weighted, comm)


def shutdown() -> None:
    """Disconnect from the other ranks and free the resources of ``init``.

    Outstanding operations fail with ``ShutdownError``. While windows exist, or if a
    loader has used the dynamic partition, this rank first serves the others until all
    ranks have called ``shutdown`` or ended their scripts, or one is lost; not so in a
    job that survives losses. ``shutdown`` does nothing if this process is not
    connected.
    """
    current_process().shutdown()


def is_initialized() -> bool:
    """Return whether ``init`` has been called, and ``shutdown`` not since then."""
    return current_process().is_initialized


class ProcessSet(Communicator):
    """A set of ranks, which operations take as ``process_set``.

    Every rank of the world must make the same process sets in the same order, even
    those that it is not a member of; ``included`` tells whether it is a member. Making
    a process set needs no communication.

    A copy of an object that contains a process set has the same set. A pickled object
    can be loaded once the process sets that the saving program had have been made.

    Args:
        ranks: The members, as any iterable, in any order. They are numbered in
            ascending order.

    Raises:
        NotInitializedError: ``init`` has not been called.
        TypeError: ``ranks`` is not an iterable of integers.
        ValueError: ``ranks`` is empty, or a rank occurs twice or is out of range.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        world = current_process().communicator.world
        members = members_of(ranks, world.size)
        self._number = world.process_sets.add(members, self)
        super().__init__(world, members, self._number)

    def free(self) -> None:
        """Forget the set on this rank, with all that the engine keeps for it.

        See ``Communicator.free``. A pickle that contains it can no longer be loaded.
        """
        self.world.process_sets.remove(self.ranks, self._number)
        super().free()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the members and the number, by which loading finds the set again."""
        return _find_process_set, (self.ranks, self._number)


def _find_process_set(members: tuple[int, ...], number: int) -> Communicator:
    found: Communicator = current_communicator().world.process_sets.find(
        members, number
    )
    return found


def suspend() -> None:
    """Stop this rank's engine until ``resume``, so that it uses no processor time.

    It is meant for notebooks, between cells. While the rank is suspended, it sends and
    receives nothing. New operations raise ``SuspendedError``, and so do waits of other
    threads unless their operation has finished. Outstanding operations keep the data
    that has arrived for them and continue after ``resume``; their deadlines on this
    rank are extended by the time between. Peers see a suspended rank as a silent one,
    and their operations with it may time out: suspend all ranks, or only ranks that no
    other rank waits for. Further calls do nothing. ``shutdown`` resumes first.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    current_communicator().world.suspend()


def resume() -> None:
    """Continue after ``suspend``. Do nothing if the rank is not suspended.

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
    """Return the number of this rank, or -1 if it is not a member of ``process_set``.

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


def local_device() -> torch.device:
    """Return the device of this rank: its GPU, or the CPU if it sees no GPU.

    ::

        device = bf.local_device()
        if device.type == "cuda":
            torch.cuda.set_device(device)

    If the ranks see all GPUs of their machine, that of the n-th rank there is
    ``cuda:n``. With ``bfrun --gpus-per-rank``, a rank sees only its own GPUs, and the
    result is ``cuda:0``. With ``bfrun --share-gpus``, ranks take turns if there are
    fewer GPUs than ranks.

    Returns:
        The device.

    Raises:
        NotInitializedError: ``init`` has not been called.
        RuntimeError: The machine has more ranks than GPUs, which they must not share.
    """
    world = current_communicator().world
    gpu = own_gpu(world, current_runtime().count())
    return torch.device("cpu") if gpu is None else torch.device("cuda", gpu)


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
    """Return counters of the traffic of this rank and of its waits for other ranks.

    The engine always counts, so no setting is needed.

    Returns:
        Counters per neighbor and kind of operation since ``init`` or ``reset_stats``:
        bytes, messages, seconds waited for each neighbor, seconds of exposed
        communication, and the slowest neighbor. Through NCCL, only operations that
        consist of sends and receives count bytes per neighbor; see ``EdgeStats``.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    return current_communicator().world.stats()


def reset_stats() -> None:
    """Reset the counters of ``stats`` on this rank to 0.

    Raises:
        NotInitializedError: ``init`` has not been called.
    """
    current_communicator().world.reset_stats()
