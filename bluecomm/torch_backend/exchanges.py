"""The collectives of a group that move values without a reduction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch._C import _distributed_c10d as c10d

from bluecomm.ops.overlaps import overlap
from bluecomm.ops.tensor import dtype_word
from bluecomm.runtime import parameters
from bluecomm.runtime.call import Call
from bluecomm.torch_backend.calls import GroupCalls
from bluecomm.torch_backend.collective import collective
from bluecomm.torch_backend.tensors import (
    as_input,
    as_output,
    as_outputs,
    done,
    written_back,
)
from bluecomm.torch_backend.work import GroupWork

Tensors = list[torch.Tensor]
_GATHER = c10d.AllgatherOptions()


class Exchanges(GroupCalls):
    """Methods for all_gather, gather, all_to_all and barrier."""

    @collective("barrier")
    def barrier(self, opts: Any) -> GroupWork | None:
        """Wait until all ranks of the group have called this.

        If the group has had tensors on a GPU, the GPUs have then also finished what was
        on the current streams when the ranks called, as with torch's own NCCL.
        """
        call = self._call("barrier", "uint8", (0,), None, None)
        if self._device is not None:
            call.gate = cast(Any, self._device.point())
        return self._run("barrier", [call], opts, [])

    @collective("allgather")
    def allgather(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any
    ) -> GroupWork | None:
        """Write the tensor of rank n to the n-th output on all ranks."""
        (parts,), (tensor,) = outputs, inputs
        operation = "all_gather"
        call = self._allgather(operation, parts, tensor)
        return self._run(operation, [call], opts, parts)

    @collective("allgather")
    def allgather_coalesced(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = _GATHER
    ) -> GroupWork | None:
        """Run one all_gather for each input; ``outputs`` has a list for each rank."""
        operation = "all_gather_coalesced"
        calls = [
            self._allgather(operation, parts, tensor)
            for parts, tensor in zip(zip(*outputs, strict=True), inputs, strict=True)
        ]
        written = [part for parts in outputs for part in parts]
        return self._run(operation, calls, opts, written)

    @collective("allgather")
    def all_gather_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = _GATHER
    ) -> GroupWork | None:
        """Write the tensors of all ranks to ``output``, in order of rank."""
        operation = "all_gather_single"
        call = self._allgather_single(operation, output, source)
        return self._run(operation, [call], opts, [output])

    @collective("allgather")
    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = _GATHER
    ) -> GroupWork | None:
        """Run one all_gather_single for each pair of tensors."""
        operation = "all_gather_single_coalesced"
        calls = [
            self._allgather_single(operation, output, source)
            for output, source in zip(outputs, inputs, strict=True)
        ]
        return self._run(operation, calls, opts, outputs)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @collective("gather")
    def gather(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any
    ) -> GroupWork | None:
        """Write the tensor of rank n to the n-th output of the root."""
        (tensor,) = inputs
        operation, root = "gather", opts.rootRank
        self._check_rank(operation, root)
        parts: Tensors | None = None
        if root == self._comm.rank:
            parts = outputs[0] if outputs else []
        call = self._gather("gather", operation, parts, tensor, root)
        return self._run(operation, [call], opts, parts or [])

    @collective("alltoall")
    def alltoall(
        self, outputs: Tensors, inputs: Tensors, opts: Any
    ) -> GroupWork | None:
        """Write the input of rank m for rank n to the m-th output of rank n."""
        operation = "all_to_all"
        size = self._comm.size
        if len(outputs) != size or len(inputs) != size:
            raise ValueError(
                f"{operation}: expected {size} output and input tensors, one for each "
                f"rank, got {len(outputs)} and {len(inputs)}"
            )
        memories, copy_back = as_outputs(outputs, operation)
        sources = [as_input(part, operation).view(-1) for part in inputs]
        call = self._alltoall(
            operation,
            memories,
            None,
            torch.cat(sources),
            [part.numel() for part in sources],
            copy_back,
        )
        return self._run(operation, [call], opts, outputs)

    @collective("alltoall")
    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any,
    ) -> GroupWork | None:
        """Send rows of ``source`` to each rank and write those received to ``output``.

        Empty splits stand for the same number of rows for each rank.
        """
        operation = "all_to_all_single"
        memory = as_output(output, operation)
        given = as_input(source, operation)
        if overlap(memory, given):
            given = given.clone()
        call = self._alltoall(
            operation,
            memory,
            self._counts(operation, memory, output_splits, "output"),
            given,
            self._counts(operation, given, input_splits, "input"),
            written_back(output, memory),
        )
        return self._run(operation, [call], opts, [output])

    def _allgather(
        self, operation: str, parts: Sequence[torch.Tensor], tensor: torch.Tensor
    ) -> Call[None]:
        return self._gather("allgather", operation, parts, tensor, 0)

    def _gather(
        self,
        kind: str,
        operation: str,
        parts: Sequence[torch.Tensor] | None,
        tensor: torch.Tensor,
        root: int,
    ) -> Call[None]:
        """Return a call that gathers tensors; only the root of a gather has parts."""
        source = as_input(tensor, operation)
        memories: Tensors | None = None
        copy_back: Callable[[int], None] = done
        if parts is not None:
            if len(parts) != self._comm.size:
                raise ValueError(
                    f"{operation}: expected {self._comm.size} output tensors, one for "
                    f"each rank, got {len(parts)}"
                )
            memories, copy_back = as_outputs(parts, operation)
        return self._call(
            kind,
            dtype_word(source.dtype, kind),
            (source.numel(),),
            source,
            memories,
            parameters=parameters(root=root),
            finish=copy_back,
        )

    def _allgather_single(
        self, operation: str, output: torch.Tensor, tensor: torch.Tensor
    ) -> Call[None]:
        source = as_input(tensor, operation)
        memory = as_output(output, operation)
        size = self._comm.size
        if output.numel() != source.numel() * size or output.dtype != source.dtype:
            raise RuntimeError(
                f"{operation}: expected an output with {size} times the elements of "
                f"the input, and its type, got {source.dtype} of shape "
                f"{tuple(source.shape)} and {output.dtype} of shape "
                f"{tuple(output.shape)}"
            )
        return self._call(
            "allgather",
            dtype_word(source.dtype, "allgather"),
            (source.numel(),),
            source,
            [memory],
            finish=written_back(output, memory),
        )

    def _alltoall(
        self,
        operation: str,
        outputs: torch.Tensor | Tensors,
        parts: Sequence[int] | None,
        source: torch.Tensor,
        splits: Sequence[int],
        finish: Callable[[int], None],
    ) -> Call[None]:
        """Return a call that exchanges elements.

        Args:
            operation: torch's name of the collective.
            outputs: Contiguous memory for the elements from each rank, in one tensor or
                several.
            parts: Number of elements from each rank, in one tensor.
            source: The elements for all ranks, one after the other.
            splits: Number of elements for each rank.
            finish: End of the call.
        """
        return self._call(
            "alltoall",
            dtype_word(source.dtype, "alltoall"),
            (source.numel(),),
            source,
            outputs,
            parts=parts,
            parameters=parameters(splits=tuple(splits)),
            finish=finish,
        )

    def _counts(
        self,
        operation: str,
        tensor: torch.Tensor,
        splits: Sequence[int],
        side: str,
    ) -> list[int]:
        """Return the number of elements in the rows of a tensor for each rank."""
        size = self._comm.size
        rows = tensor.shape[0] if tensor.dim() else 0
        if not splits:
            if rows % size:
                raise RuntimeError(
                    f"{operation}: the {rows} rows of the {side} cannot be divided "
                    f"evenly among {size} ranks; pass {side}_split_sizes"
                )
            return [tensor.numel() // size if rows else 0] * size
        if len(splits) != size or min(splits) < 0 or sum(splits) != rows:
            raise RuntimeError(
                f"{operation}: {side}_split_sizes must be {size} numbers that add up "
                f"to the {rows} rows of the {side}, got {list(splits)}"
            )
        width = tensor.numel() // rows if rows else 0
        return [count * width for count in splits]
