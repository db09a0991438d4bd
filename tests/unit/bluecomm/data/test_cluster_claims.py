"""Owners and claims of samples."""

import itertools

import pytest

from bluecomm.data.stores.cluster.claims import Claimant, Claims
from bluecomm.data.stores.cluster.machines import CacheMachines
from bluecomm.data.stores.cluster.messages import CacheMessage, Kind
from bluecomm.data.stores.cluster.owners import owner_of


def test_owners_are_spread_evenly_and_stay():
    machines = range(5)
    owners = [owner_of(key, machines) for key in range(5000)]
    assert all(900 < owners.count(machine) < 1100 for machine in machines)
    for key, owner in enumerate(owners):
        assert owner_of(key, {0, 1, 2, 3, 4} - {(owner + 1) % 5}) == owner
    moved = [owner_of(k, (0, 1, 2, 4)) for k, owner in enumerate(owners) if owner == 3]
    assert all(moved.count(machine) > len(moved) / 6 for machine in (0, 1, 2, 4))


def test_a_machine_is_silent_for_some_time_and_lost_with_its_last_rank():
    now = [0.0]
    machines = CacheMachines(0, {0: 0, 1: 1, 2: 1}, lambda: now[0])
    key = next(key for key in range(100) if machines.owner_of(key) == 1)
    assert machines.mute(1)
    assert not machines.mute(1)
    assert (machines.owner_of(key), machines.server_of(1)) == (1, 2)
    assert machines.mute(2)
    assert machines.owner_of(key) == 0
    machines.mute(0)  # this rank
    assert machines.server_of(0) == 0
    now[0] += 31
    assert machines.owner_of(key) == 1
    assert machines.server_of(1) == 1
    assert machines.lose(1)
    assert not machines.lose(1)
    assert (machines.server_of(1), machines.is_lost(1)) == (2, False)
    assert machines.lose(2)
    assert machines.is_lost(1)
    assert machines.owner_of(key) == 0
    assert not machines.lose(0)


class TestClaims:
    """Ranks 0 and 1 are on machine 0, rank 2 on machine 1, rank 3 on machine 2."""

    @pytest.fixture
    def claims(self):
        self.now = 0.0
        made = Claims({0: 0, 1: 0, 2: 1, 3: 2}, 60.0, lambda: self.now)
        self.numbers = itertools.count()
        return made

    def claimant(self, rank):
        return Claimant(rank, CacheMessage(Kind.CLAIM, next(self.numbers), 7))

    def test_one_machine_loads_and_the_others_wait_for_the_value(self, claims):
        assert claims.claim(self.claimant(0))
        second, third = self.claimant(2), self.claimant(3)
        assert not claims.claim(second)
        assert not claims.claim(third)
        assert claims.end(7, 3, is_found=False) == []  # it does not load it
        outcomes = claims.end(7, 0, is_found=True)
        assert outcomes == [(second, True), (third, True)]
        assert claims.end(7, 0, is_found=False) == []

    def test_a_claim_without_a_value_passes_on(self, claims):
        assert claims.claim(self.claimant(0))
        second, third = self.claimant(2), self.claimant(3)
        assert not claims.claim(second)
        assert not claims.claim(third)
        assert claims.end(7, 0, is_found=False) == [(second, False)]
        assert claims.keys_of(2) == [7]
        claims.forget(3)
        assert claims.end(7, 2, is_found=False) == []
        assert claims.claim(self.claimant(3))

    def test_a_second_claim_of_a_machine_ends_the_first(self, claims):
        assert claims.claim(self.claimant(0))
        assert claims.claim(self.claimant(1))
        assert not claims.claim(self.claimant(2))
        assert claims.end(7, 0, is_found=False) == []
        assert len(claims.end(7, 1, is_found=False)) == 1

    def test_waits_end_at_the_limit(self, claims):
        assert claims.claim(self.claimant(0))
        assert claims.next_limit_s == float("inf")
        late = self.claimant(2)
        assert not claims.claim(late)
        assert claims.next_limit_s == 60.0
        self.now = 59.0
        assert not claims.claim(self.claimant(3))
        assert claims.take_late() == []
        self.now = 60.0
        assert claims.take_late() == [(late, False)]
        # Its value ends the claim of the other one, too.
        assert len(claims.end(7, 2, is_found=True)) == 1
