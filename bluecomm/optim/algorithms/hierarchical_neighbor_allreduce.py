"""Averaging of parameters inside machines and between neighboring machines."""

from __future__ import annotations

from bluecomm.optim.algorithms.parameter_averaging import ParameterAveraging
from bluecomm.optim.options import CommunicationType
from bluecomm.optim.registry import register_algorithm


@register_algorithm("hierarchical_neighbor_allreduce")
class HierarchicalNeighborAllreduce(ParameterAveraging):
    """Parameter averaging: exact inside a machine, with neighbors between machines.

    ``W = U M V``: ``V`` takes the mean of each machine, ``M`` is the mixing matrix of
    the machine topology, and ``U`` gives each rank its machine's result.
    """

    works_on_devices = True
    communication_type = CommunicationType.hierarchical_neighbor_allreduce
