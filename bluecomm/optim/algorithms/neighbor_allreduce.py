"""Averaging of parameters with the neighbors of a topology."""

from __future__ import annotations

from bluecomm.optim.algorithms.parameter_averaging import ParameterAveraging
from bluecomm.optim.options import CommunicationType
from bluecomm.optim.registry import register_algorithm


@register_algorithm("neighbor_allreduce")
class NeighborAllreduce(ParameterAveraging):
    """Parameter averaging with the mixing matrix ``W`` of a graph of ranks.

    The topology in force, or ``topology=`` for one that changes from round to round;
    the cost of a step does not grow with the number of ranks.
    """

    communication_type = CommunicationType.neighbor_allreduce
