"""Averaging of parameters over all ranks."""

from __future__ import annotations

from bluecomm.optim.algorithms.parameter_averaging import ParameterAveraging
from bluecomm.optim.options import CommunicationType
from bluecomm.optim.registry import register_algorithm


@register_algorithm("allreduce")
class Allreduce(ParameterAveraging):
    """Parameter averaging with the exact mean: ``W[i, j] = 1 / n``.

    Unlike with ``gradient_allreduce``, each rank's optimizer state follows its own
    gradients.
    """

    works_on_devices = True
    communication_type = CommunicationType.allreduce
    survives_losses = True
    admits_newcomers = True
