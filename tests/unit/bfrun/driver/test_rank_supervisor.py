"""Notices that the driver gives to ranks, and ranks that it has killed."""

import signal
import time
from dataclasses import replace

from bfrun.config import LaunchConfig
from bfrun.driver.rank_supervisor import RankSupervisor
from bfrun.driver.shutdown import Shutdown
from bfrun.frames.agent_to_driver import FromRank, RankExited
from bfrun.frames.driver_to_agent import SignalRanks
from bfrun.frames.driver_to_rank import Invite, RankLost, StopNotice
from bfrun.frames.rank_to_agent import Hello
from bfrun.frames.rank_to_driver import (
    Admits,
    AskToJoin,
    Failing,
    Joined,
    JoinReady,
    JoinRecord,
    Publish,
    RankApart,
    RankExcluded,
    StopRequest,
    ThreadFailed,
)
from bfrun.hosts import Host
from bfrun.plan import make_plan

CONFIG = LaunchConfig(command=("x",), hosts=(Host("a", 2),))


class FakeRouter:
    """Notes what it is asked to send."""

    def __init__(self):
        self.sent = []
        self.unreached = set()

    def reaches(self, rank):
        return rank not in self.unreached

    def to_all_ranks(self, frame):
        self.sent.append(("all", frame))

    def to_ranks(self, ranks, frame):
        self.sent.append((tuple(ranks), frame))

    def to_agent_of(self, rank, frame):
        self.sent.append((rank, frame))

    def answer(self, answers):
        self.sent.extend(answers)


def test_a_notice_reaches_all_ranks_once_and_those_that_connect_later():
    plan = make_plan(CONFIG, {}, {})
    router, said = FakeRouter(), []
    supervisor = RankSupervisor(plan, CONFIG, router, Shutdown(), said.append, None)
    hello, tell = supervisor.handlers[Hello], supervisor.handlers[FromRank]
    hello(Hello(rank=0, pid=70))
    assert router.sent == []
    tell(FromRank(rank=0, frame=StopRequest().to_message()))
    supervisor.give_notice("SIGUSR1")
    hello(Hello(rank=1, pid=71))
    assert router.sent == [("all", StopNotice()), ((1,), StopNotice())]
    (text,) = said
    assert text.startswith("bfrun: rank 0 has got a signal: told all ranks that")


def test_a_newcomer_that_the_others_exclude_is_killed():
    plan = make_plan(CONFIG, {}, {})
    router, said = FakeRouter(), []
    config = replace(CONFIG, on_failure="continue", respawn=True)
    supervisor = RankSupervisor(plan, config, router, Shutdown(), said.append, None)

    def tell(rank, frame):
        supervisor.handlers[FromRank](FromRank(rank=rank, frame=frame.to_message()))

    for rank in (0, 1):
        tell(rank, Publish(round=0, record={}))
    supervisor.handlers[RankExited](RankExited(rank=1, pid=7, status=-9))
    supervisor.membership.start_newcomer(1, "a")
    router.sent.clear()
    # An earlier process of the rank is meant.
    tell(0, RankExcluded(rank=1, cause="stopped", seconds=0.5, stay=0))
    supervisor.step(0.0)
    assert router.sent == []
    tell(0, RankExcluded(rank=1, cause="stopped", seconds=0.5, stay=1))
    supervisor.step(0.0)
    assert router.sent[-1] == (1, SignalRanks(signum=signal.SIGKILL, ranks=[1]))
    assert "rank 1 on a (pid 0) has been stopped for 0.5 s" in said[-1]


def job_of_two_hosts():
    """Return the supervisor of ranks 0-2 on host a and 3-4 on b, which have met."""
    hosts = (Host("a", 3), Host("b", 2))
    config = LaunchConfig(command=("x",), hosts=hosts, on_failure="continue")
    plan = make_plan(config, {}, {})
    router, said = FakeRouter(), []
    supervisor = RankSupervisor(plan, config, router, Shutdown(), said.append, None)
    for rank in range(5):
        tell(supervisor, rank, Publish(round=0, record={}))
    router.sent.clear()
    return supervisor, router, said


def tell(supervisor, rank, frame):
    supervisor.handlers[FromRank](FromRank(rank=rank, frame=frame.to_message()))


def kill(rank):
    return (rank, SignalRanks(signum=signal.SIGKILL, ranks=[rank]))


def lost_ranks(sent):
    return [(to, frame.rank) for to, frame in sent if isinstance(frame, RankLost)]


