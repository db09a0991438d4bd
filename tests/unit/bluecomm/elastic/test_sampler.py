"""How an epoch is shared out, and the rest of it after losses."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bluecomm.elastic import sampler as module
from bluecomm.elastic.sampler import ElasticSampler


class Ranks:
    """The samplers of several ranks, each of which sees its own group."""

    def __init__(self, monkeypatch, length, size, **options):
        self._group = None
        monkeypatch.setattr(module, "current_group", lambda: self._group)
        self.samplers = []
        for rank in range(size):
            self._group = SimpleNamespace(rank=rank, size=size)
            self.samplers.append(ElasticSampler(range(length), **options))

    def each(self, call):
        size = len(self.samplers)
        for rank, sampler in enumerate(self.samplers):
            self._group = SimpleNamespace(rank=rank, size=size)
            call(sampler)

    def lose(self, number):
        del self.samplers[-number:]
        self.each(lambda sampler: sampler.reset())

    def batch(self, number, size):
        """Return what all ranks take in a batch, and record it."""
        taken = []
        for sampler in self.samplers:
            taken += sampler.indices[number * size : (number + 1) * size]
            sampler.record_batch(number, size)
        return taken


@given(
    shares=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    rest=st.integers(0, 12),
    batch=st.integers(1, 5),
    shuffle=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_no_index_is_taken_twice_and_none_is_lost(shares, rest, batch, shuffle, epoch):
    """One rank is lost after each entry of ``shares``, which counts batches."""
    size = len(shares) + 1
    length = rest + sum(n * batch * (size - i) for i, n in enumerate(shares))
    with pytest.MonkeyPatch.context() as patch:
        ranks = Ranks(patch, length, size, shuffle=shuffle, seed=3)
        ranks.each(lambda sampler: sampler.set_epoch(epoch))
        taken = []
        for count in shares:
            for number in range(count):
                taken += ranks.batch(number, batch)
            ranks.lose(1)
        last = [sampler.indices for sampler in ranks.samplers]
    assert len(taken) == len(set(taken))
    left = [index for indices in last for index in indices]
    # The first of the indices that were last shared out fill up the last shares.
    assert set(left) == set(range(length)) - set(taken)
    assert len(left) - len(set(left)) < max(len(last), 1)
    assert len({len(indices) for indices in last}) == 1


def test_epochs_differ_and_repeat(monkeypatch):
    ranks = Ranks(monkeypatch, 40, 2)
    orders = []
    for epoch in (0, 1, 0):
        ranks.each(lambda sampler, epoch=epoch: sampler.set_epoch(epoch))
        orders.append([list(sampler) for sampler in ranks.samplers])
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[1][0] + orders[1][1]) == list(range(40))
    assert [len(sampler) for sampler in ranks.samplers] == [20, 20]


def test_the_same_epoch_goes_on_and_another_begins_anew(monkeypatch):
    (sampler,) = Ranks(monkeypatch, 10, 1, shuffle=False).samplers
    sampler.record_batch(0, 4)
    sampler.set_epoch(0)
    assert sampler.processed_indices == {0, 1, 2, 3}
    assert sampler.indices == list(range(10))
    sampler.reset()
    assert sampler.indices == sampler.remaining_indices == [4, 5, 6, 7, 8, 9]
    sampler.set_epoch(1)
    assert sampler.indices == list(range(10))


def test_records_of_batches_may_repeat_and_end_with_the_share(monkeypatch):
    sampler = Ranks(monkeypatch, 10, 2, shuffle=False).samplers[0]
    for number in (0, 1, 0):
        sampler.record_batch(number, 2)
    assert sampler.processed_num == 8
    sampler.record_batch(2, 2)
    assert sampler.processed_num == 10
    with pytest.raises(ValueError, match="expected a batch_idx of at least 0"):
        sampler.record_batch(-1, 2)


def test_indices_are_recorded_in_order(monkeypatch):
    sampler = Ranks(monkeypatch, 12, 2, shuffle=False).samplers[1]
    sampler.record_indices([3, 1])
    assert sampler.processed_indices == {0, 1, 2, 3}
    with pytest.raises(ValueError, match=r"expected the next 2 indices .*\[5, 7\]"):
        sampler.record_indices([9, 11])
    with pytest.raises(ValueError, match=r"and more"):
        sampler.record_indices(range(9))


def test_a_state_goes_on_among_another_number_of_ranks(monkeypatch):
    ranks = Ranks(monkeypatch, 30, 3)
    taken = set(ranks.batch(0, 4))
    state = ranks.samplers[1].state_dict()
    assert state == {"epoch": 0, "processed_num": 12}
    others = Ranks(monkeypatch, 30, 2)
    others.each(lambda sampler: sampler.load_state_dict(state))
    assert others.samplers[0].processed_indices == taken
    rest = {index for sampler in others.samplers for index in sampler}
    assert rest == set(range(30)) - taken
    with pytest.raises(ValueError, match=r"expected the keys .* got \['epoch'\]"):
        others.samplers[0].load_state_dict({"epoch": 1})


def test_a_data_set_without_a_length_is_refused():
    with pytest.raises(TypeError, match=r"the dataset \(generator\) has no length"):
        ElasticSampler(index for index in range(3))
