"""Averages the gradients of a bucket as products of two thin matrices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

import torch

from bfrun.wording import format_ranks
from bluecomm.device.staging_table import staging_of
from bluecomm.ops.refusal import Operation, refuse, told
from bluecomm.optim.algorithm import Context, wait_for
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.dense_only import sparse_error
from bluecomm.optim.finite import is_finite
from bluecomm.optim.flat_average import FlatAverage
from bluecomm.runtime import Handle

# A column is noise if its projections leave at most this share of its norm.
_NOISE = 1e-12


@dataclasses.dataclass(eq=False)
class LowRank:
    """The state of one parameter whose gradient is sent as two factors.

    The gradient is seen as a matrix ``M`` of shape ``(rows, columns)``.

    Attributes:
        right: The right factor of the last round, of shape ``(columns, rank)``.
        error: The sum of what the rounds so far have lost, shaped like ``M``; ``None``
            if it is not kept.
    """

    right: torch.Tensor
    error: torch.Tensor | None

    @classmethod
    def of(
        cls, parameter: torch.Tensor, rank: int, rate: float, *, keeps_error: bool
    ) -> LowRank | None:
        """Return the state of a parameter, or ``None`` if it is sent as it is.

        Args:
            parameter: The parameter.
            rank: Largest rank of the product.
            rate: Least quotient of the numbers of values without and with factors.
            keeps_error: Whether it has an error.
        """
        if parameter.dim() < 2 or not parameter.numel():
            return None
        rows = parameter.shape[0]
        columns = parameter.numel() // rows
        rank = min(rank, rows, columns)
        if rows * columns <= rate * rank * (rows + columns):
            return None
        dtype = exchanged_dtype(parameter.dtype)
        error = None
        if keeps_error:
            error = parameter.new_zeros(rows, columns, dtype=dtype)
        return cls(parameter.new_zeros(columns, rank, dtype=dtype), error)

    def draw(self, seed: int) -> None:
        """Fill the right factor with normal numbers, the same on all devices."""
        generator = torch.Generator().manual_seed(seed)
        staging = staging_of(self.right)
        if staging is None:
            self.right.normal_(generator=generator)
            return
        values = staging.empty_on_host(self.right.shape, self.right.dtype)
        staging.write(self.right, values.normal_(generator=generator))


class LowRankGradients:
    """The exchanges of one bucket's gradients: of the left factors, and of the right.

    With ``M_i`` a gradient and its error, and ``Q`` the last round's right factor::

        P = orthogonalize(mean_i M_i Q),    Q = mean_i M_i^T P,    M = P Q^T

    All ranks get the same ``P`` and ``Q``. Vectors and small matrices are averaged as
    they are, together with the left factors, and so are one flag per rank that says
    whether its values are finite, and the flags of the gradients.

    Products of gradients on a device are computed there. The left factors are made
    orthogonal on the host, so ranks on different devices get the same bits of ``P``.

    Args:
        context: The optimizer; its world has at least two ranks.
        bucket: The bucket, whose gradients have been laid out.
        states: State of the parameters that have factors, by position.
    """

    def __init__(
        self, context: Context, bucket: Bucket, states: Mapping[int, LowRank]
    ) -> None:
        self._context = context
        self._bucket = bucket
        self._states = states
        self._inputs: dict[int, torch.Tensor] = {}
        lefts, rights = [], []
        for position, slot in enumerate(bucket.slots):
            state = states.get(position)
            if state is None:
                lefts.append(slot.shape.numel())
            else:
                columns, rank = state.right.shape
                lefts.append(slot.shape.numel() // columns * rank)
                rights.append(columns * rank)
        dtype = exchanged_dtype(bucket.dtype)
        flags, ranks = 2 * len(bucket.slots), context.comm.size
        self._lefts, self._ranks = lefts, ranks
        comm, staging = context.comm, bucket.staging
        self._left = FlatAverage(comm, sum(lefts) + ranks, flags, dtype, staging)
        self._right = FlatAverage(comm, sum(rights), 0, dtype, staging)
        self._right_lengths = rights
        # Whether the means of the last round are finite, and which ranks have sent
        # values that were not.
        self._is_finite = True
        self._bad_ranks: list[int] = []

    def start_left(self) -> Handle[torch.Tensor]:
        """Start the exchange of the left factors, of the gradients in flat memory.

        If it cannot start, the second exchange is refused, too.
        """
        gradients = self._bucket.gradients
        gradients.follow_streams()
        *parts, senders = torch.split(self._left.values, [*self._lefts, self._ranks])
        self._left.tail.copy_(gradients.both_flags)
        senders.zero_()
        for position, part in enumerate(parts):
            values = self._values(position)
            state = self._states.get(position)
            if state is None:
                part.copy_(values)
                continue
            given = values.view(-1, state.right.shape[0]).to(part.dtype)
            if state.error is not None:
                given = given + state.error
            self._inputs[position] = given
            torch.mm(given, state.right, out=part.view(len(given), -1))
        # A factor is not finite if its gradient is not, and takes less time to search.
        mine = senders[self._context.comm.rank]
        if self._bucket.staging is None:
            mine.fill_(not is_finite(self._left.values))
        else:
            mine.copy_(self._left.values.isfinite().all().logical_not())
        try:
            return self._left.start(self._name("left"))
        except Exception as error:
            self._refuse_right(error)
            raise

    def start_right(self, left: Handle[torch.Tensor]) -> Handle[torch.Tensor]:
        """Wait for the left factors, and start the exchange of the right ones.

        Raises:
            ValueError: A gradient is sparse on some rank; raised on all ranks.
            BluecommError: The first exchange failed. The second one is refused.
        """
        try:
            message = self._left.on_host(wait_for(left), self._name("left"))
        except Exception as error:
            self._left.abandon()
            self._refuse_right(error)
            raise
        *parts, senders, flags = torch.split(
            message, [*self._lefts, self._ranks, 2 * len(self._bucket.slots)]
        )
        self._check_dense(flags)
        self._is_finite = is_finite(message)
        self._bad_ranks = senders.nonzero().flatten().tolist()
        for position, state in self._states.items():
            orthogonalize(parts[position].view(-1, state.right.shape[1]))
        self._left.take(message)
        for position, part in self._rights():
            left_factor = self._left_factor(position)
            torch.mm(self._inputs[position].T, left_factor, out=part)
        return self._right.start(self._name("right"))

    def finish(self, right: torch.Tensor) -> None:
        """Hand out the results, once the right factors have come.

        Args:
            right: The result of the second exchange.
        """
        gradients = self._bucket.gradients
        gradients.both_flags.copy_(self._left.tail)
        self._is_finite &= is_finite(right)
        self._right.take(right)
        rights = dict(self._rights())
        flags = gradients.flags.tolist()
        parts = torch.split(self._left.values, [*self._lefts, self._ranks])
        for position, part in enumerate(parts[:-1]):
            state, values = self._states.get(position), self._values(position)
            if state is None:
                values.copy_(part)
                continue
            result = self._left_factor(position) @ rights[position].T
            values.copy_(result.flatten())
            # The result is the same on all ranks. Values that are not finite would stay
            # in the state forever, and a gradient that no rank has is not used.
            if flags[position] > 0 and math.isfinite(float(result.sum())):
                self._keep(position, rights[position], result)
        if (staging := self._bucket.staging) is not None:
            # The stream of the hook has allocated them.
            staging.keep_for_stream([*self._inputs.values()])
        self._inputs.clear()
        gradients.hand_out()

    def not_finite(self) -> Iterator[str]:
        """Name the gradients that the last round has made infinities or NaN.

        Leaves out gradients that the user has made finite since then.
        """
        if self._is_finite:
            return
        comm = self._context.comm
        ranks = [comm.ranks[member] for member in self._bad_ranks]
        where = f" on {format_ranks(ranks, noun=True)}" if ranks else " in their mean"
        for slot in self._bucket.slots:
            gradient = slot.parameter.grad
            if gradient is not None and not is_finite(gradient):
                yield f"{slot.name!r}{where}"

    def _keep(self, position: int, right: torch.Tensor, result: torch.Tensor) -> None:
        """Keep the right factor and the error of a round for the next one."""
        state = self._states[position]
        # A column of zeros, which a gradient of zeros has, would stay so forever.
        is_nonzero = right.abs().sum(0) > 0
        state.right.copy_(torch.where(is_nonzero, right, state.right))
        if state.error is not None:
            torch.sub(self._inputs[position], result, out=state.error)

    def _refuse_right(self, error: Exception) -> None:
        """Tell the others that this rank does not start the second exchange."""
        operation: Operation = ("allreduce", self._name("right"), None)
        refuse(self._context.comm, [operation], error)

    def _name(self, what: str) -> str:
        """Return the name of the exchange of the ``left`` or ``right`` factors."""
        return f"{self._bucket.name}.{what}"

    def _values(self, position: int) -> torch.Tensor:
        """Return the flat gradient of one parameter."""
        slot = self._bucket.slots[position]
        end = slot.offset + slot.shape.numel()
        return self._bucket.gradients.values[slot.offset : end]

    def _left_factor(self, position: int) -> torch.Tensor:
        """Return the left factor of one parameter, in the message."""
        part = torch.split(self._left.values, [*self._lefts, self._ranks])[position]
        return part.view(-1, self._states[position].right.shape[1])

    def _rights(self) -> Sequence[tuple[int, torch.Tensor]]:
        """Return the positions of all right factors, and these in the message."""
        parts = torch.split(self._right.values, self._right_lengths)
        return [
            (position, part.view(self._states[position].right.shape))
            for position, part in zip(sorted(self._states), parts, strict=True)
        ]

    def _check_dense(self, flags: torch.Tensor) -> None:
        """Raise if a gradient is sparse on some rank, by the flags of all gradients."""
        is_sparse = flags[len(self._bucket.slots) :].gt(0)
        if is_sparse.any():
            raise told(
                sparse_error(
                    "powersgd", self._bucket.slots[int(is_sparse.int().argmax())].name
                )
            )


def exchanged_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which gradients of a type are computed and sent."""
    return torch.promote_types(dtype, torch.float32)


def orthogonalize(matrix: torch.Tensor) -> None:
    """Make the columns of a matrix orthonormal, in place, by Gram-Schmidt.

    A column that depends on the ones before it becomes zero. The computation is in
    float64, column by column, so that ranks with equal processors get equal bits.
    """
    columns = matrix.double()
    for k in range(columns.shape[1]):
        column = columns[:, k]
        before = float(column.norm())
        for _ in range(2):  # the second pass removes what rounding has left
            column -= columns[:, :k] @ (columns[:, :k].T @ column)
        norm = float(column.norm())
        if norm <= _NOISE * before:
            column.zero_()
        else:
            column /= norm
    matrix.copy_(columns)
