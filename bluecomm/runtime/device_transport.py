"""Chooses how tensors on CUDA devices travel, alike on all ranks."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Protocol, TypedDict

from bfrun.wording import count
from bluecomm.config import Config
from bluecomm.device.nccl import nccl_library
from bluecomm.device.runtime import current_runtime
from bluecomm.runtime.layout import MachineLayout

_log = logging.getLogger("bluecomm")

_STAGED = "staged"
_NCCL = "nccl"


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
        conflict: Why no rank can call NCCL, although a setting chooses it; empty if
            nothing is known. The first call raises it.

    Attributes:
        path: As above.
        conflict: As above.
    """

    def __init__(self, path: str, warning: str = "", conflict: str = "") -> None:
        self.path = path
        self.conflict = conflict
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
    if config.device_transport == _STAGED or not may_choose:
        return facts
    if config.device_transport == _NCCL:
        # A rank that has none raises an error in its first call.
        with contextlib.suppress(RuntimeError):
            facts["nccl"] = nccl_library().version
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

    Without a setting (``auto``) the path is NCCL if each rank has a GPU of its own and
    the same version of NCCL. Otherwise rank 0 warns why not when it first passes such a
    tensor to an operation.

    Args:
        config: Settings.
        rank: This rank.
        peers: Records of all ranks.
        layout: The real machines of the ranks.
    """
    if config.device_transport == _STAGED:
        return DeviceTransport(_STAGED)
    if config.device_transport == _NCCL:
        return DeviceTransport(_NCCL, conflict=_conflict(peers))
    if not any(peer.devices["gpus"] for peer in peers):
        return DeviceTransport(_STAGED)
    for peer in peers:
        if problem := _problem(peer, peers[0], layout.local_size(peer.rank)):
            warning = (
                "tensors on GPUs travel through memory of the host, because rank "
                f"{peer.rank} on {peer.host} {problem}; BLUECOMM_DEVICE_TRANSPORT="
                "staged chooses this without a warning"
            )
            return DeviceTransport(_STAGED, warning if rank == 0 else "")
    return DeviceTransport(_NCCL)


def _conflict(peers: Sequence[RankRecord]) -> str:
    """Return which ranks have another NCCL than the first; empty if none has."""
    having = [peer for peer in peers if peer.devices["nccl"]]
    for peer in having[1:]:
        version, first = peer.devices["nccl"], having[0]
        if version != first.devices["nccl"]:
            return (
                f"rank {peer.rank} on {peer.host} has NCCL {version}, and rank "
                f"{first.rank} on {first.host} has NCCL {first.devices['nccl']}; "
                "install the same NCCL, which torch brings, on all hosts, or set "
                "BLUECOMM_DEVICE_TRANSPORT=staged"
            )
    return ""


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
