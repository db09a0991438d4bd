"""Staging with torch, for devices without a driver that bluecomm knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from bluecomm.device.point import Point
from bluecomm.device.staging import HostCopy, Staging


class BlockingStaging(Staging):
    """Copies with torch, which stops the program until a copy has ended.

    Args:
        like: Tensor on the device.
    """

    def __init__(self, like: torch.Tensor) -> None:
        self._like = like

    @property
    def name(self) -> str:
        return str(self._like.device)

    def current_stream(self) -> int:
        return 0

    def to_host(
        self,
        tensor: torch.Tensor,
        *,
        into: torch.Tensor | None = None,
        after: Iterable[int] = (),
    ) -> HostCopy:
        if into is None:
            return HostCopy(tensor.cpu(), None)
        with torch.no_grad():
            return HostCopy(into.copy_(tensor.view(into.shape)), None)

    def empty_on_host(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=dtype)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return self._like.new_empty(tuple(shape), dtype=dtype)

    def point(self) -> Point | None:
        return None

    def follow(self, point: Point | None) -> None:
        pass

    def follow_streams(self, streams: Iterable[int]) -> None:
        pass

    def keep_for_stream(self, memory: object) -> None:
        pass

    def new_future(self) -> torch.futures.Future[Any]:
        return torch.futures.Future()

    def fill(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        tensor.data.copy_(values.view(tensor.shape))
