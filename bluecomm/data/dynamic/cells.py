"""Chooses where the ledger of a pass lives."""

from __future__ import annotations

import torch.distributed as dist

from bluecomm.basics import is_initialized
from bluecomm.data.dynamic.cell import Cell
from bluecomm.data.dynamic.ledger import LedgerState
from bluecomm.data.dynamic.local_cell import LocalCell
from bluecomm.data.dynamic.member_cell import MemberCell, open_service
from bluecomm.data.dynamic.store_cell import StoreCell
from bluecomm.data.world import DataWorld


def serve_ledgers() -> None:
    """Let this rank keep ledgers for others from now on, in a job of bluecomm."""
    if is_initialized():
        open_service()


def open_cell(world: DataWorld, name: str, initial: LedgerState) -> Cell:
    """Return this rank's way to the ledger of a pass.

    Args:
        world: The ranks that share the data.
        name: Name of the ledger, the same on all ranks, and used once.
        initial: The ledger with which the pass begins, the same on all ranks.
    """
    if world.size == 1:
        return LocalCell(initial)
    if is_initialized():
        return MemberCell(name, initial)
    assert dist.is_initialized()
    return StoreCell(name, initial)
