"""Random schedules of lost connections, deaths, exclusions and drivers that take over.

Ranks must be told of a loss only if it is certain, or if the others have excluded the
rank. When a driver learns what an agent has reported before, it must kill lost ranks
that still run before they hear of other losses, because each of them could find that
all others are gone.
"""

import random

import pytest

from bfrun.config import LaunchConfig
from bfrun.driver.rank_supervisor import RankSupervisor
from bfrun.driver.shutdown import Shutdown
from bfrun.frames.agent_to_driver import FromRank, RankExited, RankStarted
from bfrun.frames.driver_to_agent import SignalRanks
from bfrun.frames.driver_to_rank import RankLost
from bfrun.frames.rank_to_driver import RankExcluded
from bfrun.hosts import Host
from bfrun.plan import make_plan

HOSTS = {"a": [0, 1, 2], "b": [3, 4], "c": [5]}
HOST_OF = {rank: name for name, ranks in HOSTS.items() for rank in ranks}
CONFIG = LaunchConfig(
    command=("x",),
    hosts=tuple(Host(name, len(ranks)) for name, ranks in HOSTS.items()),
    on_failure="continue",
)
PLAN = make_plan(CONFIG, {}, {})


class World:
    """The hosts of a job as they are, and what the driver knows of them.

    It is also the driver's router.
    """

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.time = 0.0
        self.alive = set(HOST_OF)
        self.excluded = set()
        self.gone_hosts = set()
        self.reached = set(HOSTS)
        self.history = {name: [] for name in HOSTS}
        self.catches_up = False
        self.driver = None
        for rank in HOST_OF:
            self.report(rank, RankStarted(rank=rank, pid=100 + rank))
        self.take_over()

    # The router

    def reaches(self, rank):
        return HOST_OF[rank] in self.reached

    def answer(self, answers):
        pass

    def to_all_ranks(self, frame):
        self.to_ranks(HOST_OF, frame)

    def to_ranks(self, ranks, frame):
        known = [] if self.driver is None else self.driver.membership.losses
        for rank in [loss.rank for loss in known if self.catches_up]:
            hears = rank in ranks and self.reaches(rank) and rank in self.alive
            assert not hears, f"rank {rank} hears of {frame}"
        if isinstance(frame, RankLost):
            assert frame.rank not in self.alive - self.excluded, frame

    def to_agent_of(self, rank, frame):
        assert isinstance(frame, SignalRanks)
        assert frame.ranks == [rank]
        assert rank not in self.alive - self.excluded, f"rank {rank} is killed"
        if self.reaches(rank) and rank in self.alive:
            self.exit(rank)

    # Events

    def report(self, rank, frame):
        """Have the agent of a rank report something."""
        self.time += 1.0
        name = HOST_OF[rank]
        self.history[name].append((self.time, frame))
        if self.driver is not None and name in self.reached:
            self.driver.handlers[type(frame)](frame)

    def exit(self, rank):
        self.alive.discard(rank)
        self.report(rank, RankExited(rank=rank, pid=100 + rank, status=-9))

    def exclude(self):
        """Let some ranks go on without the others, who hold."""
        members = sorted(self.alive - self.excluded)
        if len(members) > 2:
            left_out = self.random.sample(
                members, self.random.randrange(len(members) // 2)
            )
            self.excluded |= set(left_out)
            for teller in set(members) - set(left_out):
                for rank in left_out:
                    what = RankExcluded(rank=rank, cause="silent", seconds=0.5)
                    self.report(teller, FromRank(rank=teller, frame=what.to_message()))
            self.driver.step(0.0)

    def cut(self):
        self.reached.discard(self.random.choice(sorted(HOSTS)))

    def heal(self):
        for name in sorted(HOSTS.keys() - self.reached - self.gone_hosts):
            if self.random.random() < 0.5:
                self.reached.add(name)
                self.catches_up = True
                self.driver.reunite(HOSTS[name], self.history[name])
                self.catches_up = False

    def kill_agent(self):
        """End all processes of a host. A relay may prove it at once, or later."""
        name = self.random.choice(sorted(HOSTS))
        if any(
            rank in self.alive - self.excluded for rank in set(HOST_OF) - {*HOSTS[name]}
        ):
            self.gone_hosts.add(name)
            self.reached.discard(name)
            self.alive -= set(HOSTS[name])
            if self.random.random() < 0.5:
                self.driver.agent_lost(HOSTS[name], "gone", 0.0)

    def give_up(self):
        """Stop looking for an agent, although nothing proves its end."""
        unreached = sorted(HOSTS.keys() - self.reached)
        if unreached:
            name = self.random.choice(unreached)
            self.driver.agent_lost(HOSTS[name], "?", 0.0, is_certain=False)
            self.gone_hosts.add(name)

    def take_over(self):
        """Replace the driver by another one, which reaches some of the agents."""
        self.driver = RankSupervisor(
            PLAN, CONFIG, self, Shutdown(), lambda text: None, None
        )
        reports = [one for name in self.reached for one in self.history[name]]
        self.catches_up = True
        self.driver.replay(0.0, sorted(reports, key=lambda report: report[0]))
        self.catches_up = False
        for name in self.gone_hosts:
            self.driver.agent_lost(HOSTS[name], "gone", 0.0, is_certain=False)

    def exit_one(self):
        members = sorted(self.alive - self.excluded)
        if len(members) > 1:
            self.exit(self.random.choice(members))


@pytest.mark.parametrize("first_seed", range(0, 2000, 500))
def test_nobody_is_told_of_an_end_that_is_not_certain(first_seed):
    told = 0
    for seed in range(first_seed, first_seed + 500):
        world = World(seed)
        events = [
            *(world.exclude, world.cut, world.heal, world.heal, world.exit_one),
            *(world.kill_agent, world.give_up, world.take_over),
        ]
        for _ in range(world.random.randrange(4, 16)):
            world.random.choice(events)()
        told += len(world.driver.membership.losses)
        for name in sorted(HOSTS.keys() - world.reached - world.gone_hosts):
            world.reached.add(name)
            world.driver.reunite(HOSTS[name], world.history[name])
        for rank in sorted(world.alive):
            world.exit(rank)
        for name in world.gone_hosts:
            world.driver.agent_lost(HOSTS[name], "gone", 0.0)
        assert world.driver.membership.all_ended, seed
    assert told > 500
