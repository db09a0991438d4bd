"""The callback refuses unfit arguments before any rank communicates."""

import types

import pytest
import torch

import bluecomm as bf
from bluecomm.runtime import current_process

pytest.importorskip("transformers")

from bluecomm.transformers import BluecommCallback
from bluecomm.transformers.without_ddp import check_arguments


def arguments(**changed):
    """Return what the checks need of ``TrainingArguments``."""
    plain = {
        "device": torch.device("cpu"),
        "world_size": 1,
        "fsdp": None,
        "deepspeed": None,
        "torch_compile": False,
    }
    return types.SimpleNamespace(**{**plain, **changed})


def test_unknown_algorithms():
    with pytest.raises(ValueError, match=r"did you mean 'neighbor_allreduce'\?"):
        BluecommCallback("neighbour_allreduce")
    with pytest.raises(TypeError, match="must be a name or a subclass of Algorithm"):
        BluecommCallback(3)


def test_gpus():
    said = "trains on CPUs, but the Trainer chose cuda:0; pass use_cpu=True"
    with pytest.raises(ValueError, match=said):
        check_arguments(arguments(device=torch.device("cuda", 0)))


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("fsdp", "leave it out"),
        ("deepspeed", "leave it out"),
        ("torch_compile", r"call model.compile\(\) before"),
    ],
)
def test_what_needs_another_model(name, remedy):
    with pytest.raises(ValueError, match=f"does not work with {name}; {remedy}"):
        check_arguments(arguments(**{name: True}))


def test_ranks_that_the_trainer_does_not_know():
    try:
        check_arguments(arguments())
        assert bf.is_initialized()
        said = "the Trainer has 2 of the launcher's 1 ranks; call torch.distributed.in"
        with pytest.raises(ValueError, match=said):
            check_arguments(arguments(world_size=2))
    finally:
        current_process().leave()


def test_a_model_that_the_trainer_made_later():
    callback = BluecommCallback()
    facts = {"model": torch.nn.Linear(1, 1), "optimizer": None}
    with pytest.raises(RuntimeError, match="instead of add_callback, and model= inst"):
        callback.on_train_begin(arguments(), None, None, **facts)
