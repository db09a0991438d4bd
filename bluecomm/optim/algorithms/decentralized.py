"""Bagua's decentralized algorithm: averaging with all ranks, or with rotating peers."""

from __future__ import annotations

from bluecomm.optim.algorithms.parameter_averaging import ParameterAveraging
from bluecomm.optim.exchanges.exchange import EXCHANGES, Exchange
from bluecomm.optim.options import CommunicationType
from bluecomm.optim.registry import register_algorithm
from bluecomm.runtime import Communicator
from bluecomm.topology import ShiftOne, TopologySchedule, WeightedMatchings

MODES = ("all", "shift_one")


@register_algorithm("decentralized")
class Decentralized(ParameterAveraging):
    """Parameter averaging in CTA order, with peers that are chosen as in Bagua.

    ``x <- step(W x, g(x))``, where ``W x`` is the mean over the peers of the parameters
    as they were before the forward pass. The peers are all ranks, so that ``W`` is the
    exact mean, or one other rank or machine, by the schedule ``ShiftOne``.

    Between machines (``hierarchical=True``), the ranks of two partners take the mean of
    all of their parameters: a machine counts by its number of ranks. Bagua takes the
    mean of the machines' means, which gives the ranks of small machines more weight.
    Unlike Bagua, ``shift_one`` works with an odd number of ranks or machines: one of
    them has no partner in a round.

    Bagua's ``communication_interval`` is ``num_steps_per_communication`` here. A round
    belongs to the last step of an interval, in Bagua to the first.

    Args:
        peer_selection_mode: ``"all"`` or ``"shift_one"``.
        hierarchical: Whether the peers of ``"shift_one"`` are machines, whose ranks
            first take their mean. With ``"all"`` it changes nothing.
        uneven_inputs: Let ranks ``join`` when they run out of data.

    Raises:
        ValueError: ``peer_selection_mode`` is something else.

    Source:
        Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?",
        NeurIPS 2017, arXiv:1705.09056. Gan et al., "BAGUA: Scaling up Distributed
        Learning with System Relaxations", VLDB 2021, arXiv:2107.01499.
    """

    works_on_devices = True
    survives_losses = True
    admits_newcomers = True

    def __init__(
        self,
        *,
        peer_selection_mode: str = "all",
        hierarchical: bool = True,
        uneven_inputs: bool = False,
    ) -> None:
        if peer_selection_mode not in MODES:
            raise ValueError(
                f"peer_selection_mode must be one of {', '.join(MODES)}, got "
                f"{peer_selection_mode!r}"
            )
        super().__init__(order="cta", uneven_inputs=uneven_inputs)
        if peer_selection_mode == "all":
            self.communication_type = CommunicationType.allreduce
        elif hierarchical:
            self.communication_type = CommunicationType.hierarchical_neighbor_allreduce
        else:
            self.communication_type = CommunicationType.neighbor_allreduce

    def make_exchange(self) -> Exchange:
        comm, kind = self.context.comm, self.communication_type
        topology: TopologySchedule | None = None
        if kind is CommunicationType.neighbor_allreduce:
            topology = ShiftOne(comm.size)
        elif kind is CommunicationType.hierarchical_neighbor_allreduce:
            topology = _between_machines(comm)
        return EXCHANGES[kind](comm, self.context.settings, topology)

    def _check_survives(self) -> None:
        super()._check_survives()
        if self.communication_type is CommunicationType.hierarchical_neighbor_allreduce:
            raise ValueError(
                "DistributedOptimizer: decentralized with peer_selection_mode="
                "'shift_one' needs all ranks of a machine, so it does not go with "
                "bfrun --on-failure continue; pass hierarchical=False, or "
                "peer_selection_mode='all'"
            )


def _between_machines(comm: Communicator) -> TopologySchedule:
    """Return the matchings of machines, which count by their ranks."""
    machine_of = list(comm.layout.machine_of)
    ranks = [machine_of.count(machine) for machine in range(comm.machine_size)]
    return WeightedMatchings(ShiftOne(comm.machine_size), ranks)
