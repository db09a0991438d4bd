"""Costs are computed once, and wrong ones are named."""

import logging

import numpy as np
import pytest

from bluecomm.data.costs import digest, find_costs
from bluecomm.data.world import DataWorld


class Counted:
    """A dataset of its own indices, which counts the reads."""

    def __init__(self, length=6):
        self.reads = 0
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.reads += 1
        return index


class Rank(DataWorld):
    """One of two ranks, which hears what the other one is said to say."""

    def __init__(self, rank, other=None):
        super().__init__(rank, 2)
        self.other = other
        self.said = {}

    def gather(self, value, name):
        self.said[name] = value
        both = [value, value]
        both[1 - self.rank] = value if self.other is None else self.other[name]
        return both


def find(dataset, cost, world=None, file=None, facts=None):
    return find_costs(
        dataset,
        cost,
        world=world or DataWorld(0, 1),
        user="Sampler",
        facts=facts or {"length": len(dataset)},
        file=file,
    )


def test_each_rank_computes_its_share():
    data = Counted(7)
    first, second = Rank(0), Rank(1)
    find(data, lambda x: 2 * x, first)
    assert data.reads == 3
    costs = find(data, lambda x: 2 * x, Rank(1, first.said))
    assert data.reads == 7
    assert costs.tolist() == [0, 2, 4, 6, 8, 10, 12]
    find(data, lambda x: 2 * x, second)
    assert find(data, lambda x: 2 * x, Rank(0, second.said)).tolist() == costs.tolist()


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (lambda x: 1 / (x - 4), "sample 4: ZeroDivisionError"),
        (
            lambda x: float("nan") if x == 4 else 1,
            "sample 4 has the cost nan; costs mu",
        ),
        (lambda x: float("inf") if x == 4 else 1, "sample 4 has the cost inf"),
        (lambda x: -1.0 if x == 4 else 1, "sample 4 has the cost -1.0"),
    ],
)
def test_wrong_costs_name_sample_and_rank_everywhere(cost, text):
    world = Rank(1)
    world.other = {"Sampler.cost_file": None, "Sampler: cost": ("", np.ones(3))}
    with pytest.raises(RuntimeError, match=f"cost failed on rank 1, .*{text}"):
        find(Counted(), cost, world)
    told = Rank(0, world.said)
    with pytest.raises(RuntimeError, match=f"cost failed on rank 1, .*{text}"):
        find(Counted(), lambda x: 1, told)


def test_given_costs_are_checked():
    assert find(range(3), [1, 2, 3]).tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match=r"Sampler: expected 3 costs, .* shape \(2,\)"):
        find(range(3), [1, 2])
    with pytest.raises(RuntimeError, match="sample 1 has the cost nan"):
        find(range(3), [1, float("nan"), 3])


def test_a_file_keeps_costs_of_the_same_data(tmp_path):
    data, file = Counted(), tmp_path / "costs.npz"
    costs = find(data, float, file=file)
    assert find(data, float, file=file).tolist() == costs.tolist()
    assert data.reads == 6
    find(data, float, file=file, facts={"length": 6, "fingerprint": {"a": 1}})
    assert data.reads == 12
    assert [path.name for path in tmp_path.iterdir()] == ["costs.npz"]


def test_a_fingerprint_that_json_cannot_hold_is_a_warning(tmp_path, caplog):
    facts = {"length": 6, "fingerprint": {"files": {1, 2}}}
    costs = find(Counted(), float, file=tmp_path / "costs.npz", facts=facts)
    assert costs.tolist() == [0, 1, 2, 3, 4, 5]
    assert "cannot write costs to" in caplog.text
    assert not list(tmp_path.iterdir())


def test_other_ranks_take_the_costs_that_rank_0_has_read(tmp_path):
    data = Counted()
    other = {"Sampler.cost_file": np.arange(6.0)}
    assert find(data, float, Rank(1, other), tmp_path / "none").tolist() == [*range(6)]
    assert data.reads == 0


def test_a_file_that_cannot_be_used_costs_a_warning(tmp_path, caplog):
    file = tmp_path / "costs.npz"
    file.write_bytes(b"no archive")
    with caplog.at_level(logging.WARNING, "bluecomm"):
        assert find(Counted(), float, file=file).tolist() == [0, 1, 2, 3, 4, 5]
        find(Counted(), float, file=tmp_path / "missing/costs.npz")
    assert "cannot read costs from" in caplog.text
    assert "cannot write costs to" in caplog.text


def test_digests_tell_costs_apart():
    assert digest(np.ones(3)) == digest(np.ones(3)) != digest(np.zeros(3))
