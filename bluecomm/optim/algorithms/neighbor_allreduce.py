"""Averaging of parameters with the neighbors of a topology."""

from __future__ import annotations

from bluecomm.optim.algorithms.parameter_averaging import ParameterAveraging
from bluecomm.optim.options import CommunicationType
from bluecomm.optim.registry import register_algorithm


@register_algorithm("neighbor_allreduce")
class NeighborAllreduce(ParameterAveraging):
    """Parameter averaging with the mixing matrix ``W`` of a graph of ranks.

    The weights come from the topology in force, or from ``topology=``, which may change
    from round to round. The cost of a step does not grow with the number of ranks.
    """

    works_on_devices = True
    communication_type = CommunicationType.neighbor_allreduce
    survives_losses = True
    trains_apart = True
    admits_newcomers = True
