"""The example models have the parameters and shapes of their papers."""

import pytest
import torch
from torch import nn

from models import MODELS, create_model


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("lenet", 61_706),
        ("digits_cnn", 38_282),
        ("resnet18", 11_689_512),
        ("resnet50", 25_557_032),
        ("vgg16", 138_357_544),
    ],
)
def test_has_the_published_number_of_parameters(name, parameters):
    # On the meta device nothing is allocated or initialized.
    with torch.device("meta"):
        model = create_model(name)
    assert count_parameters(model) == parameters


@pytest.mark.parametrize("name", MODELS)
def test_maps_images_to_class_scores(name):
    info = MODELS[name]
    with torch.device("meta"):
        scores = create_model(name)(torch.empty(2, *info.input_shape))
    assert scores.shape == (2, info.num_classes)


@pytest.mark.parametrize("name", MODELS)
def test_the_number_of_classes_can_be_chosen(name):
    with torch.device("meta"):
        scores = create_model(name, 7)(torch.empty(2, *MODELS[name].input_shape))
    assert scores.shape == (2, 7)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_shrinks_images_by_32_before_pooling(name):
    with torch.device("meta"):
        model = create_model(name)
        features = model.stages(model.stem(torch.empty(1, 3, 224, 224)))
    assert features.shape[2:] == (7, 7)


@pytest.mark.parametrize("name", ["lenet", "digits_cnn", "resnet18"])
def test_gives_every_parameter_a_gradient(name):
    torch.manual_seed(0)
    channels, height, width = MODELS[name].input_shape
    model = create_model(name)
    images = torch.randn(2, channels, min(height, 64), min(width, 64))
    model(images).logsumexp(dim=1).sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name


def test_unknown_model_names_the_choices():
    with pytest.raises(ValueError, match="unknown model 'alexnet'; choose from lenet"):
        create_model("alexnet")
