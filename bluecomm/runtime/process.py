"""The state of this process: the current world, and what outlives it."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bluecomm.config import Config
from bluecomm.device.staging_table import name_rank
from bluecomm.errors import NotInitializedError, ShutdownError
from bluecomm.runtime.communicator import Communicator
from bluecomm.runtime.failure_report import FailureReport
from bluecomm.runtime.farewell import serve_until_all_finish
from bluecomm.runtime.first_topology import FirstTopology, TopologyFunction
from bluecomm.runtime.logs import set_log_level
from bluecomm.runtime.recording import Recording
from bluecomm.runtime.rendezvous.agent_connection import AgentConnection
from bluecomm.runtime.rendezvous.find import find_rendezvous
from bluecomm.runtime.rendezvous.generation import (
    GenerationCancelled,
    GenerationRendezvous,
    ask_to_join,
    await_invitation,
)
from bluecomm.runtime.rendezvous.rendezvous import AgentRendezvous, Rendezvous
from bluecomm.runtime.world import World
from bluecomm.topology.exponential import ExponentialGraph

if TYPE_CHECKING:
    from bluecomm._native import Recorder, SharedMemory

_log = logging.getLogger("bluecomm")


class Process:
    """Process-wide state that survives ``shutdown``."""

    def __init__(self) -> None:
        self._rendezvous: Rendezvous | None = None
        self._memory: SharedMemory | None = None
        self._making_memory = threading.RLock()
        self._recording: Recording | None = None
        self._communicator: Communicator | None = None
        # The first topology, on which all ranks agree.
        self._first = FirstTopology(None, is_weighted=False)
        self._before_shutdown: list[Callable[[], None]] = []
        self._was_shut_down = False
        # Whether ``init`` has been called since the world began.
        self._is_taken = False
        # Windows that existed when a world ended before all ranks had finished. Other
        # ranks may still write to their memory, so it is not reused until all ranks
        # have met again.
        self._left_windows: list[Any] = []
        self._ends_with_interpreter = False
        self._exit_watch = FailureReport(self._agent, self._tell_peers).watch
        self._pid = os.getpid()

    @property
    def is_initialized(self) -> bool:
        """Whether this process is connected to a world."""
        return self._communicator is not None

    @property
    def communicator(self) -> Communicator:
        """The communicator of all ranks.

        Raises:
            NotInitializedError: ``init`` has not been called.
            ShutdownError: ``shutdown`` has been called since.
        """
        if self._communicator is None:
            if self._was_shut_down:
                raise ShutdownError(
                    "bluecomm has been shut down; call bluecomm.init() again first"
                )
            raise NotInitializedError(
                "bluecomm has not been initialized; call bluecomm.init() first"
            )
        return self._communicator

    def _agent(self) -> AgentConnection | None:
        return None if self._rendezvous is None else self._rendezvous.agent

    def _tell_peers(self, what: str) -> None:
        """Tell the peers that an error ends this program, which ``what`` describes."""
        if self._communicator is not None:
            self._communicator.world.tell_failing(what)

    @property
    def memory(self) -> SharedMemory:
        """Allocator of shared memory."""
        if (memory := self._memory) is not None:
            return memory
        from bluecomm._native import SharedMemory

        with self._making_memory:
            if self._memory is None:
                self._memory = SharedMemory()
            return self._memory

    def is_in_use(self, address: int, nbytes: int) -> bool:
        """Return whether an outstanding operation uses some of this memory."""
        world = None if self._communicator is None else self._communicator.world
        return world is not None and world.is_in_use(address, nbytes)

    def init(
        self,
        topology_fn: TopologyFunction | None = None,
        is_weighted: bool = False,
        comm: Any = None,
    ) -> None:
        """See ``bluecomm.init``."""
        self._begin_in_fork()
        if comm is not None and self._rendezvous is not None:
            raise ValueError(
                "init: comm can be passed only to the first init of a process, because "
                "it determines the ranks; later calls start the same world again"
            )
        self._is_taken = True
        if self._communicator is not None:
            if self._communicator.windows:
                _log.warning(
                    "init keeps the topology, because windows exist: %s",
                    sorted(self._communicator.windows),
                )
                return
            graph = (topology_fn or ExponentialGraph)(self._communicator.size)
            self._communicator.use_topology(graph, is_weighted)
            return
        config = Config.from_environment(os.environ)
        self._start(
            config, lambda: find_rendezvous(config, comm), topology_fn, is_weighted
        )

    def share(self, config: Config, find: Callable[[], Rendezvous]) -> Communicator:
        """Return the communicator of all ranks to an API other than ``init``.

        Collective, if there is no world yet: makes one.

        Args:
            config: Settings of a new world.
            find: Returns the rendezvous of a process that has none yet.

        Raises:
            ShutdownError: This process is a fork of a rank.
            Exception: What ``bluecomm.init`` raises.
        """
        self._begin_in_fork()
        if self._communicator is None:
            self._start(config, find)
            self._is_taken = False
        return self.communicator

    def is_only_shared(self, world: World) -> bool:
        """Return whether a world is the current one, and only ``share`` has made it.

        After a call of ``init``, it is not.
        """
        current = self._communicator
        return current is not None and current.world is world and not self._is_taken

    def _start(
        self,
        config: Config,
        find: Callable[[], Rendezvous],
        topology_fn: TopologyFunction | None = None,
        is_weighted: bool = False,
    ) -> None:
        """Make a world."""
        if self._rendezvous is None:
            set_log_level(config.log_level)
            self._rendezvous = find()
            if not self._ends_with_interpreter:
                self._ends_with_interpreter = True
                atexit.register(self._at_exit)
        self._exit_watch.install()
        self._first = FirstTopology(topology_fn, is_weighted=is_weighted)
        self._first.digest(self._rendezvous.assignment.size)
        recording = self._recording_for(config, self._rendezvous)
        if isinstance(self._rendezvous, AgentRendezvous) and self._rendezvous.joins:
            communicator = self._join(config, self._rendezvous, recording.recorder)
        else:
            world = self._meet(config, self._rendezvous, recording.recorder)
            communicator = Communicator(world, range(world.size))
        self._left_windows.clear()
        communicator.use_default_topologies()
        graph = self._first.graph(communicator.size)
        if graph is not None:
            communicator.use_topology(graph, is_weighted)
        self._communicator = communicator
        name_rank(communicator.world.rank)
        communicator.world.show_epochs()

    def _meet(
        self, config: Config, rendezvous: Rendezvous, recorder: Recorder | None
    ) -> World:
        """Meet the other ranks, and check that all begin with the same topology."""
        digest = self._first.digest(rendezvous.assignment.size)
        return World(config, rendezvous, self.memory, digest, recorder)

    def _join(
        self, config: Config, base: AgentRendezvous, recorder: Recorder | None
    ) -> Communicator:
        """Meet the ranks of a running job as a newcomer; return all ranks of the job.

        Raises:
            CommunicationTimeout: The job has not invited this rank in time.
        """
        base.joins = False
        ask_to_join(base)
        while True:
            invitation = await_invitation(base, config.start_timeout_s)
            try:
                world = self._meet(config, invitation, recorder)
            except GenerationCancelled as error:
                _log.info("%s", error)  # another invitation follows
                continue
            world.is_joining = True
            invitation.take_effect()
            return _without_missing(world, invitation)

    def prepare(self, rendezvous: GenerationRendezvous) -> Communicator:
        """Meet the newcomers, and return all ranks of the next generation.

        Thread-safe. The current world stays in use.

        Raises:
            GenerationCancelled: The launcher has cancelled the generation.
            CommunicationTimeout: The ranks have not met in time.
        """
        config = self.communicator.world.config
        recorder = None if self._recording is None else self._recording.recorder
        world = self._meet(config, rendezvous, recorder)
        world.is_spare = True
        return _without_missing(world, rendezvous)

    def move(self, communicator: Communicator) -> Communicator:
        """Use all ranks of another generation from now on.

        Returns:
            The previous communicator of all ranks, whose world the caller must end.
        """
        before, world = self.communicator, communicator.world
        communicator.use_topologies_of(before)
        assert isinstance(world.rendezvous, GenerationRendezvous)
        world.rendezvous.take_effect()
        if before.world.notice.is_given:
            world.notice.give()
        world.is_spare, before.world.is_spare = False, True
        self._communicator = communicator
        name_rank(world.rank)
        world.show_epochs()
        return before

    def _begin_in_fork(self) -> None:
        """Reset the state in a forked child whose parent was not a rank.

        Raises:
            ShutdownError: The parent has called ``init``.
        """
        if os.getpid() == self._pid:
            return
        if self._rendezvous is not None:
            rank = self._rendezvous.assignment.rank
            raise ShutdownError.describe(
                f"this process ({os.getpid()}) is a fork of rank {rank} "
                f"(pid {self._pid}); only the rank itself communicates",
                operation="init",
                rank=rank,
                remedy="Communicate in the rank, and exchange data with its children "
                "through multiprocessing; or fork before the first init",
            )
        self._pid = os.getpid()
        self._memory = None  # the parent's
        self._making_memory = threading.RLock()

    def _recording_for(self, config: Config, rendezvous: Rendezvous) -> Recording:
        """Return the recording of a new world, which may continue an earlier one."""
        recording, self._recording = self._recording, None
        if recording is not None and not recording.resume(config.timeline):
            recording.finish()
            recording = None
        self._recording = recording or Recording(config, rendezvous.assignment)
        return self._recording

    @property
    def recording(self) -> Recording | None:
        """The recording of events, or ``None`` before the first ``init``."""
        return self._recording

    @property
    def rendezvous(self) -> Rendezvous | None:
        """Where the ranks met, or ``None`` before the first ``init``."""
        return self._rendezvous

    def before_shutdown(self, callback: Callable[[], None]) -> None:
        """Register a function to be called before each orderly end of a world.

        The function may communicate, and must not raise. A function that is registered
        twice is called once.
        """
        if callback not in self._before_shutdown:
            self._before_shutdown.append(callback)

    def shutdown(self) -> None:
        """See ``bluecomm.shutdown``."""
        self._end(orderly=True, serves=True)

    def _end(self, *, orderly: bool, serves: bool) -> None:
        """End the world, if there is one.

        Args:
            orderly: Call what ``before_shutdown`` has registered, and deliver sent
                messages.
            serves: Serve live windows first until all ranks have finished.
        """
        communicator = self._communicator
        all_finished = False
        try:
            if orderly and communicator is not None and _is_own(communicator):
                communicator.world.resume()  # callbacks may communicate
                for callback in self._before_shutdown:
                    callback()
                # In a job that survives losses, the others go on without this rank.
                survives = communicator.world.members.survives_losses
                if serves and communicator.windows and not survives:
                    for window in communicator.windows.values():
                        window.unmap()  # this rank puts nothing more
                    all_finished = serve_until_all_finish(communicator)
        finally:  # also if Ctrl-C ends the wait
            self._communicator = None
            if communicator is not None:
                self._was_shut_down = True
                communicator.world.close(orderly=orderly)
                if all_finished:
                    for window in communicator.windows.values():
                        window.free()
                else:
                    self._left_windows.extend(communicator.windows.values())
                    self._left_windows.extend(communicator.windows_in_doubt)
                communicator.windows.clear()
            if self._recording is not None:
                self._recording.complete()
            self._exit_watch.remove()

    def leave(self, *, orderly: bool = True) -> None:
        """End the world and forget the launcher, which the next ``init`` looks for."""
        try:
            self._end(orderly=orderly, serves=orderly)
        finally:
            self._was_shut_down = False
            recording, self._recording = self._recording, None
            if recording is not None:
                recording.finish()
            rendezvous, self._rendezvous = self._rendezvous, None
            if rendezvous is not None:
                rendezvous.close()

    def _at_exit(self) -> None:
        """End the world when the interpreter exits.

        If an error ends the program, the peers must not take its end for an orderly
        one. So the links break, and the agent tells the peers the reason. Without an
        agent, the peers have been told already. A world whose rendezvous outlives
        failures is closed like any other.
        """
        if os.getpid() != self._pid:
            return
        if self._exit_watch.failure() is None:
            self.leave()
            return
        if self._recording is not None:
            self._recording.finish()
        if self._rendezvous is not None and self._rendezvous.agent is None:
            self._end(orderly=self._rendezvous.outlives_failure, serves=False)


def _without_missing(world: World, rendezvous: GenerationRendezvous) -> Communicator:
    """Return all ranks of a new generation, which have agreed on the missing ones."""
    try:
        world.begin_without(rendezvous.missing)
    except BaseException:
        world.retire()
        raise
    return Communicator(world, range(world.size))


def _is_own(communicator: Communicator) -> bool:
    """Return whether this process is the rank itself, and not a fork of it."""
    return communicator.world.pid == os.getpid()


_process = Process()


def current_process() -> Process:
    """Return the state of this process."""
    return _process


def current_communicator(process_set: Any = None) -> Communicator:
    """Return the given communicator, or that of all ranks.

    Raises:
        NotInitializedError: ``init`` has not been called.
        ShutdownError: ``shutdown`` has been called since.
        TypeError: ``process_set`` is not a communicator.
    """
    if process_set is None:
        return _process._communicator or _process.communicator
    if not isinstance(process_set, Communicator):
        raise TypeError(
            "process_set must be a bluecomm.ProcessSet, "
            f"got {type(process_set).__name__}"
        )
    return process_set
