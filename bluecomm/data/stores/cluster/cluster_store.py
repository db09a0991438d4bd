"""A cache in the memory of all machines of a job, of which each keeps a part."""

from __future__ import annotations

import contextlib
import itertools
import logging
import mmap
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from bluecomm.basics import is_initialized
from bluecomm.data.stores.cluster.local_socket import LocalClient
from bluecomm.data.stores.cluster.messages import CacheMessage, Kind
from bluecomm.data.stores.cluster.route import VALUE_LIMIT_S, EngineRoute
from bluecomm.data.stores.cluster.server import (
    ANSWER_LIMIT_S,
    LOADING_LIMIT_S,
    CacheServer,
    stop_all,
)
from bluecomm.data.stores.flat_value import decode_value, encode_value, nbytes_of
from bluecomm.data.stores.memory.machine import machine_id
from bluecomm.data.stores.memory.memory_store import MemoryStore
from bluecomm.data.stores.store import MISSING, SampleStore
from bluecomm.data.world import DataWorld, check_same, on_all_ranks
from bluecomm.elastic.group import current_group
from bluecomm.errors import NotInitializedError
from bluecomm.runtime import Communicator, current_communicator, current_process

_log = logging.getLogger("bluecomm")

_FIND_LIMIT_S = ANSWER_LIMIT_S + VALUE_LIMIT_S + 5.0
_CLAIM_LIMIT_S = LOADING_LIMIT_S + _FIND_LIMIT_S
# A server that did not answer is asked again after this time.
_PAUSE_S = 30.0

# The machine of a newcomer has the number of its generation above those of ranks.
_RANK_BITS = 32

# Numbers the stores of a job.
_stores = itertools.count()