def test_excluded_ranks_of_an_agent_that_is_back_are_killed_first():
    supervisor, router, said = job_of_two_hosts()
    router.unreached = {3, 4}
    for rank in (3, 4):
        tell(supervisor, 0, RankExcluded(rank=rank, cause="silent", seconds=0.5))
    supervisor.step(0.0)
    assert lost_ranks(router.sent) == [("all", 3), ("all", 4)]
    assert len(router.sent) == 2  # nobody can kill them yet
    assert not supervisor.membership.all_ended_but({3, 4})
    for rank in (0, 1, 2):
        supervisor.handlers[RankExited](RankExited(rank=rank, pid=7, status=0))
    assert supervisor.membership.all_ended_but({3, 4})
    assert not supervisor.membership.all_ended_but({4})
    router.unreached = set()
    router.sent.clear()
    supervisor.reunite([3, 4], [(1.0, RankExited(rank=4, pid=8, status=1))])
    assert router.sent[0] == kill(3)  # the other one has ended
    assert lost_ranks(router.sent) == [((3, 4), 3), ((3, 4), 4)]
    assert supervisor.membership.members[4].ended
    assert len(said) == 2  # its failure is known


def test_ranks_that_an_agent_that_is_back_has_excluded_are_killed_first():
    supervisor, router, _ = job_of_two_hosts()
    reports = [
        (float(rank), FromRank(rank=3, frame=frame.to_message()))
        for rank in (0, 1, 2)
        for frame in [RankExcluded(rank=rank, cause="silent", seconds=0.5)]
    ]
    supervisor.reunite([3, 4], reports)
    assert router.sent[:3] == [kill(0), kill(1), kill(2)]
    assert lost_ranks(router.sent) == [("all", 0), ("all", 1), ("all", 2)]
    assert supervisor.membership.remaining == [3, 4]


def test_a_second_driver_kills_lost_ranks_before_it_tells_of_losses():
    supervisor, router, _ = job_of_two_hosts()
    excluded = RankExcluded(rank=3, cause="silent", seconds=0.5).to_message()
    reports = [
        (1.0, FromRank(rank=0, frame=excluded)),
        (2.0, RankExited(rank=0, pid=7, status=-9)),
    ]
    supervisor.replay(0.0, reports)
    assert router.sent[0] == kill(3)
    assert lost_ranks(router.sent) == [("all", 3), ("all", 0)]


def test_what_an_agent_says_again_is_not_shown_again():
    supervisor, _, said = job_of_two_hosts()
    damaged = ThreadFailed(thread="t", error="KeyError").to_message()
    reports = [
        (1.0, FromRank(rank=3, frame=damaged)),
        (2.0, RankExited(rank=4, pid=8, status=-9)),
    ]
    for _, frame in reports:
        supervisor.handlers[type(frame)](frame)
    before = list(said)
    assert len(before) == 2
    supervisor.reunite([3, 4], reports)
    assert said == before


def test_other_ranks_are_not_told_of_an_end_that_is_not_proven():
    supervisor, router, said = job_of_two_hosts()
    supervisor.agent_lost([3, 4], "it cannot be reached", 0.0, is_certain=False)
    assert router.sent == []
    assert "rank 3 on b is lost with its agent: it cannot be reached" in said[0]
    assert supervisor.membership.remaining == [0, 1, 2]
    supervisor.reunite([0, 1, 2], [])
    assert router.sent == []


def willing_ranks(config):
    """Return the supervisor of two ranks that let newcomers in, a router and a list."""
    router, said = FakeRouter(), []
    plan = make_plan(config, {}, {})
    supervisor = RankSupervisor(plan, config, router, Shutdown(), said.append, None)
    for rank in (0, 1):
        tell(supervisor, rank, Publish(round=0, record={}))
        tell(supervisor, rank, Admits(willing=True))
    return supervisor, router, said


def test_excluded_ranks_that_may_train_apart_are_not_killed_at_once():
    config = replace(CONFIG, on_failure="continue", respawn=True, partition="both")
    supervisor, router, said = willing_ranks(config)
    router.sent.clear()
    excluded = RankExcluded(rank=1, cause="silent", seconds=0.5)
    tell(supervisor, 0, excluded)
    supervisor.step(time.monotonic())
    assert router.sent == []
    tell(supervisor, 1, RankApart(lineage="l", generation=0, members=[1]))
    ((ranks, invite),) = router.sent
    assert (ranks, invite.newcomers, invite.sides) == ([0, 1], [1], [0, 1])
    assert said == [
        "bfrun: rank 1 could not reach the others, and trained on in the lineage l"
    ]
    supervisor.step(time.monotonic() + 1e6)
    assert len(router.sent) == 1
    tell(supervisor, 0, excluded.replace(cause="stopped"))
    supervisor.step(time.monotonic())
    assert router.sent[-1] == kill(1)


BROKEN = RankExcluded(rank=3, cause="broken", seconds=0.0)


