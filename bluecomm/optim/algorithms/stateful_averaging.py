"""Parameter averaging that keeps state for each parameter between rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from bluecomm.optim.algorithms.parameter_averaging import ParameterAveraging
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.buckets.bucket_state import BucketState


class StatefulAveraging(ParameterAveraging):
    """Base of the algorithms whose rounds depend on earlier ones.

    Attributes:
        memory: Flat tensors for each bucket, which the optimizer's ``state_dict``
            stores.
    """

    # Names of the tensors that are kept between rounds, of those needed within a round
    # only, and of those, of both kinds, that peers read.
    keeps: tuple[str, ...]
    scratch: ClassVar[tuple[str, ...]] = ()
    shares: ClassVar[tuple[str, ...]] = ()
    # Their type where the parameters have a narrower one. None: that of the parameters.
    at_least: ClassVar[torch.dtype | None] = None
    # Whether they are on the host, also if the parameters are on a device.
    is_on_host = False

    memory: BucketState

    @classmethod
    def memory_in_models(cls, ranks: int, neighbors: int) -> int:
        width = 2 if cls.at_least is torch.float64 else 1
        kept = width * (len(cls.keeps) + len(cls.scratch))
        return super().memory_in_models(ranks, neighbors) + kept

    def setup(self, buckets: Sequence[Bucket]) -> None:
        super().setup(buckets)
        self._make_memory(buckets)

    def rebucket(self, buckets: Sequence[Bucket]) -> None:
        kept = self.memory.state_dict()
        super().rebucket(buckets)
        self._make_memory(buckets)
        self.memory.load_state_dict(kept)

    def _make_memory(self, buckets: Sequence[Bucket]) -> None:
        self.memory = BucketState(
            buckets,
            self.keeps,
            scratch=self.scratch,
            shared=self.shares,
            at_least=self.at_least,
            on_host=self.is_on_host,
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "is_first_step": self._is_first_step,
            "memory": self.memory.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._is_first_step = state.get("is_first_step", True)
        self.memory.load_state_dict(state.get("memory", {}))
