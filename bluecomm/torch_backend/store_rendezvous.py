"""How a process group of torch finds the world, and how both APIs share it.

A process has one world. ``bluecomm.init`` or the first process group makes it, and the
other finds it. Below bfrun, the ranks meet through their agents; with
``BLUECOMM_TRANSPORT=mpi``, through MPI; otherwise in the store that torch hands over.
"""

from __future__ import annotations

import datetime
import os
from typing import Any, Protocol

import torch.distributed
from torch.distributed.constants import default_pg_timeout

from bluecomm.config import Config
from bluecomm.errors import BluecommError
from bluecomm.runtime import Communicator, current_process
from bluecomm.runtime.rendezvous.find import find_rendezvous
from bluecomm.runtime.rendezvous.rendezvous import Rendezvous
from bluecomm.runtime.rendezvous.store import StoreFacts, StoreRendezvous

_CALL = "torch.distributed.init_process_group"

# Its types lack the classes of stores.
dist: Any = torch.distributed


class BackendOptions(Protocol):
    """The part of torch's ``_DistributedBackendOptions`` that is used here."""

    store: Any
    group_rank: int
    group_size: int
    timeout: datetime.timedelta
    # Empty for the default group.
    global_ranks_in_group: list[int]


class WorldShare:
    """A process group's share of the world.

    A world that process groups have made ends with the last share, or with that of the
    default group. A world that ``bluecomm.init`` has made or taken does not.

    Attributes:
        communicator: The communicator of all ranks.
    """

    def __init__(self, communicator: Communicator, *, is_default: bool) -> None:
        self.communicator = communicator
        self._is_default = is_default
        _shares.append(self)

    def release(self) -> None:
        """Return the share. Further calls do nothing."""
        if self not in _shares:
            return
        _shares.remove(self)
        if self._is_default:
            _shares.clear()
        process = current_process()
        if not _shares and process.is_only_shared(self.communicator.world):
            if isinstance(process.rendezvous, StoreRendezvous):
                process.leave()  # the next group may have another store
            else:
                process.shutdown()


_shares: list[WorldShare] = []

# The store of env:// that this process runs, as rank 0. It does not end with the group:
# ranks that use env:// again may come back to it before this rank has left the group,
# and a new group of torch at the same port uses the server that exists.
_server_of_env: Any = None


def share_world(options: BackendOptions) -> WorldShare:
    """Return a process group's share of the world, which is made if there is none.

    Collective, if there is no world yet. Then the timeout of the group, unless it is
    torch's default, replaces ``BLUECOMM_START_TIMEOUT_S``.

    Args:
        options: The options that torch passes to the creator of a backend.

    Raises:
        BluecommError: The ranks of the world are not those of torch; or the group has
            only some ranks, and there is no world; or the ranks cannot meet in the
            store.
        CommunicationTimeout: Some ranks did not come in time.
        MismatchError: The ranks have different versions of bluecomm, or start with
            different settings.
        ShutdownError: This process is a fork of a rank.
    """
    members = options.global_ranks_in_group
    rank, size = options.group_rank, options.group_size
    if members:
        rank, size = dist.get_rank(), dist.get_world_size()
    process = current_process()
    if not process.is_initialized:
        if members and len(members) < size:
            raise BluecommError(
                f"new_group on rank {rank}: a group of ranks {members} needs the world "
                f"of all {size} ranks, which does not exist, because the backend of "
                f"the default group is {dist.get_backend()!r}; call bluecomm.init() "
                "after init_process_group, or use 'cpu:bluecomm' for the default group",
                operation="new_group",
                rank=rank,
            )
        _forget_unfit(rank, size)
    config = Config.from_environment(
        os.environ, start_timeout_s=_chosen_timeout_s(options.timeout)
    )
    try:
        communicator = process.share(
            config, lambda: _find(config, options.store, rank, size)
        )
    except BaseException:
        if isinstance(process.rendezvous, StoreRendezvous):
            process.leave(orderly=False)  # the next attempt may have another store
        raise
    source = communicator.world.assignment.source
    _expect(rank, size, communicator.rank, communicator.size, source)
    return WorldShare(communicator, is_default=not members)


def _find(config: Config, store: Any, rank: int, size: int) -> Rendezvous:
    """Return the rendezvous of a new world."""
    _keep_server(store, rank)
    if config.agent_socket is None and config.transport != "mpi":
        return StoreRendezvous(config, _facts(store, rank, size), lambda: store)
    if config.rank is not None and config.size is not None:
        _expect(rank, size, config.rank, config.size, "bfrun")
    rendezvous = find_rendezvous(config)
    told = rendezvous.assignment
    try:
        _expect(rank, size, told.rank, told.size, told.source)
    except BluecommError:
        rendezvous.close()
        raise
    return rendezvous


def _keep_server(store: Any, rank: int) -> None:
    """Keep the store alive if other ranks may come back to it; see above."""
    global _server_of_env
    store = _without_prefix(store)
    if (
        rank == 0
        and isinstance(store, dist.TCPStore)
        and os.environ.get("MASTER_PORT") == str(store.port)
        and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)
    ):
        _server_of_env = store


def _without_prefix(store: Any) -> Any:
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


def _forget_unfit(rank: int, size: int) -> None:
    """Forget where an earlier world met, unless these ranks can meet there again."""
    process = current_process()
    if process.rendezvous is None or process.rendezvous.agent is not None:
        return
    told = process.rendezvous.assignment
    is_fit = (told.rank, told.size) == (rank, size)
    if not is_fit or isinstance(process.rendezvous, StoreRendezvous):
        process.leave()


def _expect(rank: int, size: int, had_rank: int, had_size: int, source: str) -> None:
    """Check that torch and the world agree on this process's rank.

    Raises:
        BluecommError: They do not.
    """
    if (rank, size) == (had_rank, had_size):
        return
    raise BluecommError(
        f"init_process_group: this process is rank {rank} of {size} for torch, but "
        f"rank {had_rank} of {had_size} in bluecomm's world ({source}). Give "
        "init_process_group the rank and world size of the launcher, or start the "
        "ranks without it; call init_process_group before bluecomm.init, if only "
        "torch knows the ranks",
        operation="init_process_group",
        rank=rank,
    )


def _chosen_timeout_s(timeout: datetime.timedelta) -> float | None:
    """Return a timeout in seconds, or None if it is torch's default."""
    return None if timeout == default_pg_timeout else timeout.total_seconds()


def _facts(store: Any, rank: int, size: int) -> StoreFacts:
    """Return what the rendezvous has to know about torch's store.

    Raises:
        BluecommError: Other processes cannot reach the store.
    """
    store = _without_prefix(store)
    name = type(store).__name__
    head = folder = None
    if isinstance(store, dist.HashStore) and size > 1:
        raise BluecommError(
            f"init_process_group on rank {rank}: other processes cannot read a "
            f"HashStore, and each of the {size} ranks must be a process; pass a "
            "TCPStore or a FileStore",
            operation="init_process_group",
            rank=rank,
        )
    if isinstance(store, dist.TCPStore):
        head = store.host
        name = f"TCPStore at {store.host}:{store.port}"
    elif isinstance(store, dist.FileStore):
        folder = os.path.dirname(os.path.abspath(store.path))
        name = f"FileStore {store.path}"
    return StoreFacts(
        rank=rank,
        size=size,
        source=f"init_process_group, {name}",
        store=f"torch's {name}",
        call=_CALL,
        head=head,
        shared_folder=folder,
        may_run_here=rank == 0 and isinstance(store, dist.TCPStore),
    )
