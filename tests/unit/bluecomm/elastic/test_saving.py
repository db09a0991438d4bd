"""The choice of the rank that saves, and of its file."""

from types import SimpleNamespace

import pytest
import torch

from bluecomm.elastic import saving
from bluecomm.runtime.members import Members


@pytest.fixture
def world(monkeypatch):
    """Rank 1 of three."""
    world = SimpleNamespace(rank=1, members=Members(3, survives_losses=True))
    process = SimpleNamespace(communicator=SimpleNamespace(world=world))
    monkeypatch.setattr(saving, "current_process", lambda: process)
    return world


def test_the_lowest_rank_of_the_primary_saves(world, tmp_path):
    path = tmp_path / "model.pt"
    assert not saving.may_save()
    assert saving.save({"x": 1}, path) is None
    world.members.remove(0, "lost", "rank 0 is lost")
    assert saving.may_save()
    assert saving.save({"x": 2}, path) == path
    assert torch.load(path) == {"x": 2}
    assert [each.name for each in tmp_path.iterdir()] == ["model.pt"]


def test_a_rank_that_is_held_does_not_save(world, tmp_path):
    world.members.remove(0, "lost", "rank 0 cannot be reached")
    world.members.is_held = True
    assert not saving.may_save()
    assert saving.save({}, tmp_path / "model.pt") is None


def test_a_lineage_saves_to_another_path(world, tmp_path):
    world.members.remove(0, "lost", "rank 0 cannot be reached")
    world.members.split("1f3a90bc", "rank 1 trains on")
    assert saving.lineage() == "1f3a90bc"
    assert not saving.may_save()
    saved = saving.save({}, tmp_path / "model.pt")
    assert saved == tmp_path / "model.1f3a90bc.pt"
    assert world.members.events[-1].left == (1, 2)
