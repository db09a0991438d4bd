"""Lets newcomers into the running job, between two steps of the training.

While the ranks train, a thread of each of them makes the next generation of the world,
together with the newcomers. When all of them are ready, the ranks agree on the check
of the state at which they change to it. At that check one rank, the donor, gives its
state to the newcomers. docs/survival.md has the protocol and its states.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Iterator, Sequence

from bfrun.frames.driver_to_rank import (
    Invite,
    JoinCancelled,
    JoinOpen,
    LeaveNotice,
)
from bfrun.frames.rank_to_driver import Admits, Joined, JoinReady
from bfrun.wording import format_ranks
from bluecomm.elastic.group import begin_generation
from bluecomm.elastic.obstacles import refuses_growth, refuses_newcomers
from bluecomm.elastic.state import ObjectState, State
from bluecomm.errors import BluecommError, PeerLostError
from bluecomm.optim import ownership
from bluecomm.optim.regrouping import Regrouping
from bluecomm.runtime import Communicator, current_communicator, current_process
from bluecomm.runtime.call import NO_MEMORY, Call
from bluecomm.runtime.members import PRIMARY
from bluecomm.runtime.rendezvous.agent_connection import AgentConnection, News
from bluecomm.runtime.rendezvous.generation import (
    GenerationCancelled,
    GenerationRendezvous,
)
from bluecomm.runtime.rendezvous.rendezvous import AgentRendezvous
from bluecomm.runtime.world import World

_log = logging.getLogger("bluecomm")

_NAME = "elastic.generation"
# How long the end of a training waits for the threads that make or end a generation.
_JOIN_S = 5.0
# How long a rank waits to learn that those that hand over their state have gone.
_GONE_S = 10.0
# How long after a failed attempt a rank lets others in again.
_AGAIN_S = 5.0


@contextlib.contextmanager
def admitting(state: State) -> Iterator[bool]:
    """Let newcomers in while a training runs. A newcomer itself joins it first.

    Yields:
        Whether this rank has just joined, and has the state of another one.
    """
    world = current_communicator().world
    if not (world.assignment.respawns and isinstance(state, ObjectState)):
        yield False
        return
    admission = Admission(state)
    has_joined = world.is_joining
    if has_joined:
        admission.join(world)
    state.use_door(admission)
    admission.open()
    try:
        yield has_joined
    finally:
        state.use_door(None)
        admission.close()


class Admission:
    """Lets newcomers into the job at the checks of a state, on one rank.

    Args:
        state: The state, which is handed over to newcomers.
    """

    def __init__(self, state: ObjectState) -> None:
        agent = current_communicator().world.rendezvous.agent
        assert agent is not None
        self._agent = agent
        self._state = state
        # Held while a check is counted, and while its number is proposed.
        self._counting = threading.Lock()
        self._next: NextGeneration | None = None
        self._threads: list[threading.Thread] = []
        self._must_leave = False
        self._has_ended = threading.Event()
        self._feed = agent.open_feed()

    def open(self) -> None:
        """Tell the launcher whether this rank can let newcomers in."""
        self._feed.listen(self._on_news)
        if not refuses_newcomers():
            grows = not refuses_growth(current_communicator().size + 1)
            self._agent.send(Admits(willing=True, grows=grows))

    def close(self) -> None:
        """Let no more newcomers in, and end a generation that is being made."""
        self._has_ended.set()
        with contextlib.suppress(BluecommError):  # the reading thread reports it
            self._agent.send(Admits(willing=False, has_ended=True))
        self._feed.listen(None)
        self._agent.close_feed(self._feed)
        if self._next is not None:
            self._next.cancel()
        for thread in self._threads:
            thread.join(_JOIN_S)
        if self._next is not None and self._next.agreement is not None:
            # The training has ended before its first check.
            world = self._next.everybody.world
            world.retire()
            if world.news is not None:
                self._agent.close_feed(world.news)

    def check(self) -> bool:
        """Count a check of the state, and change to a generation that begins at it.

        Returns:
            Whether the rank has changed to one.

        Raises:
            SystemExit: The launcher ends the slot of this rank, which leaves the job.
            CommunicationTimeout: The other ranks have not agreed in time.
            BluecommError: A round under way has failed, and a later check changes; or
                the donor's state cannot be handed over.
        """
        if self._must_leave:
            _log.warning(
                "elastic: rank %d leaves the job, because its slot ends",
                current_communicator().rank,
            )
            raise SystemExit(0)
        with self._counting:
            number = self._state.begin_check()
            following = self._next
            agreement = None if following is None else following.agreement
        if following is None or agreement is None:
            return False
        # This may fail, and the agreement names the ranks that are left only once.
        ownership.settle_all()
        left = agreement.begin_round(number)
        if left is None:
            return False
        before = current_process().move(following.everybody)
        after = current_communicator()
        ownership.move_all(before, after)
        self._next = None
        self._begin(after.world, before, agreement, left)
        return True

    def join(self, world: World) -> None:
        """Join the running job as a newcomer, and take over the state of a rank.

        Raises:
            CommunicationTimeout: The ranks have not agreed in time.
            BluecommError: The donor has been lost.
        """
        rendezvous = world.rendezvous
        assert isinstance(rendezvous, GenerationRendezvous)
        agreement = Regrouping(
            _for_agreement(world), _NAME, lead=1, opens=True, sides=rendezvous.sides
        )
        self._agent.send(JoinReady(generation=world.assignment.epoch))
        left = agreement.begin_round(agreement.first())
        assert left is not None
        world.is_joining = False
        self._begin(world, None, agreement, left)

    def _begin(
        self,
        world: World,
        before: Communicator | None,
        agreement: Regrouping,
        left: Sequence[int],
    ) -> None:
        """Begin a generation. Collective among those of its ranks that are left."""
        rendezvous = world.rendezvous
        assert isinstance(rendezvous, GenerationRendezvous)
        newcomers = rendezvous.newcomers
        earlier = [] if before is None else before.world.members.events
        world.members.take_over(earlier, newcomers)
        begin_generation(left)
        _hand_over(self._state, world, rendezvous, left)
        if before is not None and world.rank in rendezvous.returning:
            _stay_apart(world, rendezvous, before.world.members.lineage)
        self._agent.send(Joined(generation=rendezvous.generation))
        what = f"{format_ranks(newcomers, noun=True)} joined"
        if not newcomers:
            what = f"{format_ranks(left, noun=True)} became the primary"
        _log.log(
            logging.WARNING if world.rank == left[0] else logging.INFO,
            "elastic: generation %d: %s",
            rendezvous.generation,
            what,
        )
        after = current_communicator()
        thread = threading.Thread(
            target=_retire,
            args=(before, after, agreement, self._agent),
            name="bluecomm-retirement",
            daemon=True,
        )
        self._threads = [one for one in self._threads if one.is_alive()]
        self._threads.append(thread)
        thread.start()

    def _on_news(self, news: News) -> None:
        """Act on a frame of the launcher. Runs in the connection's thread."""
        if isinstance(news, Invite):
            self._on_invite(news)
        elif isinstance(news, LeaveNotice):
            self._must_leave = True
        elif self._next is None:
            return
        elif isinstance(news, JoinOpen) and news.generation == self._next.generation:
            self._next.open()
        elif (
            isinstance(news, JoinCancelled) and news.generation == self._next.generation
        ):
            self._next.cancel()
            self._next = None

    def _on_invite(self, invite: Invite) -> None:
        size = len(invite.stays)
        is_willing = not refuses_newcomers()
        has_grown = size > current_communicator().size
        if not is_willing or (has_grown and refuses_growth(size)):
            with contextlib.suppress(BluecommError):  # the reading thread reports it
                self._agent.send(Admits(willing=is_willing))
            return
        base = current_process().rendezvous
        assert isinstance(base, AgentRendezvous)
        peers = current_communicator().world.peers
        known = {peer.rank: dataclasses.asdict(peer) for peer in peers}
        rendezvous = GenerationRendezvous(base, invite, self._agent.open_feed(), known)
        self._next = NextGeneration(
            rendezvous, self._agent, self._state, self._counting, self._has_ended
        )
        self._threads.append(self._next.thread)


