"""Views of flat memory that replace ``p.grad``.

User code may give a gradient other memory at any time (``p.grad = None``,
``model.double()``), so the views are checked before each use.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import torch

from bluecomm.device.staging import Staging
from bluecomm.optim.buckets.flat import flat_empty
from bluecomm.optim.buckets.slots import Slot, check_kind, is_view


class _Half:
    """Memory for the gradients of a bucket, and its parts."""

    def __init__(
        self,
        laid_out: Mapping[int, Slot],
        count: int,
        counters: int,
        dtype: torch.dtype,
        staging: Staging | None,
    ) -> None:
        numel = max((slot.end for slot in laid_out.values()), default=0)
        length = 2 * count + counters
        self.flat: torch.Tensor | None = None
        if staging is None:
            self.flat = flat_empty(numel + length, dtype).zero_()
            self.values, self.tail = self.flat[:numel], self.flat[numel:]
        else:
            self.values = flat_empty(numel, dtype, staging).zero_()
            # The host writes and reads it, which must not wait for the device.
            self.tail = torch.zeros(length, dtype=dtype)
        tail = self.tail
        self.both_flags, self.counters = tail[: 2 * count], tail[2 * count :]
        self.flags, self.sparse_flags = tail[:count], tail[count : 2 * count]
        self._laid_out = laid_out
        self._views = {p: slot.view_of(self.values) for p, slot in laid_out.items()}
        self._addresses = {p: view.data_ptr() for p, view in self._views.items()}

    @property
    def positions(self) -> Iterable[int]:
        """The positions of the parameters with flat memory."""
        return self._laid_out.keys()

    def view(self, position: int) -> torch.Tensor | None:
        """Return the part of one parameter; ``None`` if it has no flat memory.

        A view is also ``p.grad``, to which ``model.to()`` and its like give other
        memory. Then it is made again.
        """
        view = self._views.get(position)
        if view is not None and view.data_ptr() != self._addresses[position]:
            view = self._laid_out[position].view_of(self.values)
            self._views[position] = view
            self._addresses[position] = view.data_ptr()
        return view


class GradientViews:
    """Flat memory for the gradients of a bucket, with a tail that is sent along.

    The tail has two flags for each parameter, and some counters. The first flag is 1 if
    the parameter has a gradient here, the second if that gradient is sparse. After an
    average or a sum over ranks, a flag is positive if it was 1 on any rank.

    Sparse gradients stay in ``p.grad`` and are zeros in flat memory. Parameters that
    are known to have them take no flat memory.

    If the parameters are on a device, so are the gradients; the tail is on the host.

    Attributes:
        sparse: Positions of the parameters without flat memory.
        lengths: Number of elements of each parameter in flat memory, including the
            padding behind it. The rest is the tail.
        staging: Copies gradients from the device to the host; ``None`` if they are on
            the host.

    Args:
        slots: The parameters; their offsets in flat memory are not used.
        counters: Number of counters behind the flags.
        sparse: Positions of the parameters whose gradients are sparse on all ranks;
            ``None`` to make sparse gradients dense.
        halves: 2 to have memory for a result beside that of the gradients. On a device
            the message has the result.
        staging: See the attribute.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        counters: int,
        sparse: Iterable[int] | None,
        halves: int = 1,
        staging: Staging | None = None,
    ) -> None:
        self._slots = slots
        self.staging = staging
        # The streams that have written gradients since the last message.
        self._streams: set[int] = set()
        # Streams that have written sparse gradients. The message does not contain them.
        self._sparse_streams: set[int] = set()
        self._makes_dense = sparse is None
        self.sparse = frozenset(sparse or ())
        laid_out: dict[int, Slot] = {}
        numel = 0
        for position, slot in enumerate(slots):
            if position not in self.sparse:
                laid_out[position] = dataclasses.replace(slot, offset=numel)
                numel = laid_out[position].end
        dtype = slots[0].parameter.dtype
        self._current, *others = (
            _Half(laid_out, len(slots), counters, dtype, staging)
            for _ in range(1 if staging is not None else halves)
        )
        self._other = others[0] if others else None
        self.lengths = [slot.end - slot.offset for slot in laid_out.values()]

    @property
    def flat(self) -> torch.Tensor:
        """All values, the flags and the counters; only on the host."""
        assert self._current.flat is not None
        return self._current.flat

    @property
    def other(self) -> torch.Tensor | None:
        """The half that is not in use, like ``flat``, if there is one."""
        return None if self._other is None else self._other.flat

    @property
    def values(self) -> torch.Tensor:
        """The gradients of the parameters with flat memory, and padding."""
        return self._current.values

    @property
    def tail(self) -> torch.Tensor:
        """The flags and the counters, on the host."""
        return self._current.tail

    @property
    def counters(self) -> torch.Tensor:
        """The counters behind the flags."""
        return self._current.counters

    @property
    def both_flags(self) -> torch.Tensor:
        """``flags``, and then ``sparse_flags``."""
        return self._current.both_flags

    @property
    def flags(self) -> torch.Tensor:
        """For each parameter, whether it has a gradient."""
        return self._current.flags

    @property
    def sparse_flags(self) -> torch.Tensor:
        """For each parameter, whether its gradient is sparse."""
        return self._current.sparse_flags

    def swap(self) -> None:
        """Use the other half from now on."""
        assert self._other is not None
        self._current, self._other = self._other, self._current

    def keep(self, position: int) -> None:
        """Move the gradient of one parameter into flat memory, if it belongs there.

        Raises:
            RuntimeError: The parameter has another shape, dtype or device than at the
                start.
        """
        slot = self._slots[position]
        parameter = slot.parameter
        view = self._current.view(position)
        grad = parameter.grad
        if grad is None:
            return
        if self.staging is not None:
            streams = self._streams
            if grad.layout is not torch.strided and not self._makes_dense:
                streams = self._sparse_streams
            streams.add(self.staging.current_stream())
        if view is None:
            return
        if grad.layout is not torch.strided:
            if not self._makes_dense:
                return
            grad = grad.to_dense()
        elif is_view(grad, view):
            return
        check_kind(slot.name, view, parameter)
        with torch.no_grad():
            view.copy_(grad)
        parameter.grad = view

    def take_streams(self) -> set[int]:
        """Return the streams that have written gradients since the last call."""
        streams, self._streams = self._streams, set()
        return streams

    def follow_streams(self) -> None:
        """Make the current stream wait for those that have written gradients."""
        if self.staging is not None:
            self.staging.follow_streams(self.take_streams())

    def follow_sparse_streams(self) -> None:
        """Make the current stream wait for those that have written sparse gradients."""
        if self.staging is not None:
            self.staging.follow_streams(self._sparse_streams)
            self._sparse_streams = set()

    def fill(self) -> None:
        """Move all gradients into flat memory, zeros for missing ones; set flags."""
        present, sparse = [], []
        for position, slot in enumerate(self._slots):
            self.keep(position)
            grad = slot.parameter.grad
            present.append(float(grad is not None))
            sparse.append(float(grad is not None and grad.layout is not torch.strided))
            view = self._current.view(position)
            if view is not None and (sparse[-1] or not present[-1]):
                view.zero_()
        self._current.both_flags.copy_(torch.tensor(present + sparse))

    def clear(self) -> None:
        """Zero the flat memory; the parameters' gradients are left alone."""
        self.values.zero_()
        self.tail.zero_()

    def fill_with_nan(self, position: int) -> None:
        """Replace the flat values of one parameter by NaN."""
        view = self._current.view(position)
        assert view is not None
        view.fill_(math.nan)

    def hand_out(self) -> None:
        """Give each parameter its view, or ``None`` where no rank had a gradient.

        Parameters with a sparse gradient on any rank are left alone.
        """
        has_gradient, found = self.flags.tolist(), self.found_sparse()
        for position in self._current.positions:
            if position not in found:
                parameter = self._slots[position].parameter
                has_one = has_gradient[position] > 0
                parameter.grad = self._current.view(position) if has_one else None

    def found_sparse(self) -> list[int]:
        """Return the positions in flat memory whose gradient is sparse on any rank."""
        flags = self.sparse_flags.tolist()
        return [p for p in self._current.positions if flags[p] > 0]
