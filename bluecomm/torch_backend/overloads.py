"""The shorter forms of a group's methods, which take a root or a reduction.

torch's functions pass lists of tensors and options. Programs that call a group's
methods themselves may pass one tensor and the values of the options instead.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch._C import _distributed_c10d as c10d

from bluecomm.torch_backend.callers import is_backward, torch_caller
from bluecomm.torch_backend.compat import is_async
from bluecomm.torch_backend.exchanges import Exchanges
from bluecomm.torch_backend.reductions import Reductions
from bluecomm.torch_backend.spreading import Spreading
from bluecomm.torch_backend.work import GroupWork

Timeout = datetime.timedelta | None
Options = TypeVar("Options")


class Overloads(Reductions, Spreading, Exchanges):
    """Methods that make lists and options, and call those of the base classes."""

    def allreduce(
        self, tensors: Any, opts: Any = None, timeout: Timeout = None
    ) -> GroupWork | None:
        """Take a reduction instead of options."""
        if type(opts) is not c10d.AllreduceOptions:
            opts = _options(c10d.AllreduceOptions, timeout, reduceOp=opts)
        elif self._buckets is None:
            pass
        elif is_async(opts) and is_backward(torch_caller()):
            self._buckets.offer(tensors[0])
        return super().allreduce(_listed(tensors), opts)

    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: Timeout = None
    ) -> GroupWork | None:
        """Take a root and a reduction instead of options."""
        if type(opts) is not c10d.ReduceOptions:
            opts = _options(c10d.ReduceOptions, timeout, rootRank=opts, reduceOp=op)
        return super().reduce(_listed(tensors), opts)

    def broadcast(
        self, tensors: Any, opts: Any = None, timeout: Timeout = None
    ) -> GroupWork | None:
        """Take a root instead of options."""
        if type(opts) is not c10d.BroadcastOptions:
            opts = _options(c10d.BroadcastOptions, timeout, rootRank=opts)
        return super().broadcast(_listed(tensors), opts)

    def barrier(self, opts: Any = None, timeout: Timeout = None) -> GroupWork | None:
        """Take a timeout instead of options."""
        if type(opts) is not c10d.BarrierOptions:
            opts = _options(c10d.BarrierOptions, timeout or opts)
        return super().barrier(opts)

    def allgather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Timeout = None
    ) -> GroupWork | None:
        """Take one input and its outputs."""
        if isinstance(inputs, torch.Tensor):
            outputs = [outputs]
        if type(opts) is not c10d.AllgatherOptions:
            opts = _options(c10d.AllgatherOptions, timeout or opts)
        return super().allgather(outputs, _listed(inputs), opts)

    def gather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Timeout = None
    ) -> GroupWork | None:
        """Take one input, its outputs and a root instead of options."""
        if isinstance(inputs, torch.Tensor):
            outputs = [outputs]
        if type(opts) is not c10d.GatherOptions:
            opts = _options(c10d.GatherOptions, timeout, rootRank=opts)
        return super().gather(outputs, _listed(inputs), opts)

    def scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Timeout = None
    ) -> GroupWork | None:
        """Take one output, its inputs and a root instead of options."""
        if isinstance(outputs, torch.Tensor):
            inputs = [inputs]
        if type(opts) is not c10d.ScatterOptions:
            opts = _options(c10d.ScatterOptions, timeout, rootRank=opts)
        return super().scatter(_listed(outputs), inputs, opts)

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Timeout = None
    ) -> GroupWork | None:
        """Take one output, its inputs and a reduction instead of options."""
        if isinstance(outputs, torch.Tensor):
            inputs = [inputs]
        if type(opts) is not c10d.ReduceScatterOptions:
            opts = _options(c10d.ReduceScatterOptions, timeout, reduceOp=opts)
        return super().reduce_scatter(_listed(outputs), inputs, opts)

    def alltoall(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Timeout = None
    ) -> GroupWork | None:
        """Take a timeout instead of options."""
        if type(opts) is not c10d.AllToAllOptions:
            opts = _options(c10d.AllToAllOptions, timeout or opts)
        return super().alltoall(outputs, inputs, opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
        timeout: Timeout = None,
    ) -> GroupWork | None:
        """Take a timeout instead of options."""
        if type(opts) is not c10d.AllToAllOptions:
            opts = _options(c10d.AllToAllOptions, timeout or opts)
        return super().all_to_all_single(
            output, source, output_splits, input_splits, opts
        )

    alltoall_base = all_to_all_single


def _listed(tensors: Any) -> Any:
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def _options(kind: type[Options], timeout: Timeout, **fields: Any) -> Options:
    """Return options of an asynchronous call; None stands for torch's default."""
    options = kind()
    for name, value in {"timeout": timeout, **fields}.items():
        if value is not None:
            setattr(options, name, value)
    return options
