"""Local SGD: every rank steps alone, and all ranks average every few steps."""

from __future__ import annotations

from bluecomm.optim.algorithms.parameter_averaging import ParameterAveraging
from bluecomm.optim.options import CommunicationType
from bluecomm.optim.registry import register_algorithm


@register_algorithm("local_sgd")
class LocalSGD(ParameterAveraging):
    """Exact mean of the parameters after every ``num_steps_per_communication`` steps.

    ``x_i <- mean_j x_j`` after that many steps of the user's optimizer with each rank's
    own gradients. It equals ``allreduce`` in ATC order, under the papers' name.

    Args:
        uneven_inputs: Let ranks ``join`` when they run out of data.

    Source:
        Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019,
        arXiv:1805.09767.
    """

    works_on_devices = True
    communication_type = CommunicationType.allreduce
    survives_losses = True
    admits_newcomers = True

    def __init__(self, *, uneven_inputs: bool = False) -> None:
        super().__init__(order="atc", uneven_inputs=uneven_inputs)
