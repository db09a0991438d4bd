"""Views of flat memory that replace ``p.data``.

User code may give a parameter other memory at any time (``p.data =``, ``model.to``),
so the views are checked before each use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from bluecomm.optim.buckets.slots import Slot, check_kind, is_view


class ParameterViews:
    """Two halves of flat memory for the values of a bucket.

    ``p.data`` are views of ``current``. An exchange writes ``next``, then the halves
    are swapped.

    Args:
        slots: The parameters. Their values are moved here.
        flats: The halves, all zero. One if nothing is exchanged; then there is no
            ``next``.
    """

    def __init__(self, slots: Sequence[Slot], flats: Sequence[torch.Tensor]) -> None:
        self._slots = slots
        self._flats = flats
        self._views = [[slot.view_of(flat) for slot in slots] for flat in self._flats]
        self._now = 0
        self._versions: list[int] = []
        for slot, view in self._slots_and_views():
            view.copy_(slot.parameter.data)
            slot.parameter.data = view

    @property
    def current(self) -> torch.Tensor:
        """Flat values of the parameters."""
        return self._flats[self._now]

    @property
    def next(self) -> torch.Tensor:
        """Flat memory that receives the next values."""
        return self._flats[1 - self._now]

    def _slots_and_views(self) -> Iterator[tuple[Slot, torch.Tensor]]:
        return zip(self._slots, self._views[self._now], strict=True)

    def check(self) -> list[str]:
        """Copy in parameters that have been given other memory; return their names.

        Raises:
            RuntimeError: A parameter has another shape, dtype or device than at the
                start.
        """
        adopted = []
        for slot, view in self._slots_and_views():
            data = slot.parameter.data
            if is_view(data, view):
                continue
            check_kind(slot.name, view, data)
            view.copy_(data)
            slot.parameter.data = view
            adopted.append(slot.name)
        return adopted

    def lend(self) -> None:
        """Record the parameters' versions; peers read ``current`` from now on."""
        self._versions = [slot.parameter._version for slot in self._slots]

    def take_back(self) -> None:
        """End what ``lend`` has begun.

        Raises:
            RuntimeError: A parameter was changed in place while it was lent.
        """
        for slot, version in zip(self._slots, self._versions, strict=True):
            if slot.parameter._version != version:
                raise RuntimeError(
                    f"parameter {slot.name!r} was changed while its average with the "
                    "neighbors was under way, so the change would be lost. Call "
                    "optimizer.synchronize() before code that changes parameters "
                    "outside optimizer.step()."
                )

    def exchange(self) -> list[str]:
        """Make ``next`` the values of the parameters; return names as check() does.

        Raises:
            RuntimeError: A parameter was changed in place while it was lent.
        """
        self.take_back()
        old_views = self._views[self._now]
        self._now = 1 - self._now
        adopted = []
        for (slot, view), old in zip(self._slots_and_views(), old_views, strict=True):
            data = slot.parameter.data
            if not is_view(data, old):
                # Values that the user has assigned in the meantime take precedence.
                check_kind(slot.name, view, data)
                view.copy_(data)
                adopted.append(slot.name)
            slot.parameter.data = view
        return adopted