def test_a_rank_whose_links_end_before_its_process_has_failed_by_its_signal():
    supervisor, router, said = job_of_two_hosts()
    tell(supervisor, 0, BROKEN)
    supervisor.step(time.monotonic())
    assert router.sent == said == []
    supervisor.handlers[RankExited](RankExited(rank=3, pid=73, status=-9))
    supervisor.step(time.monotonic() + 1e6)
    assert lost_ranks(router.sent) == [("all", 3)]
    (loss,) = supervisor.membership.losses
    assert (loss.cause, loss.exit_code) == ("SIGKILL", 137)
    (text,) = said
    assert "was killed by SIGKILL; the job goes on with 4 of 5 ranks" in text


def test_a_rank_whose_links_alone_have_ended_is_killed():
    supervisor, router, said = job_of_two_hosts()
    tell(supervisor, 0, BROKEN)
    tell(supervisor, 1, BROKEN)
    supervisor.step(time.monotonic() + 1e6)
    supervisor.step(time.monotonic())
    assert lost_ranks(router.sent) == [("all", 3)]
    assert router.sent[-1] == kill(3)
    (text,) = said
    assert "has lost its link to another rank" in text


def test_the_error_of_an_excluded_rank_is_not_the_reason_for_its_loss():
    supervisor, router, _ = job_of_two_hosts()
    tell(supervisor, 0, BROKEN)
    error = {"cause": "PeerLostError", "deed": "raised PeerLostError", "peers": []}
    tell(supervisor, 3, Failing(**error, reason="no member any more", status=1))
    assert lost_ranks(router.sent) == [("all", 3)]
    (loss,) = supervisor.membership.losses
    assert loss.cause == "cut off"


def test_an_excluded_rank_that_says_nothing_is_killed():
    config = replace(CONFIG, on_failure="continue", respawn=True, partition="both")
    router = FakeRouter()
    plan = make_plan(config, {}, {})
    supervisor = RankSupervisor(plan, config, router, Shutdown(), print, None)
    for rank in (0, 1):
        tell(supervisor, rank, Publish(round=0, record={}))
    tell(supervisor, 0, RankExcluded(rank=1, cause="silent", seconds=0.5))
    supervisor.step(time.monotonic() + config.link_timeout_s)
    assert kill(1) not in router.sent
    supervisor.step(time.monotonic() + config.link_timeout_s + 61.0)
    supervisor.step(time.monotonic())
    assert kill(1) in router.sent


def test_a_rank_that_was_excluded_from_an_earlier_world_is_not_doubted():
    config = replace(CONFIG, on_failure="continue", respawn=True, partition="both")
    router = FakeRouter()
    plan = make_plan(config, {}, {})
    supervisor = RankSupervisor(plan, config, router, Shutdown(), print, None)
    for rank in (0, 1):
        tell(supervisor, rank, Publish(round=0, record={}))
        tell(supervisor, rank, Admits(willing=True))
    excluded = RankExcluded(rank=1, cause="silent", seconds=0.5)
    tell(supervisor, 1, RankApart(lineage="l", generation=0, members=[1]))
    for frame in [JoinRecord(generation=1, record={}), JoinReady(generation=1)]:
        for rank in (0, 1):
            tell(supervisor, rank, frame)
    for rank in (0, 1):
        tell(supervisor, rank, Joined(generation=1))
    tell(supervisor, 0, excluded)  # it was late
    supervisor.step(time.monotonic() + 1e6)
    assert kill(1) not in router.sent
    tell(supervisor, 0, excluded.replace(generation=1))
    supervisor.step(time.monotonic() + 1e6)
    supervisor.step(time.monotonic())
    assert kill(1) in router.sent


def test_a_lost_rank_does_not_join_as_one_that_is_apart():
    config = replace(CONFIG, on_failure="continue", respawn=True, partition="both")
    supervisor, router, said = willing_ranks(config)
    tell(supervisor, 0, RankExcluded(rank=1, cause="stopped", seconds=0.5))
    tell(supervisor, 1, RankApart(lineage="l", generation=0, members=[1]))
    assert not [frame for _, frame in router.sent if isinstance(frame, Invite)]
    assert not [text for text in said if "trained on" in text]


def test_a_newcomer_whose_generation_was_cancelled_is_killed():
    config = replace(CONFIG, on_failure="continue", respawn=True)
    supervisor, router, said = willing_ranks(config)
    supervisor.handlers[RankExited](RankExited(rank=1, pid=8, status=-9))
    supervisor.membership.start_newcomer(1, "a")
    tell(supervisor, 1, AskToJoin())
    for rank in (0, 1):
        tell(supervisor, rank, JoinRecord(generation=1, record={}))
    tell(supervisor, 0, Admits(willing=False))
    supervisor.step(time.monotonic())
    assert router.sent[-1] == kill(1)
    why = "rank 0 cannot let newcomers in"
    assert said[-1] == f"bfrun: rank 1 cannot join, and is started again: {why}"
