"""The samplers in torchdata's StatefulDataLoader, which saves their states itself."""

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from bluecomm.data import (
    DistributedBatchSampler,
    LoadBalancingBatchSampler,
    LoadBalancingSampler,
)

# torchdata 0.11 calls it.
pytestmark = pytest.mark.filterwarnings("ignore:.*set_vital.*is deprecated")

LENGTH = 57
RANK = {"rank": 0, "num_replicas": 2}


def batches():
    return {"batch_sampler": DistributedBatchSampler(range(LENGTH), 4, **RANK)}


def balanced():
    costs = range(LENGTH)
    sampler = LoadBalancingBatchSampler(range(LENGTH), 4, cost=costs, **RANK)
    return {"batch_sampler": sampler}


def samples():
    sampler = LoadBalancingSampler(range(LENGTH), range(LENGTH), **RANK)
    return {"sampler": sampler, "batch_size": 4}


@pytest.mark.parametrize("make", [batches, balanced, samples])
@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_is_resumed(make, workers):
    def load(state=None):
        loader = StatefulDataLoader(range(LENGTH), **make(), num_workers=workers)
        if state is not None:
            loader.load_state_dict(state)
        return loader

    whole = [batch.tolist() for batch in load()]
    for steps in (1, 3):
        loader = load()
        begun = iter(loader)
        taken = [next(begun).tolist() for _ in range(steps)]
        state = loader.state_dict()
        del begun
        assert taken + [batch.tolist() for batch in load(state)] == whole
