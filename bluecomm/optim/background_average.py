"""Averages the parameters of all ranks while they change, one round at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bfrun.wording import format_ranks
from bluecomm.ops.allreduce import allreduce_nonblocking, allreduce_parts_nonblocking
from bluecomm.ops.reduce_op import Average, Sum
from bluecomm.ops.refusal import told
from bluecomm.optim.algorithm import Context
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.finite import is_finite
from bluecomm.optim.kept_progress import replace_base
from bluecomm.runtime import Handle
from bluecomm.runtime.handle import wait_all


class BackgroundAverage:
    """Rounds that average snapshots of the parameters, and are applied later.

    A rank starts its part of a round when it likes: operations are matched by name and
    number. ``start`` takes a snapshot ``s_i`` of the parameters ``x_i``. Once
    ``is_done``, ``apply`` computes ``x_i <- mean_j s_j + (x_i - s_i)``, which keeps the
    steps since the snapshot. A rank without such steps gets exactly the mean.

    Each round also tells all ranks which of them want to end, and which have
    parameters that are not finite.

    Args:
        context: The optimizer; its world has at least two ranks.
        buckets: Buckets whose parameters are in flat memory.
    """

    def __init__(self, context: Context, buckets: Sequence[Bucket]) -> None:
        self._context = context
        self._buckets = buckets
        self._all_end = False
        # Snapshots and their means; peers read the snapshots.
        self._sent = [bucket.empty() for bucket in buckets]
        self._means = [bucket.empty() for bucket in buckets]
        self._handles: list[Handle[torch.Tensor]] = []

    @property
    def is_under_way(self) -> bool:
        """Whether a round has been started and not applied."""
        return bool(self._handles)

    @property
    def is_done(self) -> bool:
        """Whether ``apply`` would not have to wait."""
        return all(handle.done() for handle in self._handles)

    @property
    def all_end(self) -> bool:
        """Whether all ranks wanted to end in the last round that ``apply`` waited for.

        It is the same on all ranks, also if ``apply`` raised FloatingPointError.
        """
        return self._all_end

    def start(self, *, is_ending: bool) -> None:
        """Take a snapshot, and start this rank's part of a round.

        Waits for a device, to learn whether its parameters are finite.

        Args:
            is_ending: Whether this rank takes no further steps.
        """
        comm, name = self._context.comm, self._context.name
        notes = torch.zeros(1 + comm.size, dtype=torch.int64)
        notes[0] = is_ending
        for bucket, sent in zip(self._buckets, self._sent, strict=True):
            sent.copy_(bucket.parameters.current)
            notes[1 + comm.rank] |= not is_finite(sent)
        for bucket, sent, mean in zip(
            self._buckets, self._sent, self._means, strict=True
        ):
            handle = allreduce_parts_nonblocking(
                sent,
                (),
                op=Average,
                name=f"{bucket.name}.parameters",
                process_set=comm,
                output=mean,
            )
            self._handles.append(handle)
        self._handles.append(
            allreduce_nonblocking(notes, op=Sum, name=f"{name}.notes", process_set=comm)
        )

    def apply(self) -> None:
        """Wait for the round, and add the correction to the parameters.

        Raises:
            FloatingPointError: Parameters of some ranks were not finite when they were
                sent. All ranks raise it, and keep their parameters.
            BluecommError: The round failed.
        """
        handles, self._handles = self._handles, []
        *_, notes = wait_all(handles)
        self._all_end = int(notes[0]) == self._context.comm.size
        self._check_finite(notes[1:])
        for bucket, sent, mean in zip(
            self._buckets, self._sent, self._means, strict=True
        ):
            replace_base(bucket.parameters.current, sent, mean)

    def _check_finite(self, counts: torch.Tensor) -> None:
        if not counts.any():
            return
        comm = self._context.comm
        ranks = [comm.ranks[member] for member in counts.nonzero().flatten().tolist()]
        raise told(
            FloatingPointError(
                f"{self._context.name}: the parameters on "
                f"{format_ranks(ranks, noun=True)} are not finite, and their mean "
                "would not be, either. Lower the learning rate, clip gradients, or "
                "skip steps whose loss is not finite, as torch.amp.GradScaler does"
            )
        )
