"""The ranks that keep a ledger, in random schedules of messages and losses."""

import random
from collections import Counter, deque

import pytest

from bluecomm.data.dynamic.intervals import count
from bluecomm.data.dynamic.ledger import RecordLedger
from bluecomm.data.dynamic.messages import decode, encode
from bluecomm.data.dynamic.replica import _MOST_LEDGERS, Replica

NAME = "pass"
LENGTH = 40


class Rank:
    """A rank that leases records one after the other, until all are done."""

    def __init__(self, world, rank, size):
        self.world = world
        self.rank = rank
        self.replica = Replica(rank, range(size), self._send, self._on_answer)
        self.begin = RecordLedger.begin(LENGTH).state
        self.is_alive = True
        self.is_over = False
        self.known = 0  # losses that it knows
        self.number = 0
        self.waits = False
        self.held = []
        self.last = {}
        self.used, self.counted = Counter(), Counter()

    def _send(self, rank, message):
        self.world.links[self.rank, rank].append(encode(message))

    def step(self):
        """Make the next request, or repeat the one that waits."""
        if self.waits:
            self.replica.repeat(NAME, self.begin)
            return
        if self.is_over:
            return
        self.number += 1
        request = {"holder": str(self.rank), "number": self.number}
        request |= {"wants": True, "batch_size": 3, "ranks": len(self.replica.living)}
        request["lost"] = [str(rank) for rank in self.world.gone[: self.known]]
        request["finished"] = [lease["id"] for lease in self.held]
        self.waits = True
        self.replica.ask(NAME, request, self.begin)

    def _on_answer(self, name, reply):
        assert name == NAME
        assert self.waits
        self.waits = False
        for lease in self.held:
            if lease["id"] not in reply["refused"]:
                self.counted.update(positions(lease))
        self.held = [] if reply["granted"] is None else [reply["granted"]]
        for lease in self.held:
            self.used.update(positions(lease))
        self.is_over = reply["is_over"]

    def learn(self):
        """Learn of the next rank that has gone."""
        self.known += 1
        self.replica.lose(self.world.gone[: self.known])


def positions(lease):
    return [i for begin, end in lease["intervals"] for i in range(begin, end)]


class World:
    """Ranks, and links that keep the order of messages."""

    def __init__(self, seed, size, kills, losses):
        self.random = random.Random(seed)
        self.links = {(a, b): deque() for a in range(size) for b in range(size)}
        self.gone = []
        self.kills = kills
        self.losses = losses
        self.ranks = [Rank(self, rank, size) for rank in range(size)]

    @property
    def living(self):
        return [rank for rank in self.ranks if rank.is_alive]

    def run(self):
        for _ in range(50_000):
            if all(rank.is_over for rank in self.living):
                return
            self.act()
        raise AssertionError("the ranks do not end")

    def act(self):
        chance = self.random.random()
        if chance < 0.7:
            self.deliver()
        elif chance < 0.95:
            self.random.choice(self.living).step()
        elif chance < 0.99:
            behind = [r for r in self.living if r.known < len(self.gone)]
            if behind:
                self.random.choice(behind).learn()
        elif self.kills:
            # Often the server and its backup.
            for rank in self.living[: self.random.choice([1, 2])]:
                if self.kills and len(self.living) > 1:
                    self.kills -= 1
                    self.kill(self.random.choice([rank, *self.living]))

    def deliver(self):
        full = [link for link, messages in self.links.items() if messages]
        if not full:
            return
        source, target = self.random.choice(full)
        message = self.links[source, target].popleft()
        is_lost = self.random.random() < self.losses
        if self.ranks[target].is_alive and not is_lost:
            self.ranks[target].replica.take(source, decode(message))

    def kill(self, rank):
        """End a rank; some of its last messages do not arrive."""
        rank.is_alive = False
        self.gone.append(rank.rank)
        for (source, _), messages in self.links.items():
            if source == rank.rank:
                for _ in range(self.random.randint(0, len(messages))):
                    messages.pop()


def check(world):
    used, counted = Counter(), Counter()
    for rank in world.ranks:
        used.update(rank.used)
    # If server and backup die with it, nobody knows what a rank has finished.
    for rank in world.living:
        counted.update(rank.counted)
    assert set(used) == set(range(LENGTH))
    assert max(counted.values(), default=1) == 1
    for rank in world.living:
        state = rank.replica.newest(NAME, rank.begin).state
        assert state["done"] == [[0, LENGTH]]
        assert sum(one["counted"] for one in state["holders"].values()) == LENGTH
        assert not state["leases"]
    if not world.gone:
        assert set(counted) == set(range(LENGTH))


