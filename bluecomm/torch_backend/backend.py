"""Makes the process groups that torch asks for."""

from __future__ import annotations

import datetime
from typing import Any

import torch.distributed as dist

from bluecomm.torch_backend.group import BluecommProcessGroup
from bluecomm.torch_backend.members import new_communicator
from bluecomm.torch_backend.store_rendezvous import share_world

# torch passes this where the program gives no timeout.
_UNSET = dist.distributed_c10d.default_pg_timeout


def create_group(options: Any, _: Any) -> BluecommProcessGroup:
    """Return the process group that torch describes.

    Args:
        options: torch's description of the group.
    """
    share = share_world(options)
    try:
        ranks = options.global_ranks_in_group or range(options.group_size)
        members = new_communicator(share.communicator.world, ranks)
        limit_s = _limit_s(options.timeout)
        return BluecommProcessGroup(members, share, options.store, limit_s)
    except BaseException:
        share.release()
        raise


def _limit_s(timeout: datetime.timedelta) -> float | None:
    """Return the deadline of a group; None if the program gave none."""
    return None if timeout == _UNSET else timeout.total_seconds()
