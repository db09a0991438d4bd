"""Operations on tensors of all types; a body of ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch

import bluecomm as bf

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
# For operations that move values, but do not compute with them.
MOVED = [torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2]

COMPUTING: dict[str, Callable[[torch.Tensor, str], torch.Tensor]] = {
    "sum": lambda x, name: bf.allreduce(x, op=bf.Sum, name=name),
    "average": lambda x, name: bf.allreduce(x, name=name),
    "max": lambda x, name: bf.allreduce(x, op=bf.Max, name=name),
    "product": lambda x, name: bf.allreduce(x, op=bf.Product, name=name),
    "reducescatter": lambda x, name: bf.reducescatter(x, op=bf.Sum, name=name),
    "neighbor_allreduce": lambda x, name: bf.neighbor_allreduce(x, name=name),
}
MOVING: dict[str, Callable[[torch.Tensor, str], torch.Tensor]] = {
    "broadcast": lambda x, name: bf.broadcast(x, 1, name=name),
    "allgather": lambda x, name: bf.allgather(x, name=name),
    "alltoall": lambda x, name: bf.alltoall(x, name=name),
    "neighbor_allgather": lambda x, name: bf.neighbor_allgather(x, name=name),
}


def use_all_types(tensors: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return each result in float32, by name; no elements if the type is refused."""
    x = tensors[bf.rank()]
    found: dict[str, torch.Tensor] = {}
    cases = [
        *(
            (operation, dtype)
            for operation in COMPUTING.items()
            for dtype in INTEGERS + FLOATS
        ),
        *(
            (operation, dtype)
            for operation in MOVING.items()
            for dtype in INTEGERS + FLOATS + MOVED
        ),
    ]
    for (name, call), dtype in cases:
        label = f"{name} of {dtype}"
        try:
            result = call(x.to(dtype), label)
        except (TypeError, ValueError):
            found[label] = x.new_zeros(0)
            continue
        assert result.dtype == dtype, label
        found[label] = result.abs() if dtype.is_complex else result.float()
    return found