@pytest.mark.parametrize(
    ("size", "kills", "losses"),
    [(1, 0, 0.0), (3, 0, 0.0), (3, 0, 0.1), (2, 1, 0.0), (4, 3, 0.0), (5, 4, 0.05)],
)
def test_each_record_counts_once_in_random_schedules(size, kills, losses):
    for seed in range(40):
        world = World(seed, size, kills, losses)
        try:
            world.run()
            check(world)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


def settle(world):
    """Deliver all messages."""
    while any(world.links.values()):
        world.deliver()


def test_an_answer_waits_until_the_backup_has_the_copy():
    world = World(0, 3, 0, 0.0)
    server, backup, client = world.ranks
    client.step()
    server.replica.take(2, decode(world.links[2, 0].popleft()))
    assert not world.links[0, 2]
    backup.replica.take(0, decode(world.links[0, 1].popleft()))
    server.replica.take(1, decode(world.links[1, 0].popleft()))
    client.replica.take(0, decode(world.links[0, 2].popleft()))
    assert count(client.held[0]["intervals"]) == 3


def test_a_repeated_call_changes_nothing():
    world = World(0, 3, 0, 0.0)
    client = world.ranks[2]
    client.step()
    for _ in range(3):
        client.step()
    settle(world)
    state = world.ranks[0].replica.newest(NAME, client.begin).state
    assert len(state["leases"]) == 1
    assert len(client.used) == 3


def test_the_backup_goes_on_with_what_the_lost_server_has_answered():
    world = World(0, 3, 0, 0.0)
    client = world.ranks[2]
    client.step()
    settle(world)
    world.kill(world.ranks[0])
    client.step()  # to the lost server
    for rank in world.ranks[1:]:
        rank.learn()
    settle(world)
    assert sorted(client.used.values()) == [1] * 6
    assert len(client.counted) == 3


def test_a_new_server_takes_the_newest_copy_if_the_backup_is_lost_too():
    world = World(0, 4, 0, 0.0)
    client = world.ranks[3]
    client.step()
    settle(world)
    world.kill(world.ranks[0])
    world.kill(world.ranks[1])
    for rank in world.ranks[2:]:
        rank.learn()
        rank.learn()
    client.step()
    settle(world)
    assert sorted(client.used.values()) == [1] * 6
    assert len(client.counted) == 3


def test_an_answer_of_a_lost_server_does_not_count_beside_the_new_one():
    world = World(0, 4, 0, 0.0)
    server, backup, new, client = world.ranks
    client.step()
    server.replica.take(3, decode(world.links[3, 0].popleft()))
    backup.replica.take(0, decode(world.links[0, 1].popleft()))
    server.replica.take(1, decode(world.links[1, 0].popleft()))
    late = world.links[0, 3].popleft()
    world.kill(server)
    world.kill(backup)
    new.learn()
    new.learn()
    client.replica.take(2, decode(world.links[2, 3].popleft()))
    new.replica.take(3, decode(world.links[3, 2].popleft()))
    client.replica.take(0, decode(late))
    assert client.waits
    new.step()
    client.learn()
    client.learn()
    settle(world)
    assert not client.used & new.used


def test_a_rank_that_is_late_needs_no_server_once_all_is_done():
    world = World(0, 3, 0, 0.0)
    server, _, late = world.ranks
    while not server.is_over:
        server.step()
        settle(world)
    world.kill(server)
    late.step()
    assert late.is_over


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_long_pass_is_kept_beside_many_short_ones(size):
    """As when a job validates after each step of a long epoch."""
    links = {rank: deque() for rank in range(size)}
    replies = []

    def replica_of(rank):
        def send(target, message):
            links[target].append((rank, encode(message)))

        return Replica(
            rank, range(size), send, lambda name, reply: replies.append(reply)
        )

    replicas = [replica_of(rank) for rank in range(size)]

    def ask(name, number, length):
        request = {"holder": str(size - 1), "number": number, "wants": True}
        request |= {"batch_size": 1, "ranks": size, "round": number - 1}
        begin = RecordLedger.begin(length).state
        replicas[-1].ask(name, request, begin)
        while any(links.values()):
            for rank, messages in links.items():
                if messages:
                    source, data = messages.popleft()
                    replicas[rank].take(source, decode(data))
        return replies.pop()["granted"]["intervals"]

    passes = 2 * _MOST_LEDGERS
    for number in range(passes):
        assert ask("long", number + 1, size * passes) == [[number, number + 1]]
        ask(f"short {number}", 1, 1)