class NextGeneration:
    """A generation from its invitation to the agreement on its first check.

    Args:
        rendezvous: Rendezvous of its ranks.
        agent: Connection to the launcher.
        state: The state whose checks are counted.
        counting: Held while a check is counted.
        has_ended: Set when the training has ended.

    Attributes:
        agreement: The agreement, once it has begun.
        everybody: All of its ranks, once there is an agreement.
    """

    def __init__(
        self,
        rendezvous: GenerationRendezvous,
        agent: AgentConnection,
        state: ObjectState,
        counting: threading.Lock,
        has_ended: threading.Event,
    ) -> None:
        self.generation = rendezvous.generation
        self.agreement: Regrouping | None = None
        self.everybody: Communicator
        self._rendezvous = rendezvous
        self._agent = agent
        self._state = state
        self._counting = counting
        self._has_ended = has_ended
        # Set when the launcher has opened or cancelled the generation.
        self._is_decided = threading.Event()
        self._is_cancelled = False
        self.thread = threading.Thread(
            target=self._run, name="bluecomm-generation", daemon=True
        )
        self.thread.start()

    def open(self) -> None:
        """Begin the agreement as soon as the world exists."""
        self._is_decided.set()

    def cancel(self) -> None:
        """End the world, unless the ranks have begun to agree on its first check."""
        self._is_cancelled = True
        self._is_decided.set()

    def _run(self) -> None:
        try:
            everybody = current_process().prepare(self._rendezvous)
            self._agent.send(JoinReady(generation=self.generation))
        except GenerationCancelled as error:
            _log.info("%s", error)
            self._rendezvous.close()
            return
        except Exception as error:
            _log.warning("elastic: no newcomer can join: %s", error)
            self._rendezvous.close()
            with contextlib.suppress(BluecommError):
                self._agent.send(Admits(willing=False))
                if self._rendezvous.assignment.splits:
                    # The network may be cut again, but heal later.
                    has_ended = self._has_ended.wait(_AGAIN_S)
                    if not (has_ended or refuses_newcomers()):
                        self._agent.send(Admits(willing=True))
                        # The training may end here, and its word must be the last.
                        if self._has_ended.is_set():
                            self._agent.send(Admits(willing=False, has_ended=True))
            return
        self._is_decided.wait()
        with self._counting:
            if not self._is_cancelled:
                self.everybody = everybody
                self.agreement = Regrouping(
                    _for_agreement(everybody.world),
                    _NAME,
                    lead=1,
                    begun=self._state.begun_checks,
                    opens=True,
                    sides=self._rendezvous.sides,
                )
                return
        everybody.world.retire()
        self._rendezvous.close()


