"""Random schedules of joins: losses, leaves and splits at any time; late frames."""

import collections
import random

import pytest

from bfrun.driver.admissions import Admissions
from bfrun.frames.driver_to_rank import Invite, JoinCancelled, JoinOpen, JoinTable

SCHEDULES = 2000
LOSSES = 6
LEAVES = 3
SPLITS = 4


class Process:
    """One process of a rank. It answers each frame after any time."""

    def __init__(self, rank, stay):
        self.rank = rank
        self.stay = stay
        self.is_newcomer = stay > 0
        self.stays = None  # those of the generation in which it trains
        self.invited = None
        self.has_met = False
        self.opened = None
        self.generation = 0  # in which it trains
        self.lineage = "primary"
        # Its lineage when it was ready for the generation to which it is invited.
        self.ready_in = "primary"
        self.inbox = collections.deque()

    def take(self, job):
        """Take the next frame, or change to a generation that is open."""
        if self.opened is not None and (not self.inbox or job.random.random() < 0.5):
            self.move(job)
            return
        frame = self.inbox.popleft()
        if isinstance(frame, Invite):
            # It has built its model in the world of the first meeting.
            assert not (self.is_newcomer and self.has_met)
            self.invited = frame
            job.say(self, "publish", frame.generation, self.stay)
        elif self.invited is None or frame.generation != self.invited.generation:
            assert isinstance(frame, JoinCancelled)
        elif isinstance(frame, JoinTable):
            told = [-1 if stay is None else stay for stay in frame.records]
            assert told == self.invited.stays
            self.has_met = True
            self.ready_in = self.lineage
            job.say(self, "ready", frame.generation)
        elif isinstance(frame, JoinOpen):
            self.opened = self.invited
        else:
            # A rank may have changed to it otherwise.
            assert self.opened is None
            self.invited = None

    def move(self, job):
        assert self.stays is None or self.opened.generation > self.generation
        job.check_side(self)
        self.stays, self.opened = self.opened.stays, None
        self.generation, self.lineage = self.invited.generation, "primary"
        job.say(self, "moved", self.generation)
        self.invited = None
        if self.is_newcomer:
            self.is_newcomer = False
            job.say(self, "set_willing", True)


class Job:
    """The driver, and processes that it starts again."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.size = self.random.randint(2, 5)
        self.admissions = Admissions(self.size)
        self.alive = {rank: Process(rank, 0) for rank in range(self.size)}
        # Messages on their way to the driver, by rank, oldest first.
        self.said = {rank: collections.deque() for rank in range(self.size)}
        self.ready = collections.defaultdict(set)
        self.losses = LOSSES
        self.leaves = LEAVES
        self.splits = SPLITS
        self.adopted = {}  # by generation, the lineage of those that take the lead
        self.stays = [0] * self.size
        for process in self.alive.values():
            process.stays = [0] * self.size
            self.say(process, "set_willing", True)

    def say(self, process, what, *arguments):
        self.said[process.rank].append((what, process.stay, arguments))

    def lose(self):
        """Lose a rank, but not the last one that has the state."""
        trained = [p.rank for p in self.alive.values() if not p.is_newcomer]
        ranks = [r for r in self.alive if trained != [r]]
        if ranks:
            self.losses -= 1
            gone = self.alive.pop(self.random.choice(ranks))
            self.say(gone, "ended")

    def leave(self):
        """End the training of a rank, and then the rank, but not of the last one."""
        self.leaves -= 1
        trained = [p.rank for p in self.alive.values() if not p.is_newcomer]
        if len(trained) > 1:
            gone = self.alive.pop(self.random.choice(trained))
            self.say(gone, "set_willing", False, False, True)
            self.say(gone, "ended")

    def end_stranded(self):
        for rank in self.admissions.take_stranded():
            if rank in self.alive:
                stranded = self.alive.pop(rank)
                assert stranded.is_newcomer
                self.say(stranded, "ended")

    def split(self):
        """Have some ranks of one world and lineage leave the others."""
        self.splits -= 1
        trained = [p for p in self.alive.values() if not p.is_newcomer]
        if not trained:
            return
        first = self.random.choice(trained)
        side = (first.generation, first.lineage)
        others = [p for p in trained if (p.generation, p.lineage) == side]
        leavers = {first, *(p for p in others if self.random.random() < 0.5)}
        ranks = sorted(process.rank for process in leavers)
        lineage = f"{self.splits}-{ranks}"
        for process in leavers:
            process.lineage = lineage
            self.say(process, "split", lineage, process.generation, ranks)
        for teller in {*others} - leavers:
            for gone in leavers:
                self.say(teller, "doubt", gone.rank, gone.stay, side[0])

    def check_side(self, process):
        """Check that a side of a generation has the ranks of one lineage only."""
        invite = process.opened
        side = invite.sides[process.rank] if invite.sides else 0
        if not process.is_newcomer:
            known = self.adopted.setdefault((invite.generation, side), process.ready_in)
            assert known == process.ready_in

    def hear(self, rank):
        what, stay, arguments = self.said[rank].popleft()
        if what == "ready":
            self.ready[arguments[0]].add(rank)
        if what == "doubt":
            self.doubt(rank, *arguments)
            return
        answers = getattr(self.admissions, what)(rank, *arguments)
        self.send(answers[1] if what == "moved" else answers)
        self.end_stranded()
        if what == "ended":
            self.stays[rank] = stay + 1
            self.admissions.respawned(rank, stay + 1)
            newcomer = self.alive[rank] = Process(rank, stay + 1)
            self.say(newcomer, "asked")

    def doubt(self, teller, rank, stay, generation):
        """Have the driver doubt a rank, unless it is known to be apart."""
        known = stay == self.stays[rank] and teller in self.admissions.present
        if known and not {teller, rank} & self.admissions.apart:
            self.admissions.doubt(rank, generation)

    def send(self, answers):
        for ranks, frame in answers:
            if isinstance(frame, JoinOpen):
                assert self.ready[frame.generation].issuperset(ranks)
            for rank in ranks:
                if rank in self.alive:
                    self.alive[rank].inbox.append(frame)

    def turn(self):
        """Do one of the things that may happen next; return whether there is one."""
        busy = [p for p in self.alive.values() if p.inbox or p.opened is not None]
        steps = [lambda p=process: p.take(self) for process in busy]
        steps += [lambda r=rank: self.hear(r) for rank in self.said if self.said[rank]]
        if not steps and not (self.losses or self.leaves or self.splits):
            return False
        if self.splits and (not steps or self.random.random() < 0.05):
            self.split()
        elif self.losses and (not steps or self.random.random() < 0.1):
            self.lose()
        elif self.leaves and (not steps or self.random.random() < 0.1):
            self.leave()
        else:
            self.random.choice(steps)()
        return True


@pytest.mark.parametrize("first", range(0, SCHEDULES, 500))
def test_all_ranks_train_together_in_the_end(first):
    for seed in range(first, first + 500):
        job = Job(seed)
        turns = 0
        while job.turn():
            turns += 1
            assert turns < 5000, seed
        found = [process.stays for process in job.alive.values()]
        assert found == [job.stays] * job.size, seed
        assert job.admissions.present == {*range(job.size)}, seed
        assert job.admissions.is_possible, seed
        assert {p.lineage for p in job.alive.values()} == {"primary"}, seed
