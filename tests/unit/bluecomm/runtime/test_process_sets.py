"""Process sets in a world of one rank: pickles of objects that contain them."""

import copy
import ctypes
import gc
import pickle
from unittest import mock

import pytest
import torch

import bluecomm as bf
from bluecomm.runtime import current_communicator, current_process


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


def test_a_freed_set_is_refused():
    process_set = bf.ProcessSet([0])
    data = pickle.dumps(process_set)
    assert bf.allreduce(torch.ones(1), process_set=process_set) == 1
    for _ in range(2):
        process_set.free()
    assert not process_set.included
    for call in (bf.allreduce, bf.broadcast_object):
        with pytest.raises(ValueError, match=r"\(ranks \[0\]\) has been freed on rank"):
            call(torch.ones(1), process_set=process_set)
    with pytest.raises(ValueError, match="does not have"):
        pickle.loads(data)
    with pytest.raises(ValueError, match="of all ranks cannot be freed"):
        current_process().communicator.free()
    again = bf.ProcessSet([0])
    bf.shutdown()
    again.free()


class MallInfo(ctypes.Structure):
    """struct mallinfo2 of glibc."""

    _fields_ = [
        *((f"other_{number}", ctypes.c_size_t) for number in range(7)),
        ("uordblks", ctypes.c_size_t),  # bytes in use
        *((f"last_{number}", ctypes.c_size_t) for number in range(2)),
    ]


def test_sets_that_are_freed_leave_no_memory():
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = MallInfo

    def live_and_die():
        process_set = bf.ProcessSet([0])
        bf.allreduce(torch.ones(1), process_set=process_set)
        process_set.free()

    def memory_after(rounds):
        for _ in range(rounds):
            live_and_die()
        gc.collect()
        return libc.mallinfo2().uordblks, len(gc.get_objects())

    nbytes, objects = memory_after(2_000)
    more_nbytes, more_objects = memory_after(10_000)
    assert more_objects < objects + 100
    assert more_nbytes < nbytes + 10_000 * 16  # less than two words for each set


def test_an_interrupt_while_a_subgroup_is_made_leaves_a_usable_one():
    comm = current_communicator()
    add = comm.world.add_group

    def add_and_interrupt(*args):
        add(*args)
        raise KeyboardInterrupt

    with (
        mock.patch.object(comm.world, "add_group", add_and_interrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        comm.subgroup([0], "pair")
    subgroup = comm.subgroup([0], "pair")
    assert comm.subgroup([0], "pair") is subgroup
    assert bf.allreduce(torch.ones(1), process_set=subgroup) == 1
