"""Worlds of ranks that share a ledger, in random schedules with losses and repeats."""

from __future__ import annotations

import json

from bluecomm.data.dynamic.intervals import count, union
from bluecomm.data.dynamic.ledger import RecordLedger


def through_json(value):
    return json.loads(json.dumps(value))


class Shared:
    """A ledger that passes through JSON at each request, and is checked after it."""

    def __init__(self, length, done=()):
        self.ledger = RecordLedger.begin(length, [list(each) for each in done])

    @property
    def state(self):
        return self.ledger.state

    def apply(self, request):
        before = json.dumps(self.state)
        self.ledger = RecordLedger(json.loads(before))
        finished = [
            count(self.state["leases"][str(number)]["intervals"])
            for number in request.get("finished", [])
            if str(number) in self.state["leases"]
        ]
        done = count(self.state["done"])
        holder = self.state["holders"].get(request["holder"])
        is_new = holder is None or request["number"] > holder["number"]
        reply = json.loads(
            json.dumps(self.ledger.apply(json.loads(json.dumps(request))))
        )
        if is_new:
            # A finished lease counts once, and nothing else does.
            assert count(self.state["done"]) == done + sum(finished)
        else:
            assert json.dumps(self.state) == before
        self.check()
        return reply

    def check(self):
        """Each position is done, free or in one lease."""
        leases = [one["intervals"] for one in self.state["leases"].values()]
        parts = [self.state["done"], self.state["free"], *leases]
        length = self.state["length"]
        assert sum(map(count, parts)) == length
        assert union(*parts) == ([[0, length]] if length else [])


class Member:
    """A rank that prefetches leases, makes steps, may be silent, and may die."""

    def __init__(self, world, name):
        self.world = world
        self.name = name
        self.number = 0
        self.queue = []
        self.in_use = None
        self.finished = []
        self.asked = 0
        self.steps = 0
        self.used = []
        self.fillers = 0
        self.has_ended = self.is_dead = False
        self.last = None
        self.seen = {}

    def request(self, wants):
        self.number += 1
        request = {
            "holder": self.name,
            "number": self.number,
            "finished": self.finished,
            "wants": wants,
            "round": None if self.world.uneven else self.asked,
            "ranks": self.world.living(),
            "batch_size": self.world.batch_size,
            "lost": self.world.known_lost,
            "silent": self.world.silent(self),
        }
        self.finished = []
        self.last = request
        reply = self.world.shared.apply(request)
        if self.world.random.random() < 0.3:
            repeated = self.world.shared.apply(request)
            for part in ("granted", "refused"):
                assert repeated[part] == reply[part]
        self.seen = reply["holding"]
        if reply["granted"] is not None:
            self.queue.append(reply["granted"])
            self.asked += 1
        return reply

    def step(self):
        """Ask for the next batch as a program does, unless others hold up the step."""
        if not self.world.may_step(self):
            return False
        if self.in_use is not None and self.in_use["id"] is not None:
            self.finished.append(self.in_use["id"])
        self.in_use = None
        reply = self.request(not self.queue)
        if self.queue:
            self.in_use = self.queue.pop(0)
            self.steps += 1
            self.fillers += self.in_use["id"] is None
            self.used.append(self.in_use["intervals"])
            if not self.world.uneven:
                assert self.in_use["round"] == self.steps - 1
        elif reply["is_over"]:
            self.has_ended = True
        return True


class Schedule:
    """A world, and what happens in it, drawn from a source of random numbers."""

    def __init__(self, random, length, ranks, batch_size, uneven, done=()):
        self.random = random
        self.batch_size = batch_size
        self.uneven = uneven
        self.shared = Shared(length, done)
        self.members = [Member(self, f"rank {number}") for number in range(ranks)]
        self.known_lost = []
        self.may_be_silent = True

    def active(self):
        return [one for one in self.members if not one.is_dead]

    def living(self):
        return len(self.members) - len(self.known_lost)

    def silent(self, observer):
        """Take a rank for silent, rightly or not, if it is as it was seen last."""
        if not self.may_be_silent or self.random.random() > 0.1:
            return {}
        return {k: v for k, v in observer.seen.items() if k != observer.name}

    def may_step(self, member):
        """In algorithms that wait, no rank is more than one step ahead."""
        if self.uneven:
            return True
        return all(other.steps >= member.steps for other in self.active())

    def act(self, may_die=True):
        """Let something happen."""
        running = [one for one in self.active() if not one.has_ended]
        if not running:
            return
        member = self.random.choice(running)
        drawn = self.random.random()
        if drawn < 0.03 and may_die and len(self.active()) > 1:
            member.is_dead = True
        elif drawn < 0.1:
            dead = [one.name for one in self.members if one.is_dead]
            self.known_lost = sorted({*self.known_lost, *dead})
        elif drawn < 0.4:
            member.request(self.random.random() < 0.75)
        else:
            member.step()

    def finish(self):
        """Go on fairly until all ranks have ended; the number of turns is limited."""
        self.known_lost = sorted(one.name for one in self.members if one.is_dead)
        self.may_be_silent = False
        for _ in range(10 * (self.shared.state["length"] + 10)):
            if all(one.has_ended for one in self.active()):
                return
            for member in self.active():
                if not member.has_ended:
                    member.step()
        raise AssertionError(f"no end: {self.shared.state}")
