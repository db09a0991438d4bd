"""The base of the batch samplers: epochs, checkpoints, and other numbers of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

from torch.utils.data import Sampler

from bluecomm.data.facts import dataset_facts, differences
from bluecomm.data.permutation import Indices, Permutation
from bluecomm.data.remaining import Remaining
from bluecomm.data.steps import Steps
from bluecomm.data.world import DataWorld, check_same, data_world

# A part of an epoch with one number of ranks: its layout, and the number of steps.
Phase = dict[str, Any]

_KEYS = {"epoch", "seed", "shuffle", "dataset", "phases"}


class StatefulBatchSampler(Sampler[list[int]]):
    """Yields this rank's batches of an epoch, and can go on in the middle of one.

    Steps, and who has which sample in them, are a pure function of seed, epoch, dataset
    and *phases*. A phase is a number of steps that were made with one number of
    ranks and one size of batches; the next phase shares out what the earlier ones have
    left. So a state is a few numbers, and any number of ranks can go on from it.

    A derived class defines the steps and deals a step's samples to the ranks.

    Args:
        dataset: The dataset, of which the length counts, and its ``fingerprint()`` if
            it has one. They must be the same on all ranks.
        shuffle: Whether each epoch has a random order of its own.
        seed: Seed of the order, the same on all ranks.
        rank: Number of this rank. Default: that in bluecomm's job, otherwise in
            ``torch.distributed``, otherwise 0.
        num_replicas: Number of ranks, given together with ``rank``. Default: as there.

    Attributes:
        epoch: Number of the epoch.

    Raises:
        TypeError: ``dataset`` has no length.
        ValueError: The ranks have different datasets or options.
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        shuffle: bool,
        seed: int,
        rank: int | None,
        num_replicas: int | None,
    ) -> None:
        self.epoch = 0
        self._user = type(self).__name__
        if not isinstance(dataset, Sized):
            raise TypeError(
                f"{self._user}: the dataset ({type(dataset).__name__}) has no length; "
                "pass one with __len__"
            )
        self._given = rank, num_replicas
        self._shuffle = shuffle
        self._seed = seed
        self._length = len(dataset)
        self._dataset = dataset_facts(dataset)
        # Phases before the current pass, steps that it has yielded since then, and
        # whether the state was loaded and the next pass goes on from it.
        self._phases: list[Phase] = []
        self._yielded = 0
        self._is_loaded = False
        # The steps of a pass, and what they follow from.
        self._found: tuple[str, tuple[int, Steps]] | None = None
        self._layout = self._find_layout()
        world = self._world()
        self._ranks = world.size
        facts = {"seed": seed, "shuffle": shuffle, **self._dataset, **self._layout}
        check_same(world, self._user, facts)

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch at the next pass. Does nothing if it is the same one.

        Args:
            epoch: Number of the epoch.
        """
        if epoch != self.epoch:
            self.epoch = epoch
            self._phases, self._yielded, self._is_loaded = [], 0, False

    def state_dict(self, yielded: int | None = None) -> dict[str, Any]:
        """Return the position in the data, which is the same on all ranks.

        Args:
            yielded: Number of batches of this pass that count as used. Default: all
                that the sampler has yielded. A ``DataLoader`` of torch with workers
                takes batches ahead of the training, so pass the number of steps there;
                ``bluecomm.data.DataLoader`` does.
        """
        steps = self._yielded if yielded is None else yielded
        phases = [dict(phase) for phase in self._phases]
        if steps:
            phases.append({"ranks": self._ranks, **self._layout, "steps": steps})
        return {
            "epoch": self.epoch,
            "seed": self._seed,
            "shuffle": self._shuffle,
            "dataset": dict(self._dataset),
            "phases": _joined(phases),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state at the next pass, with any number of ranks.

        Args:
            state_dict: A value of ``state_dict``, the same on all ranks.

        Raises:
            ValueError: It belongs to another dataset, seed or class.
        """
        if set(state_dict) != _KEYS:
            raise ValueError(
                f"{self._user}.load_state_dict: expected the keys {sorted(_KEYS)}, got "
                f"{sorted(state_dict)}; pass a state of this class"
            )
        mine = {"seed": self._seed, "shuffle": self._shuffle, **self._dataset}
        theirs = {key: state_dict[key] for key in ("seed", "shuffle")}
        if found := differences({**theirs, **state_dict["dataset"]}, mine):
            raise ValueError(
                f"{self._user}.load_state_dict: the state belongs to other data: "
                f"{found}; pass the same dataset and options, or begin a new epoch "
                "without this state"
            )
        self.epoch = state_dict["epoch"]
        self._phases = [dict(phase) for phase in state_dict["phases"]]
        self._yielded, self._is_loaded = 0, True

    def __iter__(self) -> Iterator[list[int]]:
        world = self._world()
        if self._is_loaded:
            position = {"epoch": self.epoch, "phases": self._phases}
            check_same(world, f"{self._user}.load_state_dict", position)
        else:
            self._phases = []
        self._is_loaded = False
        self._yielded, self._ranks = 0, world.size
        first, steps = self._next_steps(world.size)
        for step in range(first, len(steps)):
            self._yielded += 1
            yield self._deal(steps, step, world.rank, world.size).tolist()

    def __len__(self) -> int:
        first, steps = self._next_steps(self._world().size)
        return len(steps) - first

    def _find_layout(self) -> dict[str, Any]:
        """Return what a phase notes about steps, besides the number of ranks."""
        raise NotImplementedError

    def _make_steps(self, remaining: Remaining, phase: Phase) -> Steps:
        """Return the steps of a phase."""
        raise NotImplementedError

    def _deal(self, steps: Steps, step: int, rank: int, ranks: int) -> Indices:
        """Return the samples of a rank in a step."""
        raise NotImplementedError

    def _to_indices(self, positions: Indices) -> Indices:
        """Return the samples at positions of this epoch."""
        if not self._shuffle:
            return positions
        return Permutation(self._length, self._seed, self.epoch).at(positions)

    def _world(self) -> DataWorld:
        return data_world(*self._given)

    def _next_steps(self, ranks: int) -> tuple[int, Steps]:
        """Return the number of the next step, and the steps of its phase."""
        key = repr((self.epoch, ranks, self._phases))
        if self._found is None or self._found[0] != key:
            self._found = key, self._find_steps(ranks)
        return self._found[1]

    def _find_steps(self, ranks: int) -> tuple[int, Steps]:
        remaining = Remaining.whole(self._length)
        phase = {"ranks": ranks, **self._layout}
        for number, earlier in enumerate(self._phases, 1):
            steps = self._make_steps(remaining, earlier)
            is_same = {**phase, "steps": earlier["steps"]} == earlier
            if is_same and number == len(self._phases):
                return min(earlier["steps"], len(steps)), steps
            remaining = steps.after(earlier["steps"])
        return 0, self._make_steps(remaining, phase)


def _joined(phases: list[Phase]) -> list[Phase]:
    """Join neighboring phases with one layout."""
    joined: list[Phase] = []
    for phase in phases:
        if joined and {**joined[-1], "steps": phase["steps"]} == phase:
            joined[-1]["steps"] += phase["steps"]
        else:
            joined.append(phase)
    return joined