def _for_agreement(world: World) -> Communicator:
    """Return all ranks of a world, for calls that fail when they need a lost one."""
    return Communicator(world, range(world.size), owner=_NAME)


def _hand_over(
    state: ObjectState,
    world: World,
    rendezvous: GenerationRendezvous,
    left: Sequence[int],
) -> None:
    """Give the newcomers the state of the lowest rank that is no newcomer.

    Ranks that have trained apart keep their models, and the donor's state says how far
    the training is.
    """
    newcomers = rendezvous.newcomers
    takers = [rank for rank in newcomers if rank in left]
    donors = [rank for rank in left if rank not in newcomers]
    keeps = world.rank in rendezvous.returning
    if not donors:
        if keeps:
            return  # it is cut off once more, and goes on as before
        raise PeerLostError(
            f"elastic.run on rank {world.rank}: all ranks with the state are lost",
            rank=world.rank,
            peers=[rank for rank in range(world.size) if rank not in left],
        )
    donor = donors[0]
    ranks = sorted([donor, *takers])
    if not takers or world.rank not in ranks:
        return
    group = Communicator(world, ranks, owner="elastic.hand_over")
    if keeps:
        state.save()
    try:
        state.hand_over(group, donor, "elastic.hand_over", keeps=keeps)
    except BluecommError as error:
        if keeps:
            state.restore()
            _go_on_apart(world, donors, error)
            return
        if world.rank != donor:
            raise
        _log.warning("elastic: a newcomer could not take over the state: %s", error)
    finally:
        group.free()


def _go_on_apart(world: World, donors: Sequence[int], error: BluecommError) -> None:
    """Go on as before if a rank that was to return is cut off once more.

    Raises:
        BluecommError: A rank with the state is left, so this one must not go on with
            another state. ``run`` does not retry, and bfrun starts the rank again.
    """
    if world.members.await_gone(donors, _GONE_S):
        _log.info("elastic: the others cannot be reached any more: %s", error)
        return
    raise BluecommError(
        f"elastic.run on rank {world.rank}: it could not take over the state of rank "
        f"{donors[0]}: {error}; bfrun starts this rank again",
        rank=world.rank,
        peers=donors[:1],
    ) from error


def _stay_apart(world: World, rendezvous: GenerationRendezvous, lineage: str) -> None:
    """Keep the name of a lineage if the primary, which has saved, has finished."""
    primary = [rank for rank in range(world.size) if rank not in rendezvous.newcomers]
    members = world.members
    all_gone = members.await_gone(primary, 0.0)
    has_finished = any(members.has_finished(rank) for rank in primary)
    if all_gone and has_finished and members.lineage == PRIMARY:
        members.lineage = lineage


def _retire(
    before: Communicator | None,
    after: Communicator,
    agreement: Regrouping,
    agent: AgentConnection,
) -> None:
    """End the world before, once no rank needs it any more.

    Ranks that have yet to change may need this rank for an agreement after a loss. So
    all ranks wait until all have changed, and then until none reacts to losses in the
    world before.
    """
    with contextlib.suppress(BluecommError):  # this world ends, too
        _await_all(after, f"{_NAME}.changed")
        agreement.close()
        if before is not None:
            before.world.members.forget_listeners()
        _await_all(after, f"{_NAME}.detached")
    if before is not None:
        before.world.retire()
        if before.world.news is not None:
            agent.close_feed(before.world.news)


def _await_all(comm: Communicator, name: str) -> None:
    """Block the calling thread until all ranks have called this."""
    call = Call("barrier", "uint8", (0,), NO_MEMORY, NO_MEMORY, (), lambda _: None)
    call.name = name
    handle = comm.start(call)
    finished = threading.Event()
    handle.on_finish(finished.set)
    # Operations have deadlines, so this ends.
    finished.wait()
    handle.wait()
