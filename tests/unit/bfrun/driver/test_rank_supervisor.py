"""Notices that the driver gives to ranks, and ranks that it has killed."""

import signal
from types import SimpleNamespace

from bfrun.config import LaunchConfig
from bfrun.driver.rank_supervisor import RankSupervisor
from bfrun.driver.shutdown import Shutdown
from bfrun.frames.agent_to_driver import FromRank, RankExited
from bfrun.frames.driver_to_agent import SignalRanks
from bfrun.frames.driver_to_rank import StopNotice
from bfrun.frames.rank_to_agent import Hello
from bfrun.frames.rank_to_driver import Publish, RankExcluded, StopRequest


class FakeRouter:
    """Notes what it is asked to send."""

    def __init__(self):
        self.sent = []

    def to_all_ranks(self, frame):
        self.sent.append(("all", frame))

    def to_ranks(self, ranks, frame):
        self.sent.append((tuple(ranks), frame))

    def to_agent_of(self, rank, frame):
        self.sent.append((rank, frame))

    def answer(self, answers):
        self.sent.extend(answers)


def test_a_notice_reaches_all_ranks_once_and_those_that_connect_later():
    plan = SimpleNamespace(host_of_rank={0: "a", 1: "a"}, world_size=2)
    router, said = FakeRouter(), []
    config = LaunchConfig(command=("x",))
    supervisor = RankSupervisor(plan, config, router, Shutdown(), said.append, None)
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
    plan = SimpleNamespace(host_of_rank={0: "a", 1: "a"}, world_size=2)
    router, said = FakeRouter(), []
    config = LaunchConfig(command=("x",), on_failure="continue", respawn=True)
    supervisor = RankSupervisor(plan, config, router, Shutdown(), said.append, None)

    def tell(rank, frame):
        supervisor.handlers[FromRank](FromRank(rank=rank, frame=frame.to_message()))

    for rank in (0, 1):
        tell(rank, Publish(round=0, record={}))
    supervisor.handlers[RankExited](RankExited(rank=1, pid=7, status=-9))
    supervisor.membership.respawn(1)
    router.sent.clear()
    # An earlier process of the rank is meant.
    tell(0, RankExcluded(rank=1, cause="stopped", seconds=0.5, stay=0))
    supervisor.step(0.0)
    assert router.sent == []
    tell(0, RankExcluded(rank=1, cause="stopped", seconds=0.5, stay=1))
    supervisor.step(0.0)
    assert router.sent[-1] == (1, SignalRanks(signum=signal.SIGKILL, ranks=[1]))
    assert "rank 1 on a (pid 0) has been stopped for 0.5 s" in said[-1]
