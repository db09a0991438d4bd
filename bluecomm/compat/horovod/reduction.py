"""One reduction with Horovod's arguments, for operations of bluecomm."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from bluecomm.compat.horovod.factors import needs_truncation, reduce_truncated, rounded
from bluecomm.ops.reduce_op import ReduceOp
from bluecomm.runtime import Communicator, Handle

_Result = TypeVar("_Result")


@dataclasses.dataclass(frozen=True)
class Reduction:
    """The arguments of a call, which a form of an operation of bluecomm takes."""

    tensor: torch.Tensor
    op: ReduceOp
    name: str | None
    prescale_factor: float
    postscale_factor: float
    comm: Communicator

    @property
    def is_truncated(self) -> bool:
        """Whether the values are integers, and the result is rounded to integers."""
        return needs_truncation(
            self.tensor, self.op, self.prescale_factor, self.postscale_factor
        )

    def run(self, form: Callable[..., _Result], **more: Any) -> _Result:
        """Call a form of the operation, for a reduction that is not truncated."""
        return form(
            self.tensor,
            op=self.op,
            name=self.name,
            prescale_factor=rounded(self.prescale_factor, self.tensor),
            postscale_factor=rounded(self.postscale_factor, self.tensor),
            process_set=self.comm,
            **more,
        )

    def start_truncated(
        self, form: Callable[..., Handle[torch.Tensor]]
    ) -> Handle[torch.Tensor]:
        """Start a truncated reduction by the nonblocking form of the operation."""
        return reduce_truncated(
            lambda sent, op: form(sent, op=op, name=self.name, process_set=self.comm),
            self.tensor,
            self.op,
            self.prescale_factor,
            self.postscale_factor,
            self.comm.size,
        )

    def start(self, form: Callable[..., Handle[torch.Tensor]]) -> Handle[torch.Tensor]:
        """Start the reduction by the nonblocking form of the operation."""
        return self.start_truncated(form) if self.is_truncated else self.run(form)
