"""The module that BlueFog's scripts import."""

import importlib

import bluecomm
from bluecomm import topology, topology_util

BLUEFOG_NAMES = {
    "ExponentialGraph",
    "ExponentialTwoGraph",
    "FullyConnectedGraph",
    "MeshGrid2DGraph",
    "RingGraph",
    "StarGraph",
    "SymmetricExponentialGraph",
    "IsRegularGraph",
    "IsTopologyEquivalent",
    "GetRecvWeights",
    "GetSendWeights",
    "isPowerOf",
    "GetDynamicOnePeerSendRecvRanks",
    "GetExp2DynamicSendRecvMachineRanks",
    "GetInnerOuterExpo2DynamicSendRecvRanks",
    "GetInnerOuterRingDynamicSendRecvRanks",
    "InferDestinationFromSourceRanks",
    "InferSourceFromDestinationRanks",
}


def test_has_the_names_and_meanings_of_the_package():
    assert BLUEFOG_NAMES.issubset(topology_util.__all__)
    for name in set(topology_util.__all__) & set(topology.__all__):
        assert getattr(topology_util, name) is getattr(topology, name)


def test_all_names_are_at_top_level_too():
    for name in topology_util.__all__:
        assert getattr(bluecomm, name) is getattr(topology_util, name)


def test_every_listed_name_exists():
    for module in (topology, topology_util):
        assert module.__all__ == sorted(set(module.__all__))
        assert all(hasattr(module, name) for name in module.__all__)


def test_scripts_may_import_from_the_module():
    module = importlib.import_module("bluecomm.topology_util")
    assert module is topology_util
    assert module.RingGraph is topology.RingGraph
