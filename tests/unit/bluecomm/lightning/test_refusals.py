"""The strategies refuse unfit arguments before any rank communicates."""

import pytest
import torch

pytest.importorskip("lightning")

from lightning.pytorch.plugins.environments import LightningEnvironment

from bluecomm.lightning import BluecommFabricStrategy, BluecommStrategy

STRATEGIES = [BluecommStrategy, BluecommFabricStrategy]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gpus(strategy):
    made = strategy("neighbor_allreduce")
    said = (
        f"{strategy.__name__} trains on CPUs, but Lightning chose devices of type "
        "cuda; pass accelerator='cpu'"
    )
    with pytest.raises(ValueError, match=said):
        made.parallel_devices = [torch.device("cuda", 0), torch.device("cuda", 1)]
    with pytest.raises(ValueError, match=said):
        strategy(parallel_devices=[torch.device("cuda", 0)])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_environments_of_lightning(strategy):
    said = "must be a bluecomm.lightning.BluecommEnvironment, got LightningEnvironment"
    with pytest.raises(TypeError, match=said):
        strategy(cluster_environment=LightningEnvironment())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_unknown_algorithms(strategy):
    with pytest.raises(ValueError, match=r"did you mean 'neighbor_allreduce'\?"):
        strategy("neighbour_allreduce")
    with pytest.raises(TypeError, match="must be a name or a subclass of Algorithm"):
        strategy(3)
