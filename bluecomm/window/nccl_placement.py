"""Places the slots of a window where neighbors put through NCCL, alike on all ranks.

Only with ``BLUECOMM_WINDOWS=nccl``; docs/notes/windows.md has the states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from bluecomm.device.cuda_staging import CudaStaging
from bluecomm.device.nccl import nccl_library
from bluecomm.device.staging_table import staging_of
from bluecomm.errors import BluecommError
from bluecomm.ops.objects import allgather_object
from bluecomm.runtime import Communicator
from bluecomm.window.nccl_slots import NcclOffer, NcclSlots
from bluecomm.window.neighbors import window_neighbors

# In NCCL's text of an error that another rank's causes.
_REMOTE = "remote process exited"


class NcclPlacement:
    """This rank's offer of slots for one window, and the agreement of all ranks.

    Args:
        comm: The ranks.
        tensor: The window's tensor.
        name: Name of the window.
        is_combined: Whether kernels add tensors of this type as the engine does.

    Attributes:
        offer: The offer, or a text that says why there is none. An empty text lets all
            ranks use memory of the host, without an error.
    """

    def __init__(
        self, comm: Communicator, tensor: torch.Tensor, name: str, *, is_combined: bool
    ) -> None:
        self._comm = comm
        self._name = name
        self._slots: NcclSlots | None = None
        self.offer: NcclOffer | str = ""
        staging = staging_of(tensor)
        if not isinstance(staging, CudaStaging) or not is_combined or not tensor.nbytes:
            return
        try:
            self._slots = self._make(staging, tensor)
        except RuntimeError as error:
            self.offer = f"cannot put through NCCL: {error}"
        else:
            self.offer = self._slots.offer

    def _make(self, staging: CudaStaging, tensor: torch.Tensor) -> NcclSlots:
        """Return slots in memory of the device.

        Raises:
            RuntimeError: The job cannot have such windows.
        """
        world = self._comm.world
        if world.members.survives_losses:
            raise RuntimeError("the job survives losses")
        if world.device_transport.path != "nccl":
            raise RuntimeError("tensors of this job are staged")
        sources, targets = window_neighbors(self._comm)
        return NcclSlots(
            staging,
            nccl_library(),
            tensor,
            self._name,
            self._comm.rank,
            sources,
            targets,
        )

    def agree(
        self, name: str, offers: Mapping[int, Any], timeout_s: float | None
    ) -> NcclSlots | None:
        """Return the slots, connected; ``None`` for those of the host.

        All ranks get the same answer.

        Raises:
            BluecommError: Some ranks cannot put through NCCL; the text names one.
            PeerLostError: A rank is lost.
            CommunicationTimeout: A rank has not come in time.
        """
        texts = {rank: one for rank, one in offers.items() if isinstance(one, str)}
        problems = {rank: text for rank, text in texts.items() if text}
        if not texts:
            try:
                problems = self._connect(offers, timeout_s)
            except BaseException:
                self.withdraw()
                raise
            if not problems:
                return self._slots
        self.withdraw()
        if problems:
            # The others' errors may only say that this rank has ended its communicator.
            rank = min(problems, key=lambda one: (_REMOTE in problems[one], one))
            problem = problems[rank]
            raise BluecommError.describe(
                f"BLUECOMM_WINDOWS=nccl is set, but rank {rank} {problem}",
                operation="win_create",
                name=name,
                rank=self._comm.rank,
                peers=[rank],
                remedy="Unset BLUECOMM_WINDOWS on all ranks.",
            )
        return None

    def _connect(
        self, offers: Mapping[int, NcclOffer], timeout_s: float | None
    ) -> dict[int, str]:
        """Connect all ranks; return the problems of each."""
        slots, comm = self._slots, self._comm
        assert slots is not None
        limit_s = timeout_s or comm.world.config.operation_timeout_s
        problem = ""
        try:
            slots.connect(offers, limit_s)
        except (BluecommError, RuntimeError) as error:  # RuntimeError: of torch
            slots.abort()  # the other ranks wait for this one
            problem = f"cannot connect NCCL: {str(error).rstrip('.')}"
        found = allgather_object(
            (comm.rank, problem), comm.name_for("win_create", None), timeout_s=timeout_s
        )
        return {rank: text for rank, text in found if text}

    def withdraw(self) -> None:
        """End what this rank has offered."""
        if self._slots is not None:
            self._slots.abort()
            self._slots = None
