"""The state of an epoch that ranks share as leases: what counts as done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bluecomm.data.dynamic.intervals import Intervals
from bluecomm.data.facts import differences

PARTITION = "dynamic"
_KEYS = {"epoch", "seed", "shuffle", "dataset", "partition", "done"}


class EpochState:
    """An epoch between two passes, which can be saved and loaded.

    Args:
        options: The seed and whether the order is random.
        dataset: Facts of the dataset.
        user: Name for errors.

    Attributes:
        epoch: Number of the epoch.
        done: The positions that counted when the last pass began or ended, or those of
            a state that was loaded since.
    """

    def __init__(
        self, options: Mapping[str, Any], dataset: Mapping[str, Any], user: str
    ) -> None:
        self.epoch = 0
        self.done: Intervals = []
        self._options = dict(options)
        self._dataset = dict(dataset)
        self._user = user
        # Whether the next pass goes on after ``done``.
        self._goes_on = False

    @property
    def begun(self) -> Intervals:
        """The positions that count before the next pass."""
        return self.done if self._goes_on else []

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch at the next pass."""
        self.epoch, self.done, self._goes_on = epoch, [], False

    def begin(self) -> Intervals:
        """Begin a pass, and return the positions that count already."""
        self.done, self._goes_on = self.begun, False
        return self.done

    def save(self, done: Intervals) -> dict[str, Any]:
        """Return the state after some positions as a dictionary."""
        return {
            "epoch": self.epoch,
            **self._options,
            "dataset": dict(self._dataset),
            "partition": PARTITION,
            "done": [list(each) for each in done],
        }

    def check(self, saved: Mapping[str, Any]) -> None:
        """Raise unless a saved state fits.

        Raises:
            ValueError: It belongs to another dataset, seed or partition.
        """
        if set(saved) != _KEYS:
            raise ValueError(
                f"{self._user}.load_state_dict: expected a state of partition="
                f'"{PARTITION}" with the keys {sorted(_KEYS)}, got '
                f"{sorted(saved)}; begin a new epoch without this state, or pass "
                "the partition with which it was saved"
            )
        mine = {**self._options, **self._dataset}
        theirs = {key: saved[key] for key in self._options}
        if found := differences({**theirs, **saved["dataset"]}, mine):
            raise ValueError(
                f"{self._user}.load_state_dict: the state belongs to other data: "
                f"{found}; pass the same dataset and options, or begin a new epoch "
                "without this state"
            )

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on at the next pass from a saved state that fits."""
        self.epoch = saved["epoch"]
        self.done = [list(each) for each in saved["done"]]
        self._goes_on = True
