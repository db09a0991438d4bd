"""Chooses where the slots of a window lie, alike on all ranks.

docs/notes/windows.md has the states.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch

from bluecomm.device.cuda_staging import CudaStaging
from bluecomm.device.staging_table import staging_of
from bluecomm.ops.objects import allgather_object
from bluecomm.runtime import Communicator
from bluecomm.window.mapped_slots import MappedSlots, Offer
from bluecomm.window.neighbors import window_neighbors

_log = logging.getLogger("bluecomm")

# Types that kernels of torch add as the engine does.
_COMBINED = frozenset(
    {
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    }
)


def is_combined(tensor: torch.Tensor) -> bool:
    """Return whether kernels add tensors of this type as the engine does."""
    return tensor.dtype in _COMBINED


class SlotPlacement:
    """This rank's offer of slots for one window, and the agreement of all ranks.

    Attributes:
        offer: The offer, or a text that says why there is none. It is empty if the
            program need not know.
    """

    def __init__(
        self, comm: Communicator, tensor: torch.Tensor, *, is_taken: bool
    ) -> None:
        self._comm = comm
        self._slots: MappedSlots | None = None
        self.offer: Offer | str = ""
        sources, targets = window_neighbors(comm)
        self._neighbors = sorted({*sources, *targets})
        staging = staging_of(tensor)
        if (
            is_taken
            or not isinstance(staging, CudaStaging)
            or not self._may_map(tensor)
        ):
            return
        try:
            self._slots = MappedSlots(staging, tensor, sources, targets)
        except RuntimeError as error:
            self.offer = f"cannot share memory of {staging.name}: {error}"
        else:
            self.offer = self._slots.offer

    def _may_map(self, tensor: torch.Tensor) -> bool:
        """Return whether the slots of this rank may lie on a device at all."""
        world = self._comm.world
        return (
            tensor.nbytes > 0
            and is_combined(tensor)
            and world.config.device_transport != "staged"
            and not world.members.survives_losses
            and all(world.transport_of(rank) == "shm" for rank in self._neighbors)
        )

    def agree(
        self, name: str, offers: Mapping[int, Offer | str], timeout_s: float | None
    ) -> MappedSlots | None:
        """Return the slots in memory of the devices; ``None`` for those of the host.

        All ranks get the same answer.

        Args:
            name: Name of the window.
            offers: The offers of all ranks.
            timeout_s: Deadline that the program gave, if any.

        Raises:
            PeerLostError: A rank is lost.
            CommunicationTimeout: A rank has not come in time.
        """
        problems = {
            rank: offer for rank, offer in offers.items() if isinstance(offer, str)
        }
        if self._slots is not None and not problems:
            problems = self._map(offers, timeout_s)
            if not problems:
                return self._slots
        self.withdraw()
        told = {rank: problem for rank, problem in problems.items() if problem}
        if told and self._comm.rank == min(offers):
            rank, problem = min(told.items())
            _log.warning(
                "win_create %r: the values of the window are in memory of the host, "
                "because rank %d %s; BLUECOMM_DEVICE_TRANSPORT=staged chooses this "
                "without a warning",
                name,
                rank,
                problem,
            )
        return None

    def _map(
        self, offers: Mapping[int, Offer | str], timeout_s: float | None
    ) -> dict[int, str]:
        """Map the slots of all neighbors; return the problems of all ranks."""
        slots, comm = self._slots, self._comm
        assert slots is not None
        problem = ""
        try:
            for rank in self._neighbors:
                offer = offers[rank]
                assert isinstance(offer, Offer)
                slots.map(rank, offer, comm.rank)
        except RuntimeError as error:
            problem = f"cannot map memory of the device of rank {rank}: {error}"
        try:
            found = allgather_object(
                (comm.rank, problem),
                comm.name_for("win_create", None),
                timeout_s=timeout_s,
            )
        except BaseException:
            slots.unmap()
            # Neighbors may have mapped the memory, so it is kept.
            comm.windows_in_doubt.append(slots)
            self._slots = None
            raise
        problems = {rank: text for rank, text in found if text}
        if problems:
            # Memory may be freed only when all have ended their mappings.
            slots.unmap()
            allgather_object(
                comm.rank, comm.name_for("win_create", None), timeout_s=timeout_s
            )
        return problems

    def withdraw(self) -> None:
        """Free what this rank has offered, which no other rank has mapped."""
        if self._slots is not None:
            self._slots.free()
            self._slots = None
