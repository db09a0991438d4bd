"""State that an algorithm keeps for each bucket, and how checkpoints store it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from bluecomm.optim.buckets.bucket import Bucket


class BucketState:
    """Named flat tensors of the size of each bucket, all zero at the start.

    A checkpoint stores them under the names of the parameters, so it can be loaded into
    a different division into buckets.

    The tensors are where the parameters are, unless they are on the host.

    Args:
        buckets: The buckets.
        kept: Names of the tensors that checkpoints contain.
        scratch: Names of the tensors that checkpoints leave out.
        shared: The names, of both kinds, whose tensors peers read.
        at_least: The type of tensors whose parameters have a narrower one. Default:
            that of the parameters.
        on_host: Whether all tensors are on the host.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        kept: Sequence[str],
        *,
        scratch: Sequence[str] = (),
        shared: Sequence[str] = (),
        at_least: torch.dtype | None = None,
        on_host: bool = False,
    ) -> None:
        self._kept = tuple(kept)
        self._at_least = at_least
        self._flats = {
            name: {
                bucket: (
                    bucket.empty(dtype=self.dtype_for(bucket)).zero_()
                    if name in shared or (bucket.staging is not None and not on_host)
                    else torch.zeros(bucket.numel, dtype=self.dtype_for(bucket))
                )
                for bucket in buckets
            }
            for name in (*kept, *scratch)
        }

    def dtype_for(self, bucket: Bucket) -> torch.dtype:
        """Return the type of the tensors of a bucket."""
        if self._at_least is None:
            return bucket.dtype
        return torch.promote_types(bucket.dtype, self._at_least)

    def of(self, name: str, bucket: Bucket) -> torch.Tensor:
        """Return the flat tensor itself."""
        return self._flats[name][bucket]

    def zero(self, name: str) -> None:
        """Set the tensors of a name to zero."""
        for flat in self._flats[name].values():
            flat.zero_()

    def state_dict(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return copies: tensor name to parameter name to tensor."""
        return {name: by_parameter(self._flats[name]) for name in self._kept}

    def load_state_dict(self, state: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Copy in a state that ``state_dict`` returned; missing names become zero.

        Raises:
            ValueError: A name lacks some of the parameters.
        """
        for name in self._kept:
            for flat in self._flats[name].values():
                flat.zero_()
            if kept := state.get(name):
                fill_by_parameter(name, self._flats[name], kept)


def by_parameter(flats: Mapping[Bucket, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return copies of the parts of flat tensors, by the names of the parameters."""
    return {
        slot.name: slot.view_of(flat).clone()
        for bucket, flat in flats.items()
        for slot in bucket.slots
    }


def fill_by_parameter(
    name: str, flats: Mapping[Bucket, torch.Tensor], kept: Mapping[str, torch.Tensor]
) -> None:
    """Copy what ``by_parameter`` returned into flat tensors.

    Args:
        name: Name of the tensors, for errors.
        flats: A flat tensor for each bucket. Elements that belong to no parameter stay
            as they are.
        kept: Tensors by the names of the parameters.

    Raises:
        ValueError: A parameter has no tensor.
    """
    for bucket, flat in flats.items():
        for slot in bucket.slots:
            if slot.name not in kept:
                raise ValueError(
                    f"the state {name!r} of the algorithm has nothing for the "
                    f"parameter {slot.name!r}, only for {sorted(kept)}; load a "
                    "checkpoint of the same model"
                )
            slot.view_of(flat).copy_(kept[slot.name])
