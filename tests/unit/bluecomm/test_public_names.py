"""``bluecomm.__all__``, and the names that scripts of the predecessors use."""

import inspect
import re
import types

import pytest
import torch

import bluecomm as bf
import bluecomm.compat.horovod as hvd
import bluecomm.ops.tensor
import bluecomm.torch

BLUEFOG = """
init shutdown suspend resume size local_size rank local_rank
machine_size machine_rank is_homogeneous
nccl_built mpi_threads_supported unified_mpi_window_model_supported
set_skip_negotiate_stage get_skip_negotiate_stage
load_topology set_topology load_machine_topology set_machine_topology
in_neighbor_ranks out_neighbor_ranks
in_neighbor_machine_ranks out_neighbor_machine_ranks
is_topo_weighted is_machine_topo_weighted topology_util
InferSourceFromDestinationRanks InferDestinationFromSourceRanks
allreduce allreduce_nonblocking allreduce_ allreduce_nonblocking_
allgather allgather_nonblocking
broadcast broadcast_nonblocking broadcast_ broadcast_nonblocking_
neighbor_allgather neighbor_allgather_nonblocking
neighbor_allreduce neighbor_allreduce_nonblocking
hierarchical_neighbor_allreduce hierarchical_neighbor_allreduce_nonblocking
pair_gossip pair_gossip_nonblocking poll synchronize wait barrier
CommunicationType DistributedGradientAllreduceOptimizer DistributedAllreduceOptimizer
DistributedNeighborAllreduceOptimizer DistributedHierarchicalNeighborAllreduceOptimizer
DistributedAdaptThenCombineOptimizer DistributedAdaptWithCombineOptimizer
DistributedWinPutOptimizer DistributedPullGetOptimizer DistributedPushSumOptimizer
broadcast_parameters allreduce_parameters broadcast_optimizer_state
timeline_start_activity timeline_end_activity timeline_context
win_create win_free win_update win_update_then_collect win_put_nonblocking win_put
win_get_nonblocking win_get win_accumulate_nonblocking win_accumulate win_wait win_poll
win_mutex win_lock get_win_version get_current_created_window_names win_associated_p
turn_on_win_ops_with_associated_p turn_off_win_ops_with_associated_p
neighbor_win_put neighbor_win_put_nonblocking neighbor_win_get
neighbor_win_get_nonblocking neighbor_win_accumulate neighbor_win_accumulate_nonblocking
"""

HOROVOD = """
init shutdown is_initialized size local_size rank local_rank cross_size cross_rank
is_homogeneous mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built
nccl_built ddl_built ccl_built cuda_built rocm_built
ProcessSet global_process_set add_process_set remove_process_set
Average Sum Min Max Product Adasum Compression HorovodInternalError
allreduce allreduce_ allreduce_async allreduce_async_ sparse_allreduce_async
grouped_allreduce grouped_allreduce_ grouped_allreduce_async grouped_allreduce_async_
allgather allgather_async grouped_allgather grouped_allgather_async
broadcast broadcast_ broadcast_async broadcast_async_ alltoall alltoall_async
reducescatter reducescatter_async grouped_reducescatter grouped_reducescatter_async
barrier join poll synchronize
DistributedOptimizer broadcast_parameters broadcast_optimizer_state
broadcast_object allgather_object SyncBatchNorm start_timeline stop_timeline elastic
"""

STARTING = [name for name in bf.__all__ if re.search("_(nonblocking|async)_?$", name)]
WITH_DEADLINE = sorted(
    {"barrier", *STARTING, *(re.sub("_nonblocking|_async", "", n) for n in STARTING)}
)


def test_all_lists_every_public_name():
    public = {
        name
        for name, value in vars(bf).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public | {
        "__version__",
        "data",
        "elastic",
        "topology",
        "topology_util",
    } == set(bf.__all__)
    assert bf.__all__ == sorted(set(bf.__all__))


@pytest.mark.parametrize("module", [bf, bluecomm.torch, bf.topology, hvd])
def test_shells_show_the_public_names_only(module):
    assert dir(module) == sorted(module.__all__)


def test_bluefogs_names_exist():
    assert set(BLUEFOG.split()) <= set(bf.__all__)


def test_horovods_names_are_those_of_its_module():
    assert sorted(HOROVOD.split()) == hvd.__all__
    for name in hvd.__all__:
        assert hasattr(hvd, name), name


@pytest.mark.parametrize("name", WITH_DEADLINE)
def test_each_operation_takes_a_deadline(name):
    assert "timeout_s" in inspect.signature(getattr(bf, name)).parameters


def test_the_predecessors_module_has_the_same_names():
    assert bluecomm.torch.__all__ == bf.__all__
    for name in bf.__all__:
        assert getattr(bluecomm.torch, name) is getattr(bf, name)


def test_inside_the_package_torch_is_pytorch():
    assert bluecomm.ops.tensor.torch is torch is not bluecomm.torch


@pytest.mark.parametrize("name", bf.__all__)
def test_docstrings_list_the_arguments(name):
    function = getattr(bf, name)
    if not inspect.isfunction(function):
        return
    listed = re.search(r"^Args:((?:\n    .*|\n)+)", inspect.getdoc(function), re.M)
    if listed:
        names = re.findall(r"^    \**(\w+):", listed[1], re.M)
        assert names == list(inspect.signature(function).parameters)


def test_two_names_for_one_thing():
    assert bf.Communicator is bf.ProcessSet
    assert bf.cross_rank is bf.machine_rank
    assert bf.cross_size is bf.machine_size
    for name in ("allreduce", "allgather", "alltoall", "broadcast", "reducescatter"):
        assert getattr(bf, f"{name}_async") is getattr(bf, f"{name}_nonblocking")
