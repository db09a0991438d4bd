"""The adjoint of min, max and product, whose gradients depend on the values."""

from __future__ import annotations

import torch

from bluecomm.ops.allgather import allgather_nonblocking
from bluecomm.ops.autograd.adjoint import Adjoint, Forward
from bluecomm.runtime import Handle
from bluecomm.runtime.handle import MappedHandle


def _start_gradient(
    forward: Forward, gradient: torch.Tensor, tensor: torch.Tensor
) -> Handle[torch.Tensor]:
    """Return ``gx_j = pre * post * dR/dx_j(pre * x_1, ..., pre * x_n) * sum_i gy_i``.

    Each rank gathers all inputs and gradients, and computes its derivative from them.
    """
    given, comm = forward.parameters, forward.comm
    assert given is not None
    members = list(range(comm.size))
    if given.local_only:
        members = comm.layout.members(comm.machine_rank)
    mine = members.index(comm.rank)

    def differentiate(gathered: torch.Tensor) -> torch.Tensor:
        if len(members) < comm.size:
            # A list as index would have to be copied to a device.
            gathered = torch.stack([gathered[member] for member in members])
        values, gradients = gathered.unbind(1)
        derivative = _derivative(given.op, values, mine)
        return gradients.sum(0) * derivative * (given.prescale * given.postscale)

    stacked = allgather_nonblocking(
        torch.stack([tensor * given.prescale, gradient]).unsqueeze(0),
        forward.name,
        process_set=comm,
        timeout_s=forward.timeout_s,
    )
    return MappedHandle(stacked, differentiate)


def _derivative(op: str, values: torch.Tensor, mine: int) -> torch.Tensor:
    """Return the derivative of a reduction over dimension 0 by one of the values."""
    if op == "product":
        return torch.cat([values[:mine], values[mine + 1 :]]).prod(0)
    extreme = values.amax(0) if op == "max" else values.amin(0)
    is_extreme = (values == extreme).to(values.dtype)
    return is_extreme[mine] / is_extreme.sum(0)


GRADIENT_BY_VALUES = Adjoint(_start_gradient, needs_input=True)
