"""Flat memory for the state of a flat group."""

from __future__ import annotations

import operator
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import torch

from bluecomm.optim.buckets.slots import Slot

State = MutableMapping[Any, Any]
"""The ``state`` of an optimizer: parameter to entry, a dict."""

_NOTHING = object()
_PLAIN = (bool, int, float, complex, str, type(None))


class _FlatKey(NamedTuple):
    """The flat tensor with the elements, or scalars, of a key of the state.

    After ``load_state_dict``, scalars may have another dtype than new ones have.
    """

    key: str
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, key: str, value: torch.Tensor) -> _FlatKey:
        return cls(key, value.dtype, value.device)


class FlatState:
    """The state of the parameters of a flat group.

    The entries of the optimizer's ``state`` keep the form that they have without
    fusion. A tensor of a parameter's shape (*elements*) is a view of a flat tensor,
    laid out as the parameters. A tensor of one element (*scalar*) is a view of a vector
    with one element per parameter. Numbers, strings and ``None`` are as they are.

    Args:
        slots: The parameters.
        numel: Number of elements of the flat group, padding included.
        kinds: Maps a key of the state to whether its tensors are elements. Keys are
            added as they are met. It tells the elements of a parameter that is itself
            a scalar from a scalar.

    Attributes:
        unfit: Positions of the parameters whose state is sparse. It is left alone.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        numel: int,
        kinds: dict[str, bool],
    ) -> None:
        self._slots = slots
        self._parameters = [slot.parameter for slot in slots]
        self._numel = numel
        self._kinds = kinds
        self.unfit: set[int] = set()
        self._flats: dict[_FlatKey, tuple[torch.Tensor, list[torch.Tensor]]] = {}
        self._entries: list[dict[str, Any] | None] = [None] * len(slots)
        # The values that is_current expects; see _remember.
        self._lengths: list[int] = []
        self._held: dict[str, tuple[list[dict[str, Any]], list[Any]]] = {}
        self._tensors: list[torch.Tensor] = []
        self._addresses: list[int] = []
        self._versions: dict[_FlatKey, int] = {}

    # -- the entries of the optimizer --------------------------------------------------

    def is_current(self, state: State) -> bool:
        """Return whether nobody else has changed the entries since the last step."""
        if not state and not any(self._entries):
            return True  # without hashes of all parameters
        same = operator.is_
        found = map(state.get, self._parameters)
        if not all(map(same, found, self._entries)):
            return False
        if self._lengths != [len(entry) for entry in self._entries if entry]:
            return False
        for key, (entries, values) in self._held.items():
            if not all(key in entry for entry in entries):
                return False
            if not all(map(same, map(operator.itemgetter(key), entries), values)):
                return False
        # Somebody may have assigned ``.data``.
        if list(map(torch.Tensor.data_ptr, self._tensors)) != self._addresses:
            return False
        return all(
            self._flats[flat_key][0]._version == version
            for flat_key, version in self._versions.items()
        )

    def adopt(self, state: State) -> None:
        """Move the tensors of all entries into flat memory.

        Raises:
            RuntimeError: A tensor has neither the parameter's shape nor one element,
                or a value is neither a tensor nor a number, a string or ``None``.
        """
        self._flats = {}
        self.unfit = set()
        # Stays if an error is raised: then the next step adopts all entries again.
        self._entries = [None] * len(self._slots)
        entries = [state.get(parameter) for parameter in self._parameters]
        for position, entry in enumerate(entries):
            if not entry:
                continue
            if any(_is_sparse(value) for value in entry.values()):
                self.unfit.add(position)
                continue
            for key, value in list(entry.items()):
                entry[key] = self._keep(position, key, value)
        self._entries = entries
        self._remember()

    def signature(self) -> list[object]:
        """Return for each parameter a value; equal ones may be stepped together."""
        scalars = {
            flat_key: flat.tolist()
            for flat_key, (flat, _) in self._flats.items()
            if not self._kinds[flat_key.key]
        }

        def fact(key: str, value: Any, position: int) -> object:
            if not isinstance(value, torch.Tensor):
                return key, type(value), value
            flat_key = _FlatKey.of(key, value)
            # Elements may differ.
            values = scalars.get(flat_key)
            return flat_key, None if values is None else values[position]

        return [
            None
            if entry is None or position in self.unfit
            else tuple(fact(*pair, position) for pair in sorted(entry.items()))
            for position, entry in enumerate(self._entries)
        ]

    # -- runs --------------------------------------------------------------------------

    def part(self, first: int, stop: int) -> dict[str, Any] | None:
        """Return the entry of a run: of parameters ``first`` to ``stop - 1``.

        Its elements are the run's part of flat memory, its scalars those of the first
        parameter.
        """
        entry = self._entries[first]
        if entry is None:
            return None
        return {
            key: self._part(_FlatKey.of(key, value), first, stop)
            if isinstance(value, torch.Tensor)
            else value
            for key, value in entry.items()
        }

    def take_back(
        self,
        state: State,
        first: int,
        stop: int,
        before: Mapping[str, Any] | None,
        after: dict[str, Any] | None,
    ) -> None:
        """Bring the entries of a run's parameters up to date after a step.

        Args:
            state: The optimizer's state.
            first: Position of the run's first parameter.
            stop: Position behind its last.
            before: The run's entry before the step, a copy of what ``part`` returned.
            after: The same after the step. Tensors that the step has replaced are
                copied into flat memory, and replaced by its parts.
        """
        if after is None:
            if before is not None:
                self._drop(state, first, stop)
            return
        if before is None:
            for position in range(first, stop):
                self._entries[position] = state[self._parameters[position]] = {}
        members = [entry for entry in self._entries[first:stop] if entry is not None]
        known = before or {}
        has_new = before is None
        for key in known.keys() - after.keys():
            has_new = True
            for entry in members:
                del entry[key]
        for key, value in after.items():
            old = known.get(key, _NOTHING)
            if value is old:
                continue
            views: Sequence[Any]
            if isinstance(value, torch.Tensor):
                flat_key = _FlatKey.of(key, value)
                after[key] = self._put(flat_key, first, stop, value)
                if isinstance(old, torch.Tensor) and _FlatKey.of(key, old) == flat_key:
                    continue
                views = self._flats[flat_key][1][first:stop]
            else:
                views = [_check_plain(key, value)] * (stop - first)
            has_new = True
            for entry, view in zip(members, views, strict=True):
                entry[key] = view
        self._share_scalars(first, stop, after)
        if has_new:
            self._remember()
        else:
            self._versions = self._scalar_versions()

    # -- helpers -----------------------------------------------------------------------

    def _drop(self, state: State, first: int, stop: int) -> None:
        """Delete the entries of a run's parameters."""
        for position in range(first, stop):
            del state[self._parameters[position]]
            self._entries[position] = None
        self._remember()

    def _share_scalars(self, first: int, stop: int, entry: Mapping[str, Any]) -> None:
        """Give all parameters of a run the scalars of the first one."""
        for key, value in entry.items() if stop - first > 1 else ():
            if isinstance(value, torch.Tensor) and not self._kinds[key]:
                flat = self._flats[_FlatKey.of(key, value)][0]
                flat[first + 1 : stop].copy_(flat[first])

    def _remember(self) -> None:
        """Record the entries, so that changes by others are noticed."""
        held: dict[str, tuple[list[dict[str, Any]], list[Any]]] = {}
        for position, entry in enumerate(self._entries):
            if entry is None or position in self.unfit:
                continue
            for key, value in entry.items():
                entries, values = held.setdefault(key, ([], []))
                entries.append(entry)
                values.append(value)
        self._held = held
        self._tensors = [
            value
            for _, values in held.values()
            for value in values
            if isinstance(value, torch.Tensor)
        ]
        self._addresses = list(map(torch.Tensor.data_ptr, self._tensors))
        self._lengths = [len(entry) for entry in self._entries if entry]
        self._versions = self._scalar_versions()

    def _scalar_versions(self) -> dict[_FlatKey, int]:
        return {
            flat_key: flat._version
            for flat_key, (flat, _) in self._flats.items()
            if not self._kinds[flat_key.key]
        }

    def _part(self, flat_key: _FlatKey, first: int, stop: int) -> torch.Tensor:
        flat, views = self._flats[flat_key]
        if not self._kinds[flat_key.key]:
            return views[first]
        return flat[self._slots[first].offset : self._slots[stop - 1].end]

    def _put(
        self, flat_key: _FlatKey, first: int, stop: int, value: torch.Tensor
    ) -> torch.Tensor:
        """Copy a tensor of a run into flat memory; return its part."""
        numel = self._slots[stop - 1].end - self._slots[first].offset
        is_elements = value.shape == (numel,)
        self._check_shape(flat_key.key, first, value, is_elements=is_elements)
        self._views(flat_key, value)
        part = self._part(flat_key, first, stop)
        part.copy_(value)
        return part

    def _keep(self, position: int, key: str, value: Any) -> Any:
        """Copy a value of an entry into flat memory; return its view."""
        if not isinstance(value, torch.Tensor):
            return _check_plain(key, value)
        is_elements = value.shape == self._slots[position].shape
        if is_elements and value.numel() == 1:
            # The tensors of other parameters tell; a counter has no dimension.
            is_elements = self._kinds.get(key, value.dim() > 0)
        self._check_shape(key, position, value, is_elements=is_elements)
        view = self._views(_FlatKey.of(key, value), value)[position]
        view.copy_(value)
        return view

    def _check_shape(
        self, key: str, position: int, value: torch.Tensor, *, is_elements: bool
    ) -> None:
        """Raise unless a tensor is elements, or a scalar, as those seen before."""
        fits = is_elements or value.numel() == 1
        if not fits or self._kinds.setdefault(key, is_elements) != is_elements:
            raise RuntimeError(
                f"fuse_optimizer: the state {key!r} of {self._slots[position].name} "
                f"has the shape {tuple(value.shape)}; expected that of the parameter, "
                "or one number, the same for all parameters"
            )

    def _views(self, flat_key: _FlatKey, like: torch.Tensor) -> list[torch.Tensor]:
        """Return the views of a flat tensor; make it if necessary."""
        if flat_key not in self._flats:
            if self._kinds[flat_key.key]:
                flat = like.new_zeros(self._numel)
                views = [slot.view_of(flat) for slot in self._slots]
            else:
                flat = like.new_zeros(len(self._slots))
                views = [scalar.view(like.shape) for scalar in flat.unbind()]
            self._flats[flat_key] = flat, views
        return self._flats[flat_key][1]


def _is_sparse(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is not torch.strided


def _check_plain(key: str, value: Any) -> Any:
    if not isinstance(value, _PLAIN):
        raise RuntimeError(
            f"fuse_optimizer: the optimizer's state {key!r} is a "
            f"{type(value).__name__}; only tensors, numbers and strings can be fused"
        )
    return value
