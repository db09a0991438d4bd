"""The algorithms, one file each. Importing this package registers them."""

from bluecomm.optim.algorithms.allreduce import Allreduce
from bluecomm.optim.algorithms.gradient_allreduce import GradientAllreduce
from bluecomm.optim.algorithms.hierarchical_neighbor_allreduce import (
    HierarchicalNeighborAllreduce,
)
from bluecomm.optim.algorithms.local import Local
from bluecomm.optim.algorithms.neighbor_allreduce import NeighborAllreduce

__all__ = [
    "Allreduce",
    "GradientAllreduce",
    "HierarchicalNeighborAllreduce",
    "Local",
    "NeighborAllreduce",
]
