"""The reductions of a group: all_reduce, reduce and reduce_scatter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from bluecomm.ops.overlaps import overlap
from bluecomm.ops.reduce_op import Average, Sum
from bluecomm.ops.sparse_allreduce import sparse_allreduce_nonblocking
from bluecomm.runtime import Handle
from bluecomm.runtime.call import Call
from bluecomm.runtime.handle import MappedHandle
from bluecomm.torch_backend.callers import torch_caller, wants_mean
from bluecomm.torch_backend.calls import GroupCalls
from bluecomm.torch_backend.collective import collective
from bluecomm.torch_backend.compat import is_async
from bluecomm.torch_backend.reduce_ops import (
    EngineReduction,
    reduction,
    sparse_reduction,
)
from bluecomm.torch_backend.tensors import (
    as_input,
    as_output,
    both,
    written_back,
)
from bluecomm.torch_backend.work import GroupWork

Tensors = list[torch.Tensor]
_REDUCE = c10d.AllreduceCoalescedOptions()
_SCATTER = c10d.ReduceScatterOptions()


class Reductions(GroupCalls):
    """Methods for all_reduce, reduce and reduce_scatter."""

    @collective("allreduce")
    def allreduce(self, tensors: Tensors, opts: Any) -> GroupWork | None:
        """Write the reduction of one tensor over all ranks to it.

        A sum of DDP is a mean, and stays one after a loss.
        """
        is_mean = self._survives and wants_mean(torch_caller())
        (tensor,) = tensors
        if tensor.is_sparse:
            return self._sparse_allreduce(tensor, opts, is_mean)
        call = self._allreduce("all_reduce", tensor, opts, is_mean=is_mean)
        return self._run("all_reduce", [call], opts, tensors)

    @collective("allreduce")
    def allreduce_coalesced(
        self, tensors: Tensors, opts: Any = _REDUCE
    ) -> GroupWork | None:
        """Write the reduction of each tensor over all ranks to it."""
        operation = "all_reduce_coalesced"
        calls = [self._allreduce(operation, tensor, opts) for tensor in tensors]
        return self._run(operation, calls, opts, tensors)

    @collective("reduce")
    def reduce(self, tensors: Tensors, opts: Any) -> GroupWork | None:
        """Write the reduction of one tensor over all ranks to that of the root."""
        (tensor,) = tensors
        operation, root = "reduce", opts.rootRank
        self._check_rank(operation, root)
        how = reduction(opts.reduceOp, tensor, self._comm.size, operation, root=root)
        is_root = root == self._comm.rank
        source = (as_output if is_root else as_input)(tensor, operation)
        call = self._call(
            "reduce",
            how.dtype,
            self._shape(tensor),
            self._kept(source) if is_root else source,
            source if is_root else None,
            parameters=how.parameters,
        )
        if is_root:
            call.finish = both(
                call.finish, written_back(tensor, source, _divisor(how, call))
            )
        return self._run(operation, [call], opts, tensors)

    @collective("reducescatter")
    def reduce_scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any
    ) -> GroupWork | None:
        """Write the reduction of all n-th inputs to the output of rank n."""
        (output,), (parts,) = outputs, inputs
        operation = "reduce_scatter"
        sources = [as_input(part, operation).view(-1) for part in parts]
        splits = tuple(source.numel() for source in sources)
        if len(splits) != self._comm.size or splits[self._comm.rank] != output.numel():
            raise RuntimeError(
                f"{operation}: expected {self._comm.size} inputs, of which that of "
                f"this rank ({self._comm.rank}) is like the output, got shapes "
                f"{[tuple(part.shape) for part in parts]} and {tuple(output.shape)}"
            )
        flat = torch.cat(sources)
        call = self._reduce_scatter(operation, output, flat, opts, splits)
        return self._run(operation, [call], opts, outputs)

    @collective("reducescatter")
    def reduce_scatter_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = _SCATTER
    ) -> GroupWork | None:
        """Write the n-th part of the reduction to the output of rank n."""
        operation = "reduce_scatter_single"
        call = self._reduce_scatter_single(operation, output, source, opts)
        return self._run(operation, [call], opts, [output])

    @collective("reducescatter")
    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = _SCATTER
    ) -> GroupWork | None:
        """Run one reduce_scatter_single for each pair of tensors."""
        operation = "reduce_scatter_single_coalesced"
        calls = [
            self._reduce_scatter_single(operation, output, source, opts)
            for output, source in zip(outputs, inputs, strict=True)
        ]
        return self._run(operation, calls, opts, outputs)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _allreduce(
        self, operation: str, tensor: torch.Tensor, opts: Any, *, is_mean: bool = False
    ) -> Call[None]:
        memory = as_output(tensor, operation)
        how = reduction(
            opts.reduceOp, tensor, self._comm.size, operation, is_mean=is_mean
        )
        call = self._call(
            "allreduce",
            how.dtype,
            self._shape(tensor),
            self._kept(memory),
            memory,
            parameters=how.parameters,
        )
        call.finish = both(
            call.finish, written_back(tensor, memory, _divisor(how, call))
        )
        return call

    def _sparse_allreduce(
        self, tensor: torch.Tensor, opts: Any, is_mean: bool
    ) -> GroupWork | None:
        """Write the sum or average of sparse tensors over all ranks to ``tensor``."""
        op, factor = sparse_reduction(opts.reduceOp, "all_reduce"), 1
        if is_mean and op is Sum:
            op, factor = Average, self._comm.size

        def copy_back(total: torch.Tensor) -> None:
            with torch.no_grad():  # tensor.data has indices of its own
                tensor.copy_(total if factor == 1 else total * factor)

        def start() -> list[Handle[None]]:
            handle = sparse_allreduce_nonblocking(
                tensor.detach(),
                name,
                op,
                self._comm,
                timeout_s=self._limit_s(opts),
            )
            return [MappedHandle(handle, copy_back)]

        name, _ = self._count()
        waits = not is_async(opts)
        return self._launch("all_reduce", start, [tensor], waits=waits)

    def _reduce_scatter(
        self,
        operation: str,
        output: torch.Tensor,
        source: torch.Tensor,
        opts: Any,
        splits: tuple[int, ...],
    ) -> Call[None]:
        """Return a call that scatters contiguous values by the numbers in splits."""
        if source.dtype != output.dtype:
            raise RuntimeError(
                f"{operation}: expected an output of type {source.dtype}, got "
                f"{output.dtype}"
            )
        memory = as_output(output, operation)
        if overlap(memory, source):
            # Sharded optimizers reduce a buffer into their part of it.
            memory = torch.empty_like(memory)
        how = reduction(
            opts.reduceOp, source, self._comm.size, operation, splits=splits
        )
        call = self._call(
            "reducescatter",
            how.dtype,
            (source.numel(),),
            source,
            memory,
            parameters=how.parameters,
        )
        call.finish = both(
            call.finish, written_back(output, memory, _divisor(how, call))
        )
        return call

    def _reduce_scatter_single(
        self, operation: str, output: torch.Tensor, tensor: torch.Tensor, opts: Any
    ) -> Call[None]:
        source = as_input(tensor, operation)
        size = self._comm.size
        if source.numel() != output.numel() * size:
            raise RuntimeError(
                f"{operation}: expected an input with {size} times the elements of "
                f"the output, got shapes {tuple(tensor.shape)} and "
                f"{tuple(output.shape)}"
            )
        return self._reduce_scatter(operation, output, source, opts, ())


def _divisor(how: EngineReduction, call: Call[None]) -> Callable[[], int] | None:
    """Return a function for the divisor of a call's result; None if it has none."""
    if not how.divisor:
        return None
    # Asked once. A call that kept its reference to itself would keep its memory until
    # the garbage collector runs.
    calls = [call]
    return lambda: calls.pop().contributors or how.divisor
