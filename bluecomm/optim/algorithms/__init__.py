"""The algorithms, one file each. Importing this package registers them."""

from bluecomm.optim.algorithms.allreduce import Allreduce
from bluecomm.optim.algorithms.decentlam import DecentLaM
from bluecomm.optim.algorithms.exact_diffusion import D2, ExactDiffusion
from bluecomm.optim.algorithms.extra import Extra
from bluecomm.optim.algorithms.gossip_pga import GossipPGA
from bluecomm.optim.algorithms.gradient_allreduce import GradientAllreduce
from bluecomm.optim.algorithms.gradient_tracking import GradientTracking
from bluecomm.optim.algorithms.hierarchical_neighbor_allreduce import (
    HierarchicalNeighborAllreduce,
)
from bluecomm.optim.algorithms.local import Local
from bluecomm.optim.algorithms.local_sgd import LocalSGD
from bluecomm.optim.algorithms.momentum_tracking import MomentumTracking
from bluecomm.optim.algorithms.neighbor_allreduce import NeighborAllreduce
from bluecomm.optim.algorithms.one_sided import PullGet, PushSum, WinPut
from bluecomm.optim.algorithms.outer_step import DiLoCo, NoLoCo

__all__ = [
    "D2",
    "Allreduce",
    "DecentLaM",
    "DiLoCo",
    "ExactDiffusion",
    "Extra",
    "GossipPGA",
    "GradientAllreduce",
    "GradientTracking",
    "HierarchicalNeighborAllreduce",
    "Local",
    "LocalSGD",
    "MomentumTracking",
    "NeighborAllreduce",
    "NoLoCo",
    "PullGet",
    "PushSum",
    "WinPut",
]
