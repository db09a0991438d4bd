"""Notices that the driver gives to the ranks."""

from types import SimpleNamespace

from bfrun.config import LaunchConfig
from bfrun.driver.rank_supervisor import RankSupervisor
from bfrun.driver.shutdown import Shutdown
from bfrun.frames.agent_to_driver import FromRank
from bfrun.frames.driver_to_rank import StopNotice
from bfrun.frames.rank_to_agent import Hello
from bfrun.frames.rank_to_driver import StopRequest


class FakeRouter:
    """Notes what it is asked to send."""

    def __init__(self):
        self.sent = []

    def to_all_ranks(self, frame):
        self.sent.append(("all", frame))

    def to_ranks(self, ranks, frame):
        self.sent.append((tuple(ranks), frame))


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
