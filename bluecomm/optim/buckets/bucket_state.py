"""What an algorithm remembers of each bucket, and how it gets into checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from bluecomm.ops.tensor import shared_empty
from bluecomm.optim.buckets.bucket import Bucket


class BucketState:
    """Flat tensors of the size of a bucket, by name; zero in the beginning.

    A checkpoint has them by the names of the parameters, so that it may be loaded with
    other buckets.

    Args:
        buckets: The buckets.
        kept: Names of what checkpoints have.
        scratch: Names of what they have not.
        shared: Those of the names that the peers read.
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

    def state_dict(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return copies: name, then name of the parameter, to tensor."""
        return {
            name: {
                slot.name: slot.view_of(flat).clone()
                for bucket, flat in self._flats[name].items()
                for slot in bucket.slots
            }
            for name in self._kept
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Take over what ``state_dict`` returned; zeros for names that it has not.

        Raises:
            ValueError: It has a name, but not of all parameters.
        """
        for name in self._kept:
            kept = state.get(name, {})
            for bucket, flat in self._flats[name].items():
                flat.zero_()
                for slot in bucket.slots if kept else ():
                    if slot.name not in kept:
                        raise ValueError(
                            f"the state {name!r} of the algorithm has nothing for the "
                            f"parameter {slot.name!r}; it has {sorted(kept)}"
                        )
                    slot.view_of(flat).copy_(kept[slot.name])
