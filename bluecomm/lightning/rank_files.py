"""Files that each rank saves beside a checkpoint, to continue exactly."""

from __future__ import annotations

from typing import Any

import torch
from lightning.fabric.utilities.cloud_io import get_filesystem

from bluecomm.ops.allreduce import allreduce
from bluecomm.ops.reduce_op import Min
from bluecomm.optim.wrapper import STATE_KEY
from bluecomm.runtime import current_communicator


def path_of_rank(path: object) -> str:
    """Return the path of this rank's file beside the checkpoint at ``path``."""
    comm = current_communicator()
    return f"{path}.rank-{comm.rank}-of-{comm.size}"


def all_ranks_have(path: object) -> bool:
    """Return whether every rank has its file beside a checkpoint. Collective."""
    own = path_of_rank(path)
    has = torch.tensor(int(get_filesystem(own).exists(own)))
    return bool(allreduce(has, op=Min, name="bluecomm.lightning.rank_files"))


def without_rank_state(state: dict[str, Any]) -> dict[str, Any]:
    """Return an optimizer's state without what differs between ranks by design.

    An algorithm's own tensors belong to one rank. Loaded on all, they would be wrong,
    and an algorithm starts correctly without them.
    """
    return {key: value for key, value in state.items() if key != STATE_KEY}
