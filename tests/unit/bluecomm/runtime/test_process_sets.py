"""Process sets in a world of one rank: pickles of objects that contain them."""

import copy
import pickle

import pytest
import torch

import bluecomm as bf
from bluecomm.runtime import current_process


@pytest.fixture(autouse=True)
def _world():
    bf.init()
    yield
    current_process().leave()


def test_copies_and_pickles_of_a_module_have_its_process_set():
    process_set = bf.ProcessSet([0])
    other = bf.ProcessSet([0])
    module = bf.SyncBatchNorm(2, process_set=process_set)
    for copied in (
        copy.copy(module),
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
    ):
        assert copied.process_set is process_set
        batch = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        assert torch.equal(copied(batch), module(batch))
    assert pickle.loads(pickle.dumps(other)) is other


def test_a_new_world_needs_the_set_before_the_pickle_is_loaded():
    process_set = bf.ProcessSet([0])
    data = pickle.dumps(process_set)
    bf.shutdown()
    with pytest.raises(bf.ShutdownError, match=r"call bluecomm.init\(\) again"):
        pickle.loads(data)
    bf.init()
    with pytest.raises(ValueError, match=r"number 1 of the ranks \[0\], .*ProcessSet"):
        pickle.loads(data)
    again = bf.ProcessSet([0])
    assert pickle.loads(data) is again is not process_set
