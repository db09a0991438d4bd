"""The collectives of a group that spread the root's values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bluecomm.ops.tensor import dtype_word
from bluecomm.runtime import parameters
from bluecomm.runtime.call import Call
from bluecomm.torch_backend.callers import takes_any_root, torch_caller
from bluecomm.torch_backend.calls import GroupCalls
from bluecomm.torch_backend.collective import collective
from bluecomm.torch_backend.tensors import as_input, as_output, written_back
from bluecomm.torch_backend.work import GroupWork

Tensors = list[torch.Tensor]


class Spreading(GroupCalls):
    """Methods for broadcast and scatter."""

    @collective("broadcast")
    def broadcast(self, tensors: Tensors, opts: Any) -> GroupWork | None:
        """Write the root's tensor to that of all ranks.

        If the root of a broadcast of DDP is lost, the lowest rank that is left takes
        its place.
        """
        any_root = self._survives and takes_any_root(torch_caller())
        (tensor,) = tensors
        operation = "broadcast"
        self._check_rank(operation, opts.rootRank)
        memory = as_output(tensor, operation)
        call = self._call(
            "broadcast",
            dtype_word(tensor.dtype, "broadcast"),
            self._shape(tensor),
            memory.detach().clone() if any_root else memory,
            memory,
            parameters=parameters(root=opts.rootRank),
            finish=written_back(tensor, memory),
        )
        call.any_root = any_root
        return self._run(operation, [call], opts, tensors)

    @collective("scatter")
    def scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any
    ) -> GroupWork | None:
        """Write the n-th input of the root to the output of rank n."""
        (output,) = outputs
        operation, root = "scatter", opts.rootRank
        self._check_rank(operation, root)
        memory = as_output(output, operation)
        copy_back = written_back(output, memory)
        if root == self._comm.rank:
            call = self._scatter_from_here(
                operation, inputs[0] if inputs else [], output
            )
        else:
            call = self._call(
                "scatter",
                dtype_word(memory.dtype, "scatter"),
                (0,),
                None,
                [memory],
                parameters=parameters(root=root),
                finish=copy_back,
            )
        return self._run(operation, [call], opts, outputs)

    def _scatter_from_here(
        self, operation: str, inputs: Tensors, output: torch.Tensor
    ) -> Call[None]:
        """Return the root's call of a scatter, which copies its own part itself."""
        if len(inputs) != self._comm.size:
            raise ValueError(
                f"{operation}: expected {self._comm.size} input tensors at the root, "
                f"one for each rank, got {len(inputs)}"
            )
        own = inputs[self._comm.rank]
        if own.numel() != output.numel() or own.dtype != output.dtype:
            raise RuntimeError(
                f"{operation}: expected an output like the input for this rank, "
                f"{own.dtype} of shape {tuple(own.shape)}, got {output.dtype} of shape "
                f"{tuple(output.shape)}"
            )
        sources = [as_input(part, operation).view(-1) for part in inputs]
        flat = torch.cat(sources)

        def finish(_: int) -> None:
            output.data.copy_(sources[self._comm.rank].view(output.shape))

        return self._call(
            "scatter",
            dtype_word(flat.dtype, "scatter"),
            (flat.numel(),),
            flat,
            None,
            parameters=parameters(
                root=self._comm.rank, splits=tuple(part.numel() for part in sources)
            ),
            finish=finish,
        )