class ClusterStore(SampleStore):
    """One copy of each value in the job: each machine keeps a part in its memory.

    Needs ``bluecomm.init()``. The other machines fetch a value over the engine, into
    memory that is theirs. Each sample is loaded by one process of the job.
    docs/cache.md has the states, and what happens when a machine is lost.

    Args:
        budget: Bytes of the memory on each machine. A value may have 1/64 of it.
        copies: Whether a machine also keeps what it has fetched, as long as its own
            part leaves room in the budget.

    Raises:
        ValueError: The budget is below 4 MiB.
    """

    def __init__(self, budget: int = 1 << 30, *, copies: bool = False) -> None:
        self._budget = budget
        self._copies = copies
        self._memory = MemoryStore(budget)
        self._server: CacheServer | None = None
        self._pid = os.getpid()
        self._reset(None)

    def _reset(self, address: str | None) -> None:
        self._address = address
        self._client = None if address is None else LocalClient(address)
        self._no_questions_until = 0.0
        self._has_warned = False
        # For each key that a thread loads: a value that was found meanwhile, or None.
        self._loading: dict[tuple[int, int], mmap.mmap | None] = {}
        # The same keys, if their values belong to another machine.
        self._remote: set[tuple[int, int]] = set()

    def open(self, world: DataWorld, length: int, fingerprint: str) -> None:
        """See ``SampleStore``.

        Raises:
            NotInitializedError: There are several ranks, but no world of bluecomm.
        """
        if not is_initialized():
            if world.size > 1:
                raise NotInitializedError(
                    f"ClusterStore: the {world.size} ranks know each other only "
                    "through torch.distributed, and values travel over bluecomm's "
                    "engine; call bluecomm.init() before the dataset is made, or use "
                    "store='memory' or store='redis'"
                )
            self._memory.open(world, length, fingerprint)
            return
        everybody = current_communicator()
        if everybody.is_joining:
            self._memory.open(world, length, fingerprint)
            self._join_job(everybody)
            return
        facts = {
            "length": length,
            "fingerprint": fingerprint,
            "budget": self._budget,
            "copies": self._copies,
        }
        check_same(world, "ClusterStore", facts)
        group = current_group()
        self._memory = MemoryStore(self._budget, machine=group.machine_rank)
        self._memory.open(world, length, fingerprint)
        self._join_others(world, group)

    def _join_others(self, world: DataWorld, group: Communicator) -> None:
        """Start the server of this rank; collective."""
        global _stores
        # Newcomers of a job have made fewer stores.
        mine = (group.machine_rank, machine_id()), next(_stores)
        everyone = world.gather(mine, "cluster-store-machines")
        number = max(one[1] for one in everyone)
        _stores = itertools.count(number + 1)
        machines = list(dict.fromkeys(one[0] for one in everyone))
        if len(machines) == 1:
            return
        machine_of = {
            rank: machines.index(one[0])
            for rank, one in zip(group.ranks, everyone, strict=True)
        }

        def start() -> None:
            rank, route = group.world.rank, EngineRoute(group.world, str(number))
            self._server = CacheServer(rank, machine_of, self._memory, route)
            self._server.start()

        try:
            on_all_ranks(world, "ClusterStore: starting the cache server", start)
        except BaseException:
            self.close()
            raise
        self._use_server()

    def _join_job(self, everybody: Communicator) -> None:
        """Start the server of a newcomer, which meets the others once it has joined.

        It communicates nothing. The program has made as many stores before as the other
        ranks had made before this one.
        """
        number = next(_stores)
        if everybody.machine_size == 1:
            return  # then the others have no servers
        world = everybody.world
        # It shares no memory, so its machine is one of its own.
        machine = (world.assignment.epoch << _RANK_BITS) + world.rank
        try:
            self._server = CacheServer(
                world.rank,
                {world.rank: machine},
                self._memory,
                EngineRoute(world, str(number)),
                [rank for rank in everybody.ranks if rank != world.rank],
                lambda: not world.is_joining,
            )
            self._server.start()
        except BaseException:
            self.close()
            raise
        self._use_server()

    def _use_server(self) -> None:
        assert self._server is not None
        current_process().before_shutdown(stop_all)
        self._reset(self._server.address)

    def get(self, key: int) -> Any:
        """See ``SampleStore``."""
        here = threading.get_ident(), key
        found = self._loading.get(here)
        if found is None:
            value = self._memory.get(key)
            if value is not MISSING or here in self._loading:
                return value
            found = self._ask(CacheMessage(Kind.FIND, key=key), _FIND_LIMIT_S)[1]
        if found is None:
            return MISSING
        self._keep_copy(key, [found])
        return decode_value(memoryview(found))

    def put(self, key: int, value: Any, cost_s: float) -> None:
        """See ``SampleStore``."""
        parts = encode_value(value)
        here = threading.get_ident(), key
        if here not in self._remote:
            self._memory.put_flat(key, parts, cost_s)
            return
        nbytes = nbytes_of(parts)
        self._memory.check_size(nbytes)
        self._remote.discard(here)
        message = CacheMessage(Kind.KEEP, 0, key, nbytes, int(cost_s * 1e9))
        self._ask(message, _FIND_LIMIT_S, parts)
        self._keep_copy(key, parts)

    def _keep_copy(self, key: int, parts: list[Any]) -> None:
        """Keep what belongs to another machine, as worth less than own values."""
        if self._copies:
            with contextlib.suppress(OSError):
                self._memory.put_flat(key, parts, 0.0)

    def _has(self, key: int) -> bool:
        """Return whether the memory of this machine has a value."""
        try:
            return self._memory.has(key)
        except OSError:
            return False  # get() reports it

    @contextlib.contextmanager
    def loading(self, key: int) -> Iterator[None]:
        """See ``SampleStore``; on all machines. After a minute, others load it, too."""
        here = threading.get_ident(), key
        with self._memory.loading(key):
            kind, found = Kind.FOUND, None
            if not self._has(key):
                kind, found = self._ask(
                    CacheMessage(Kind.CLAIM, key=key), _CLAIM_LIMIT_S
                )
            self._loading[here] = found
            if kind is Kind.LOAD:
                self._remote.add(here)
            try:
                yield
            finally:
                del self._loading[here]
                is_kept = kind is Kind.LOAD and here not in self._remote
                self._remote.discard(here)
                if kind in (Kind.LOAD, Kind.LOAD_HERE) and not is_kept:
                    self._ask(CacheMessage(Kind.RELEASE, key=key), _FIND_LIMIT_S)

    def _ask(
        self, message: CacheMessage, limit_s: float, parts: list[Any] | None = None
    ) -> tuple[Kind, mmap.mmap | None]:
        """Return the server's answer; MISSING if there is none."""
        if self._client is None or time.monotonic() < self._no_questions_until:
            return Kind.MISSING, None
        try:
            answer, value = self._client.ask(message, limit_s, parts or ())
        except TimeoutError:
            if not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "ClusterStore: the cache server of this rank has not answered "
                    "process %d for %g s; samples of other machines are loaded",
                    *(os.getpid(), limit_s),
                )
        except OSError:
            pass  # it has ended, or there is no memory
        else:
            return answer.kind, value
        self._no_questions_until = time.monotonic() + _PAUSE_S
        return Kind.MISSING, None

    def close(self) -> None:
        """See ``SampleStore``."""
        if self._server is not None and self._pid == os.getpid():
            self._server.stop()
        self._server = None
        if self._client is not None:
            self._client.close()
        self._reset(None)
        self._memory.close()

    def __getstate__(self) -> dict[str, Any]:
        """Name the memory and the server for a process that is started by this one."""
        return {
            "_budget": self._budget,
            "_copies": self._copies,
            "_memory": self._memory,
            "_address": self._address,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Connect at the first use."""
        self.__dict__.update(state)
        self._server = None
        self._pid = os.getpid()
        self._reset(state["_address"])
