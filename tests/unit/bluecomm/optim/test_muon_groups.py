"""The choice of parameters for Muon."""

import pytest
import torch
from torch import nn

import bluecomm as bf


def names_of(model, *arguments):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [
        [names[id(p)] for p in group] for group in bf.muon_groups(model, *arguments)
    ]


class Language(nn.Module):
    """An embedding, two hidden layers, a norm, and an output layer."""

    def __init__(self, *, is_tied=False):
        super().__init__()
        self.tokens = nn.Embedding(7, 4)
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4, bias=False)
        self.norm = nn.LayerNorm(4)
        self.lm_head = nn.Linear(4, 7, bias=False)
        if is_tied:
            self.lm_head.weight = self.tokens.weight


def test_hidden_matrices_are_for_muon():
    hidden, others = names_of(Language())
    assert hidden == ["first.weight", "second.weight"]
    assert others == [
        *("tokens.weight", "first.bias", "norm.weight", "norm.bias", "lm_head.weight")
    ]


def test_tied_weights_belong_to_the_output_layer():
    hidden, others = names_of(Language(is_tied=True))
    assert hidden == ["first.weight", "second.weight"]
    assert "tokens.weight" in others


def test_the_output_layer_may_be_given():
    model = Language()
    assert names_of(model, model.second)[0] == ["first.weight", "lm_head.weight"]
    assert names_of(model, [model.second, model.lm_head])[0] == ["first.weight"]
    assert names_of(model, ())[0] == ["first.weight", "second.weight", "lm_head.weight"]
    with pytest.raises(ValueError, match="head Linear is not a part of the model"):
        bf.muon_groups(model, nn.Linear(2, 2))


def test_frozen_parameters_and_convolutions():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].bias.requires_grad_(False)
    hidden, others = names_of(model)
    assert hidden == ["1.weight"]
    assert others == ["0.weight", "1.bias", "2.weight", "2.bias"]
    model.register_parameter(
        "table", nn.Parameter(torch.zeros(2, 2, dtype=torch.int8), requires_grad=False)
    )
    assert names_of(model) == [hidden, others]


def test_a_model_without_matrices():
    assert names_of(nn.LayerNorm(3)) == [[], ["weight", "bias"]]
