"""The ranks tell each other which gradients exist and are finite."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from bfrun.wording import format_ranks
from bluecomm.device.staging import HostCopy
from bluecomm.ops.refusal import told
from bluecomm.ops.start import start_gather
from bluecomm.optim.algorithm import Context, wait_for
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.dense_only import sparse_error
from bluecomm.optim.failures import Failures
from bluecomm.optim.finite import is_finite, refuse_not_finite
from bluecomm.runtime import Handle
from bluecomm.runtime.handle import MappedHandle

# The state of a parameter's gradient on one rank. 0: there is none. A message says
# _FINITE of all that are dense.
_FINITE, _NOT_FINITE, _SPARSE = 1, 2, 3
# The way to train with sparse gradients.
_INSTEAD = "gradient_allreduce with SparseAdam"


class GradientStates:
    """Makes gradients exist, and be finite, on all ranks or on none.

    For algorithms whose gradients stay the ranks' own until the step. A missing
    gradient becomes zero if another rank has one. A gradient that is not finite on some
    rank becomes NaN on all ranks, so that a ``GradScaler`` skips the step everywhere.

    A message has two bytes for each parameter: whether the flat gradient is finite,
    which its device finds out, and then the state that the host knows.

    Args:
        context: The optimizer.
        method: Name of the algorithm, for errors.
    """

    def __init__(self, context: Context, method: str) -> None:
        self._context = context
        self._method = method
        self._handles: dict[Bucket, Handle[torch.Tensor]] = {}
        # The ranks whose gradient of a parameter is not finite.
        self._not_finite: dict[tuple[Bucket, int], list[int]] = {}

    def check_layers(self, buckets: Iterable[Bucket]) -> None:
        """Raise if a layer is known to have sparse gradients.

        Raises:
            ValueError: One is.
        """
        for bucket in buckets:
            for slot in bucket.slots:
                if id(slot.parameter) in self._context.sparse_parameters:
                    raise sparse_error(self._method, slot.name, instead=_INSTEAD)

    def start(self, bucket: Bucket, name: str) -> None:
        """Start to compare a bucket's gradients, which are in flat memory.

        Args:
            bucket: The bucket.
            name: Name of the operation.
        """
        message = _states_of(bucket)
        gathered = start_gather(
            self._context.comm,
            "allgather",
            message.values,
            name=name,
            timeout_s=None,
            gate=message.gate,
        )
        self._handles[bucket] = MappedHandle(gathered, lambda result: result[0])

    def finish(self) -> None:
        """Wait for all comparisons under way, and hand out the gradients.

        Raises:
            ValueError: A gradient is sparse on some rank; raised on all ranks.
            BluecommError: An operation failed.
        """
        handles, self._handles = self._handles, {}
        failures = Failures()
        for bucket, handle in handles.items():
            with failures.kept():
                found = wait_for(handle).view(self._context.comm.size, 2, -1)
                finite, states = found.unbind(1)
                is_bad = (states == _FINITE) & (finite == 0)
                self._agree(bucket, states.masked_fill(is_bad, _NOT_FINITE))
        failures.raise_first()

    def refuse_not_finite(self) -> None:
        """Raise, on all ranks, if gradients that were not finite are about to be used.

        Raises:
            FloatingPointError: They are; the text names parameters and ranks.
        """
        refuse_not_finite(
            (
                f"{bucket.slots[position].name!r} on {format_ranks(ranks, noun=True)}"
                for (bucket, position), ranks in self._not_finite.items()
                if (gradient := bucket.slots[position].parameter.grad) is not None
                and not is_finite(gradient)
            ),
            f"and {self._method} would keep them in its momentum",
        )

    def _agree(self, bucket: Bucket, of_ranks: torch.Tensor) -> None:
        """Change a bucket's gradients by the states of all ranks.

        Args:
            bucket: The bucket.
            of_ranks: States of the gradients; shape ``(ranks, parameters)``.

        Raises:
            ValueError: A gradient is sparse on some rank; raised on all ranks.
        """
        worst = of_ranks.amax(0)
        gradients = bucket.gradients
        for key in [key for key in self._not_finite if key[0] is bucket]:
            del self._not_finite[key]
        for position in (worst > _FINITE).nonzero().flatten().tolist():
            state = int(worst[position])
            has_it = (of_ranks[:, position] == state).nonzero().flatten().tolist()
            ranks = [self._context.comm.ranks[member] for member in has_it]
            if state == _SPARSE:
                where = f" on {format_ranks(ranks, noun=True)}"
                raise told(
                    sparse_error(
                        self._method,
                        bucket.slots[position].name,
                        where,
                        instead=_INSTEAD,
                    )
                )
            self._not_finite[bucket, position] = ranks
            gradients.fill_with_nan(position)
        gradients.flags.copy_(worst > 0)
        gradients.hand_out()


def _states_of(bucket: Bucket) -> HostCopy:
    """Return the message about a bucket's gradients, which are in flat memory."""
    gradients, count = bucket.gradients, len(bucket.slots)
    staging, parts = gradients.staging, torch.split(gradients.values, gradients.lengths)
    if staging is None:
        message = HostCopy(torch.ones(2 * count, dtype=torch.uint8), None)
        if not is_finite(gradients.values):
            found = [is_finite(part) for part in parts]
            message.values[:count].copy_(torch.tensor(found))
    else:
        values = staging.empty_on_host((2 * count,), torch.uint8)
        gradients.follow_streams()
        finite = torch.stack([part.isfinite().all() for part in parts])
        copy = staging.to_host(finite.to(torch.uint8), into=values[:count])
        message = HostCopy(values, copy.gate)
    states = message.values[count:]
    states.copy_(_FINITE * (gradients.flags > 0).to(torch.uint8))
    states[gradients.sparse_flags > 0] = _SPARSE
    return message
