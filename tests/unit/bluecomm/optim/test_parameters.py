import pytest
import torch
from torch import nn

import bluecomm as bf


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("function", [bf.broadcast_parameters, bf.allreduce_parameters])
class TestErrors:
    """Errors of both functions on parameters."""

    def test_names_are_given_once(self, function):
        tensor = torch.ones(1)
        with pytest.raises(ValueError, match="given twice: a, b"):
            function([("a", tensor), ("b", tensor), ("a", tensor), ("b", tensor)])

    def test_only_tensors(self, function):
        with pytest.raises(TypeError, match="got 'a' and int"):
            function({"a": 3})

    def test_generators_are_accepted(self, function):
        function(nn.Linear(2, 1).named_parameters())


@pytest.mark.usefixtures("world")
def test_state_is_that_of_an_optimizer():
    with pytest.raises(TypeError, match="got Linear"):
        bf.broadcast_optimizer_state(nn.Linear(1, 1))


@pytest.mark.usefixtures("world")
def test_one_rank_is_its_own_average():
    model = nn.BatchNorm1d(3)
    assert bf.consensus_distance(model) == 0.0
    state = bf.averaged_state_dict(model, average_buffers=True)
    for name, value in model.state_dict().items():
        assert torch.equal(state[name], value)
        assert state[name].data_ptr() != value.data_ptr()
