"""State that an algorithm keeps for each bucket, and how checkpoints store it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from bluecomm.ops.tensor import shared_empty
from bluecomm.optim.buckets.bucket import Bucket


class BucketState:
    """Named flat tensors of the size of each bucket, all zero at the start.

    A checkpoint stores them under the names of the parameters, so it can be loaded into
    a different division into buckets.

    Args:
        buckets: The buckets.
        kept: Names of the tensors that checkpoints contain.
        scratch: Names of the tensors that checkpoints leave out.
        shared: The names, of both kinds, whose tensors peers read.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        kept: Sequence[str],
        *,
        scratch: Sequence[str] = (),
        shared: Sequence[str] = (),
    ) -> None:
        self._kept = tuple(kept)
        self._flats = {
            name: {
                bucket: (
                    shared_empty(bucket.numel, bucket.dtype).zero_()
                    if name in shared
                    else torch.zeros(bucket.numel, dtype=bucket.dtype)
                )
                for bucket in buckets
            }
            for name in (*kept, *scratch)
        }

    def of(self, name: str, bucket: Bucket) -> torch.Tensor:
        """Return the flat tensor itself."""
        return self._flats[name][bucket]

    def zero(self, name: str) -> None:
        """Set the tensors of a name to zero."""
        for flat in self._flats[name].values():
            flat.zero_()

    def state_dict(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return copies: tensor name to parameter name to tensor."""
        return {
            name: {
                slot.name: slot.view_of(flat).clone()
                for bucket, flat in self._flats[name].items()
                for slot in bucket.slots
            }
            for name in self._kept
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Copy in a state that ``state_dict`` returned; missing names become zero.

        Raises:
            ValueError: A name lacks some of the parameters.
        """
        for name in self._kept:
            kept = state.get(name, {})
            for bucket, flat in self._flats[name].items():
                flat.zero_()
                for slot in bucket.slots if kept else ():
                    if slot.name not in kept:
                        raise ValueError(
                            f"the state {name!r} of the algorithm has nothing for the "
                            f"parameter {slot.name!r}, only for {sorted(kept)}; load a "
                            "checkpoint of the same model"
                        )
                    slot.view_of(flat).copy_(kept[slot.name])
