import pytest
import torch

import bluecomm as bf


def enter_averaged(model):
    with bf.averaged(model):
        pass


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("average_model", bf.average_model),
        ("averaged_state_dict", bf.averaged_state_dict),
        ("averaged", enter_averaged),
        ("consensus_distance", bf.consensus_distance),
    ],
)
def test_only_models_are_accepted(name, function):
    with pytest.raises(TypeError, match=f"{name}: model must be a torch.nn.Module"):
        function(torch.ones(2))
