"""The loader: states with workers, epochs, seeds, cores and refused arguments."""

import sys

import pytest
import torch

from bluecomm.data import (
    DataLoader,
    DistributedBatchSampler,
    LoadBalancingBatchSampler,
    LoadBalancingSampler,
    cores,
    progress,
)
from bluecomm.data.cores import _quota, share_of, worker_count
from bluecomm.data.progress import describe_rate, show_progress
from bluecomm.data.world import DataWorld
from tests.support.stand_in import replace_in


class Draws:
    """A dataset of pairs: the index and a random number of the worker."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return index, int(torch.randint(2**40, ()))


def indices(batches):
    return [batch[0].tolist() for batch in batches]


def test_a_state_counts_what_the_program_has_taken():
    """The workers have taken all batches of the sampler ahead."""
    options = {"batch_size": 2, "seed": 5, "num_workers": 2, "prefetch_factor": 5}
    whole = list(DataLoader(Draws(), **options))
    loader = DataLoader(Draws(), **options)
    taken = [batch for _, batch in zip(range(3), loader, strict=False)]
    state = loader.state_dict()
    assert [phase["steps"] for phase in state["phases"]] == [3]
    resumed = DataLoader(Draws(), batch_size=2, seed=5, num_workers=0)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert len(resumed) == 7
    assert indices(taken) + indices(resumed) == indices(whole)
    # The workers of two runs draw the same numbers, in different workers other ones.
    assert [b[1].tolist() for b in taken] == [b[1].tolist() for b in whole[:3]]
    assert len({int(x) for b in whole for x in b[1]}) == 20


def test_a_new_pass_ends_the_one_before():
    loader = DataLoader(list(range(12)), batch_size=4, num_workers=0)
    first, second = iter(loader), iter(loader)
    assert len(next(first)) == len(next(second)) == 4
    with pytest.raises(RuntimeError, match="another pass over this loader has begun"):
        next(first)
    assert [len(batch) for batch in second] == [4, 4]
    assert loader.epoch == 1


def test_full_passes_are_epochs():
    loader = DataLoader(list(range(12)), batch_size=4, num_workers=0)
    passes = [[batch.tolist() for batch in loader] for _ in range(2)]
    assert passes[0] != passes[1]
    assert loader.epoch == 2
    assert loader.state_dict()["phases"] == []
    loader.set_epoch(0)
    assert next(iter(loader)).tolist() == passes[0][0]
    # A pass that was broken off is no epoch, and the next one begins anew.
    assert loader.state_dict()["phases"][0]["steps"] == 1
    loader.set_epoch(0)
    assert [batch.tolist() for batch in loader] == passes[0]
    with pytest.raises(TypeError, match='only partition="dynamic" counts records'):
        _ = loader.counted


def test_samplers_of_the_package_make_the_batches():
    costs = list(range(1, 9))
    sampler = LoadBalancingBatchSampler(range(8), max_cost=12, cost=costs)
    loader = DataLoader(costs, batch_sampler=sampler, num_workers=0)
    assert max(int(batch.sum()) for batch in loader) <= 12


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sampler": range(3)}, "sampler cannot be passed; pass a batch_sampler of"),
        ({"in_order": False}, "in_order=False is not possible, because a state counts"),
        ({"batch_sampler": [[1]]}, "expected a batch_sampler of bluecomm.data, got li"),
        (
            {"batch_sampler": LoadBalancingSampler(range(3), [1, 2, 3])},
            "expected a batch_sampler of bluecomm.data, got LoadBalancingSampler",
        ),
        (
            {
                "batch_sampler": DistributedBatchSampler(range(3), 1),
                "batch_size": 2,
                "pad": True,
            },
            "batch_size, pad cannot be passed with a batch_sampler",
        ),
    ],
)
def test_arguments_that_exclude_each_other_are_refused(options, text):
    with pytest.raises(TypeError, match=f"DataLoader: {text}"):
        DataLoader(range(3), **options)


def test_ranks_share_the_cores_of_their_machine():
    ranks = [("a", [0, 1, 2, 3], 8.0), ("a", [0, 1, 2, 3], 8.0), ("b", [0, 1], 8.0)]
    assert [share_of(ranks, rank) for rank in range(3)] == [2, 2, 2]
    bound = [("a", [0, 1, 2], 8.0), ("a", [3, 4, 5], 8.0)]
    assert [share_of(bound, rank) for rank in range(2)] == [3, 3]
    # A container that may use two CPUs, whatever the machine has.
    assert share_of([("a", list(range(64)), 2.0)] * 2, 1) == 1


def test_a_core_is_left_to_the_training(monkeypatch):
    monkeypatch.setattr(cores, "_quota", lambda path: float("inf"))
    found = []
    for count in (1, 4, 64):
        numbers = set(range(count))
        replace_in(monkeypatch, cores, "os", sched_getaffinity=lambda pid, n=numbers: n)
        found.append(worker_count(DataWorld(0, 1)))
    assert found == [0, 3, 8]


def test_the_quota_of_a_container(tmp_path):
    file = tmp_path / "cpu.max"
    assert _quota(file) == float("inf")
    file.write_text("max 100000\n")
    assert _quota(file) == float("inf")
    file.write_text("250000 100000\n")
    assert _quota(file) == 2.5


def test_progress_is_a_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    with show_progress(3, 2, 4, False) as advance:
        advance(5, 0.0)
    assert capsys.readouterr().err == ""
    with show_progress(3, 2, 4, True) as advance:
        advance(5, 0.0)
        advance(5, 0.0)
    shown = capsys.readouterr().err
    assert "epoch 3" in shown
    assert "2/2" in shown
    assert "samples/s, waiting for data" in shown


def test_progress_is_a_few_lines_elsewhere(monkeypatch, capsys):
    assert describe_rate(100, 2.0, 0.5) == "50 samples/s, waiting for data 25 %"
    now = [100.0]
    replace_in(monkeypatch, progress, "time", perf_counter=lambda: now[0])
    with show_progress(3, 5, 4, True) as advance:
        for _ in range(5):
            now[0] += 4
            advance(5, 1.0)
    assert capsys.readouterr().err.splitlines() == [
        "epoch 3: 3/5 steps, 5 samples/s, waiting for data 25 %",
        "epoch 3: 5/5 steps, 5 samples/s, waiting for data 25 %",
    ]
    with show_progress(3, 0, 4, True):
        pass
    assert capsys.readouterr().err == ""
