"""Copies of state dicts."""

import collections

import torch

from bluecomm.elastic.snapshot import snapshot


def test_a_copy_shares_nothing():
    state = {"a": torch.ones(2), "b": [torch.zeros(1), {"c": (torch.ones(1), "x")}]}
    copy = snapshot(state)
    state["a"].zero_()
    state["b"][1]["c"][0].zero_()
    state["b"].append(1)
    assert copy["a"].tolist() == [1, 1]
    assert copy["b"][1]["c"][0].tolist() == [1]
    assert len(copy["b"]) == 2


def test_memory_is_used_again_where_it_fits():
    first = snapshot({"a": torch.ones(2), "b": [torch.ones(3)], "c": torch.ones(1)})
    state = {"a": torch.zeros(2), "b": [torch.zeros(3)], "c": torch.zeros(2), "d": 1}
    second = snapshot(state, first)
    assert second["a"] is first["a"]
    assert second["b"][0] is first["b"][0]
    assert second["c"] is not first["c"]
    assert [second["a"].tolist(), second["c"].tolist()] == [[0, 0], [0, 0]]
    assert second["d"] == 1
    longer = snapshot([torch.ones(2), torch.ones(1)], [first["a"]])
    assert longer[0] is first["a"]


def test_the_attributes_of_a_models_state_stay():
    state = torch.nn.BatchNorm1d(3).state_dict()
    copy = snapshot(state)
    assert isinstance(copy, collections.OrderedDict)
    assert copy._metadata == state._metadata


def test_parameters_become_plain_tensors():
    copy = snapshot({"w": torch.nn.Parameter(torch.ones(1))})
    assert not copy["w"].requires_grad
