"""A sampler that shares out the rest of an epoch anew when ranks are lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from bluecomm.elastic.group import current_group


class ElasticSampler(Sampler[int]):
    """Gives each rank its share of a dataset, and of the rest of an epoch.

    The indices of an epoch have one order on all ranks, which they take in turn. If a
    rank is lost, the others share out what nobody has taken so far. All ranks take the
    same number of batches, so each knows how far the others are, without communication.
    A loss does not cause any index to be taken twice, and only the indices that the
    lost rank had when it was lost are left out. To give all ranks the same number of
    indices, the first of the indices that are shared out follow the last ones, as in
    ``DistributedSampler``.

    Args:
        dataset: The dataset, of which only the length counts. It must be the same on
            all ranks.
        shuffle: Whether each epoch has a random order of its own.
        seed: Seed of the order, the same on all ranks.

    Attributes:
        epoch: Number of the epoch.
        rank: Number of this rank among those that share.
        num_replicas: Number of ranks that share.
        indices: This rank's share.

    Raises:
        TypeError: ``dataset`` has no length.
        NotInitializedError: ``init`` has not been called.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        if not isinstance(dataset, Sized):
            raise TypeError(
                f"ElasticSampler: the dataset ({type(dataset).__name__}) has no "
                "length; pass one with __len__"
            )
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.rank = 0
        self.num_replicas = 1
        self.indices: list[int] = []
        # Number of indices of this epoch that all ranks together had taken when the
        # rest was last shared out, and that this rank has taken since then.
        self._before = 0
        self._taken = 0
        self.reset()

    @property
    def processed_num(self) -> int:
        """Number of indices of this epoch that all ranks together have taken."""
        taken = self._before + self._taken * self.num_replicas
        return min(taken, len(self.dataset))

    @property
    def processed_indices(self) -> set[int]:
        """The indices of this epoch that all ranks together have taken."""
        return set(self._order()[: self.processed_num].tolist())

    @property
    def remaining_indices(self) -> list[int]:
        """The indices that were last shared out, in their order."""
        return self._order()[self._before :].tolist()

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch. Does nothing if it is the same one.

        Args:
            epoch: Number of the epoch.
        """
        if epoch != self.epoch:
            self.load_state_dict({"epoch": epoch, "processed_num": 0})

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Note that this rank, and so each other one, has taken a batch of its share.

        Args:
            batch_idx: Number of the batch since indices were last shared out, from 0.
            batch_size: Number of indices in each batch.

        Raises:
            ValueError: An argument is too small.
        """
        if batch_idx < 0 or batch_size < 1:
            raise ValueError(
                "ElasticSampler.record_batch: expected a batch_idx of at least 0 and a "
                f"batch_size of at least 1, got {batch_idx} and {batch_size}"
            )
        end = min((batch_idx + 1) * batch_size, len(self.indices))
        self._taken = max(self._taken, end)

    def record_indices(self, indices: Iterable[int]) -> None:
        """Note that this rank has taken the next indices of its share.

        Args:
            indices: The indices, in any order.

        Raises:
            ValueError: They are not the next ones of this rank's share.
        """
        given = list(indices)
        end = self._taken + len(given)
        following = self.indices[self._taken : end]
        if sorted(given) != sorted(following):
            raise ValueError(
                f"ElasticSampler.record_indices on rank {self.rank}: expected the next "
                f"{len(given)} indices of this rank's share, {_few(following)}, got "
                f"{_few(given)}; record each batch once, in the order of the sampler"
            )
        self._taken = end

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data, which is the same on all ranks."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to a position from ``state_dict``, and share out the rest.

        Raises:
            ValueError: The state is not that of an ``ElasticSampler``.
        """
        if set(state_dict) != {"epoch", "processed_num"}:
            raise ValueError(
                "ElasticSampler.load_state_dict: expected the keys 'epoch' and "
                f"'processed_num', got {sorted(state_dict)}"
            )
        self.epoch = state_dict["epoch"]
        self._before, self._taken = state_dict["processed_num"], 0
        self._share_out()

    def reset(self) -> None:
        """Share out the rest of the epoch among the ranks that are left."""
        self._before, self._taken = self.processed_num, 0
        self._share_out()

    def __iter__(self) -> Iterator[int]:
        return iter(list(self.indices))

    def __len__(self) -> int:
        return len(self.indices)

    def _share_out(self) -> None:
        group = current_group()
        self.rank, self.num_replicas = group.rank, group.size
        rest = self._order()[self._before :]
        each = -(-len(rest) // self.num_replicas)
        places = torch.arange(each) * self.num_replicas + self.rank
        self.indices = rest[places % max(len(rest), 1)].tolist()

    def _order(self) -> torch.Tensor:
        """Return all indices in the order of this epoch."""
        length = len(self.dataset)
        if not self.shuffle:
            return torch.arange(length)
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return torch.randperm(length, generator=generator)


def _few(indices: list[int]) -> str:
    return str(indices) if len(indices) <= 8 else f"{indices[:8]} and more"
