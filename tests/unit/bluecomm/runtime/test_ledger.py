"""The agreement on transactions after a loss, under random schedules."""

import os
import random

import pytest

from bluecomm.runtime.epochs.ledger import Decision, Ledger, Standing

NAMES = ("loss", "metric")
CALLS = 6
SEEDS = int(os.environ.get("LEDGER_SCHEDULES", "100"))


class OpenCall:
    """A transaction that a simulated rank has started and not released."""

    def __init__(self):
        self.slot = None  # name and number in this epoch
        self.result = None
        self.has_entered = False


class Job:
    """The engine's view: who has started and entered what, in each epoch."""

    def __init__(self, size, seed):
        self.random = random.Random(seed)
        self.size = size
        self.gone = []
        self.started = {}  # (epoch, slot): ranks
        self.entered = {}
        self.reports = {}  # epoch: {rank: report}
        self.standings = {}
        self.ranks = [Rank(self, rank) for rank in range(size)]

    def members(self, epoch):
        return [rank for rank in range(self.size) if rank not in self.gone[:epoch]]

    def all_in(self, table, epoch, slot):
        return set(self.members(epoch)) <= table.get((epoch, slot), set())

    def run(self, crashes):
        """Run until nothing can happen any more."""
        while True:
            living = [rank for rank in self.ranks if rank.number not in self.gone]
            actions = [action for rank in living for action in rank.actions()]
            if not actions:
                return living
            if crashes and len(living) > 1 and self.random.random() < 0.03:
                self.gone.append(self.random.choice(living).number)
                crashes -= 1
                continue
            self.random.choice(actions)()


class Rank:
    """One rank of a simulated job: its program, and the states of docs/survival.md."""

    def __init__(self, job, number):
        self.job, self.number = job, number
        self.program = [name for name in NAMES for _ in range(CALLS)]
        random.Random(job.size).shuffle(self.program)
        self.ledger = Ledger()
        self.open = {}
        self.released = {}
        self.epoch = 0
        self.step = 2  # 0 and 1: the exchanges; 2: settled
        self.slots = {}  # name: calls in this epoch

    def actions(self):
        if len(self.job.gone) > self.epoch:
            yield self.learn
        if self.step < 2:
            told = (self.job.reports, self.job.standings)[self.step]
            posted = told.setdefault(self.epoch, {})
            if self.number not in posted:
                yield self.post
            elif set(self.job.members(self.epoch)) <= set(posted):
                yield self.proceed
        if self.program and len(self.open) < 3:
            yield self.start
        if self.step == 2:
            for key, call in self.open.items():
                yield from self.actions_of(key, call)

    def actions_of(self, key, call):
        job, epoch = self.job, self.epoch
        if call.result is None:
            if job.all_in(job.started, epoch, call.slot):
                yield lambda: setattr(call, "result", tuple(job.members(epoch)))
        elif not call.has_entered:
            earlier = [k for k in self.open if k[0] == key[0] and k[1] < key[1]]
            if all(self.open[k].has_entered for k in earlier):
                yield lambda: self.enter(call)
        elif job.all_in(job.entered, epoch, call.slot):
            yield lambda: self.release(key)

    def start(self):
        key = self.ledger.begin(self.program.pop(0))
        self.open[key] = OpenCall()
        if self.step == 2:
            self.submit(key)

    def submit(self, key):
        name = key[0]
        call = self.open[key] = OpenCall()
        call.slot = name, self.slots.get(name, 0)
        self.slots[name] = call.slot[1] + 1
        self.job.started.setdefault((self.epoch, call.slot), set()).add(self.number)

    def enter(self, call):
        call.has_entered = True
        self.job.entered.setdefault((self.epoch, call.slot), set()).add(self.number)

    def release(self, key):
        assert key not in self.released
        self.released[key] = self.open.pop(key).result
        self.ledger.release(key)

    def learn(self):
        self.epoch = self.job.random.randint(self.epoch + 1, len(self.job.gone))
        self.step = 0

    def post(self):
        if self.step == 0:
            self.job.reports[self.epoch][self.number] = self.ledger.report()
        else:
            mine = self.ledger.standings(self.said(self.job.reports))
            self.job.standings[self.epoch][self.number] = mine

    def said(self, table):
        told = table[self.epoch]
        return [told[rank] for rank in self.job.members(self.epoch)]

    def proceed(self):
        self.step += 1
        if self.step == 1:
            return
        decisions = self.ledger.judge(
            self.said(self.job.reports), self.said(self.job.standings)
        )
        self.slots.clear()
        for key in list(self.open):
            if decisions.get(key, (Decision.REPEAT, ""))[0] is Decision.RELEASE:
                self.release(key)
            else:
                self.submit(key)


@pytest.mark.parametrize("size", [2, 3, 4, 6])
def test_survivors_release_each_call_once_with_one_result(size):
    for seed in range(SEEDS):
        job = Job(size, seed)
        living = job.run(crashes=seed % size)
        for rank in living:
            story = f"seed {seed}: rank {rank.number} of {size}, gone {job.gone}"
            assert not rank.program, story
            assert not rank.open, story
            assert len(rank.released) == len(NAMES) * CALLS, story
            assert rank.released == living[0].released, story
            for result in rank.released.values():
                assert rank.number in result, story


def settled(*ledgers):
    """Return the decisions that these ranks agree on."""
    reports = [ledger.report() for ledger in ledgers]
    standings = [ledger.standings(reports) for ledger in ledgers]
    decisions = [ledger.judge(reports, standings) for ledger in ledgers]
    assert all(one == decisions[0] for one in decisions)
    return decisions[0]


def test_what_somebody_has_released_is_released_by_all():
    first, second = Ledger(), Ledger()
    key = first.begin("loss")
    assert second.begin("loss") == key
    first.release(key)
    assert settled(first, second) == {key: (Decision.RELEASE, "")}


def test_a_call_that_nobody_has_released_is_repeated():
    first, second = Ledger(), Ledger()
    key = first.begin("loss")
    assert settled(first, second) == {key: (Decision.REPEAT, "")}


def test_a_call_that_cannot_be_repeated_fails_on_ranks_that_call_it_later():
    first, second = Ledger(), Ledger()
    key = first.begin("loss")
    first.forbid(key, "no input")
    assert settled(first, second) == {key: (Decision.FAIL, "no input")}
    assert second.failure_of(second.begin("loss")) == "no input"
    assert second.report() == [["loss", 0, "no input"]]


def test_a_failure_is_known_after_the_next_loss_too():
    first, second, third = Ledger(), Ledger(), Ledger()
    key = first.begin("loss")
    first.forbid(key, "no input")
    settled(first, second, third)
    first.fail(key, "no input")
    assert settled(second, Ledger()) == {key: (Decision.FAIL, "no input")}
    assert second.standings([first.report()]) == [Standing.FAILED]
