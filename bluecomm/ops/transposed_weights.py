"""The adjoint of a weighted sum over neighbors: the same with transposed weights."""

from __future__ import annotations

import torch

from bluecomm.ops.autograd.adjoint import Adjoint, Forward
from bluecomm.ops.start import start
from bluecomm.runtime import Handle, parameters


def _start_transposed(forward: Forward, gradient: torch.Tensor) -> Handle[torch.Tensor]:
    """Return ``gx_j = s_j * gy_j + sum_i d_ij * (w_ij * gy_i)``.

    In the call ``y_i = s_i * x_i + sum_j w_ij * (d_ij * x_j)``, rank ``j`` applied
    ``d_ij`` before sending, and rank ``i`` applied ``w_ij`` on arrival. The gradient
    travels from ``i`` to ``j``, and both apply the same weights to it.

    Between machines, ``x_j`` is the mean over the ranks of machine ``j``, and each rank
    of machine ``i`` gets ``y_i``. So the mean of the gradients of machine ``i`` has the
    additional weight ``n_i / n_j``, where ``n_i`` is the number of its ranks.
    """
    given, comm = forward.parameters, forward.comm
    assert given is not None
    ranks = 1
    if forward.kind == "hierarchical_neighbor_allreduce":
        # If all machines have the same size, leave out the factors and their rounding.
        is_even = comm.layout.is_homogeneous
        ranks = 1 if is_even else comm.local_size
    return start(
        comm,
        forward.kind,
        gradient,
        name=forward.name,
        timeout_s=forward.timeout_s,
        parameters=parameters(
            self_weight=given.self_weight,
            sources=tuple(
                (node, weight / ranks) for node, weight in given.destinations
            ),
            destinations=tuple(
                (node, weight * ranks) for node, weight in given.sources
            ),
        ),
        adjoint=TRANSPOSED_WEIGHTS,
    )


TRANSPOSED_WEIGHTS = Adjoint(_start_transposed)
