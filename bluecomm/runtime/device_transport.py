"""Chooses how tensors on CUDA devices travel, alike on all ranks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol, TypedDict

from bfrun.wording import count
from bluecomm.config import Config
from bluecomm.device.nccl import nccl_library
from bluecomm.device.runtime import current_runtime
from bluecomm.runtime.layout import MachineLayout

_log = logging.getLogger("bluecomm")

_AUTO = "auto"


class DeviceFacts(TypedDict):
    """Facts about its GPUs that each rank sends to the others before they choose.

    Attributes:
        gpus: Number of GPUs that the process sees.
        are_own: Whether no other rank uses these.
        nccl: Version of NCCL; empty if it cannot be used.
        problem: Why it cannot.
    """

    gpus: int
    are_own: bool
    nccl: str
    problem: str


class DeviceTransport:
    """The path of tensors on CUDA devices, the same on all ranks.

    Args:
        path: ``"nccl"`` or ``"staged"``.
        warning: Text for the first tensor on a device that does not go through NCCL;
            empty if there is nothing to say. A program without such tensors need not
            know.

    Attributes:
        path: As above.
    """

    def __init__(self, path: str, warning: str = "") -> None:
        self.path = path
        self._warning = warning

    def offers_nccl(self) -> bool:
        """Return whether tensors on devices may go through NCCL; warn once if not."""
        warning, self._warning = self._warning, ""
        if warning:
            _log.warning("%s", warning)
        return self.path == "nccl"


class RankRecord(Protocol):
    """The attributes of a rank's record that the choice needs."""

    @property
    def rank(self) -> int:
        """The rank."""

    @property
    def host(self) -> str:
        """Name of its host."""

    @property
    def devices(self) -> DeviceFacts:
        """The facts that it has sent."""


def device_facts(config: Config, *, may_choose: bool) -> DeviceFacts:
    """Return the facts about this rank. CUDA is not started.

    Args:
        config: Settings.
        may_choose: Whether the job can use NCCL at all.
    """
    facts = DeviceFacts(
        gpus=0, are_own=config.gpus_per_rank is not None, nccl="", problem=""
    )
    if config.device_transport != _AUTO or not may_choose:
        return facts
    facts["gpus"] = current_runtime().count()
    if config.share_gpus:
        facts["problem"] = "shares its GPU with other ranks (BLUECOMM_SHARE_GPUS)"
    elif facts["gpus"]:
        try:
            facts["nccl"] = nccl_library().version
        except RuntimeError as error:
            facts["problem"] = f"cannot use NCCL: {error}"
    return facts


def choose_device_transport(
    config: Config, rank: int, peers: Sequence[RankRecord], layout: MachineLayout
) -> DeviceTransport:
    """Return the path of tensors on CUDA devices.

    Without a setting it is NCCL if each rank has a GPU of its own and the same NCCL.
    Otherwise rank 0 says why not when it first passes such a tensor to an operation.

    Args:
        config: Settings.
        rank: This rank.
        peers: Records of all ranks.
        layout: The real machines of the ranks.
    """
    if config.device_transport != _AUTO:
        return DeviceTransport(config.device_transport)
    if not any(peer.devices["gpus"] for peer in peers):
        return DeviceTransport("staged")
    for peer in peers:
        if problem := _problem(peer, peers[0], layout.local_size(peer.rank)):
            warning = (
                "tensors on GPUs travel through memory of the host, because rank "
                f"{peer.rank} on {peer.host} {problem}; BLUECOMM_DEVICE_TRANSPORT="
                "staged chooses this without a warning"
            )
            return DeviceTransport("staged", warning if rank == 0 else "")
    return DeviceTransport("nccl")


def _problem(peer: RankRecord, first: RankRecord, ranks: int) -> str:
    """Return why a rank cannot call NCCL with rank 0, or an empty text.

    Args:
        peer: Its record.
        first: Record of rank 0.
        ranks: Number of ranks on its machine.
    """
    facts = peer.devices
    if not facts["gpus"]:
        return "sees no GPU"
    if facts["problem"]:
        return facts["problem"]
    if not facts["are_own"] and ranks > facts["gpus"]:
        return (
            f"sees {count(facts['gpus'], 'GPU')}, and its machine has {ranks} ranks "
            "(set BLUECOMM_GPUS_PER_RANK if the launcher shows each rank its own)"
        )
    if facts["nccl"] != first.devices["nccl"]:
        return f"has NCCL {facts['nccl']}, and rank 0 has {first.devices['nccl']}"
    return ""
