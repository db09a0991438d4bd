"""Neighbor allgather: every rank gets its in-neighbors' tensors, stacked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from bluecomm.device.staging import HostCopy
from bluecomm.device.staging_table import staging_of
from bluecomm.ops.alltoall import alltoall_nonblocking
from bluecomm.ops.autograd.adjoint import Adjoint, Forward
from bluecomm.ops.forms import NONBLOCKING, Form, blocking, nonblocking
from bluecomm.ops.nccl_gather import gathers_through_nccl
from bluecomm.ops.neighbor_weights import STATIC, Weights, Wording, resolve
from bluecomm.ops.refusal import describe_refused
from bluecomm.ops.start import start_gather
from bluecomm.ops.topology_check import CHECK_NOTE, check_peers, refused_exchange
from bluecomm.runtime import Communicator, Handle, current_communicator, parameters
from bluecomm.runtime.handle import GroupHandle, MappedHandle
from bluecomm.topology.rank_lists import check_ranks

if TYPE_CHECKING:
    from bluecomm._native import Gate

__all__ = ["neighbor_allgather", "neighbor_allgather_nonblocking"]

_KIND = "neighbor_allgather"


@describe_refused(refused_exchange(_KIND, "dst_ranks", lambda comm: comm.topology))
def _neighbor_allgather(
    form: Form,
    /,
    tensor: torch.Tensor,
    *,
    src_ranks: Iterable[int] | None = None,
    dst_ranks: Iterable[int] | None = None,
    enable_topo_check: bool = True,
    name: str | None = None,
    process_set: Communicator | None = None,
    timeout_s: float | None = None,
) -> Handle[torch.Tensor]:
    """Return the tensors of the in-neighbors, stacked along dimension 0.

    This rank's own tensor is not part of the result. The gradient of ``x_j`` is the sum
    over the out-neighbors ``i`` of the gradient of ``y_i``, in the rows of rank ``j``.

    Args:
        tensor: Tensor with at least one dimension. The first dimension may differ
            between ranks; the others and the type must be the same on all neighbors. It
            is not modified.
        src_ranks: Ranks to receive from: any iterable, in the order of the result (a
            set: ascending). It must be given together with ``dst_ranks``. Default: the
            in-neighbors in the topology, ascending.
        dst_ranks: Ranks to send to. Default: the out-neighbors in the topology.
        enable_topo_check: Whether all ranks first compare their senders and receivers
            if ranks are given, with a tiny allgather.
        name: Name by which the ranks' calls are matched. Calls without a name are
            matched by their order.
        process_set: Ranks that take part. Default: all.
        timeout_s: Seconds after which the operation fails. Default: the configured
            deadline.

    Returns:
        New tensor. Its first dimension is the sum of the first dimensions of the
        in-neighbors' tensors, 0 without in-neighbors.

    Raises:
        TypeError: ``tensor`` is not a tensor, or its type is not supported; or a list
            is not an iterable of integers.
        ValueError: ``tensor`` is a scalar, only one list is given, a rank is out of
            range or listed twice, or senders and receivers disagree.
        MismatchError: A neighbor called the operation with other trailing dimensions or
            another type.
        PeerLostError: A neighbor is lost.
        CommunicationTimeout: Some neighbors did not take part in time; the text names
            them.
    """
    comm = current_communicator(process_set)
    gathered = _start(
        comm,
        form,
        tensor,
        src_ranks,
        dst_ranks,
        enable_topo_check=enable_topo_check,
        name=name,
        timeout_s=timeout_s,
    )
    return MappedHandle(gathered, lambda result: result[0])


def start_neighbor_allgather(
    comm: Communicator,
    sent: HostCopy,
    sources: Sequence[int],
    destinations: Sequence[int],
    *,
    enable_topo_check: bool,
    name: str,
) -> Handle[tuple[torch.Tensor, list[int]]]:
    """Start a ``neighbor_allgather``, whose result has the rows of each source, too.

    If it raises before the operation has started, the other ranks are not told.

    Args:
        comm: Ranks that take part.
        sent: Values on the host, which may still be copied there; or values on a
            device, without a gate.
        sources: As ``src_ranks`` in ``neighbor_allgather``.
        destinations: As ``dst_ranks`` there.
        enable_topo_check: As there.
        name: As there.

    Raises:
        ValueError: Senders and receivers disagree.
        BluecommError: The check failed.
    """
    return _start(
        current_communicator(comm),
        NONBLOCKING,
        sent.values,
        sources,
        destinations,
        enable_topo_check=enable_topo_check,
        name=name,
        timeout_s=None,
        gate=sent.gate,
    )


def _start(
    comm: Communicator,
    form: Form,
    tensor: torch.Tensor,
    src_ranks: Iterable[int] | None,
    dst_ranks: Iterable[int] | None,
    *,
    enable_topo_check: bool,
    name: str | None,
    timeout_s: float | None,
    gate: Gate | None = None,
) -> Handle[tuple[torch.Tensor, list[int]]]:
    """Start the operation; arguments as in ``neighbor_allgather`` and ``start``."""
    if (src_ranks is None) != (dst_ranks is None):
        raise ValueError(
            f"{_KIND}: src_ranks and dst_ranks have to be given together, got "
            f"src_ranks={src_ranks}, dst_ranks={dst_ranks}"
        )
    weights, sources = STATIC, None
    if src_ranks is not None:
        sources = check_ranks(src_ranks, comm.size, f"{_KIND}: src_ranks")
        if len(set(sources)) != len(sources):
            raise ValueError(f"{_KIND}: src_ranks lists a rank twice: {sources}")
        targets = check_ranks(dst_ranks, comm.size, f"{_KIND}: dst_ranks")
        weights = Weights(0.0, dict.fromkeys(sources, 1.0), targets)
    resolved = resolve(
        Wording(_KIND, src="src_ranks", dst="dst_ranks"),
        comm.topology.weights if comm.topology else None,
        comm.rank,
        comm.size,
        weights,
    )
    name = comm.name_for(_KIND, name)
    if sources is None:
        sources = [rank for rank, _ in resolved.sources]
    if resolved.is_dynamic and enable_topo_check:
        destinations = [rank for rank, _ in resolved.destinations]
        check_peers(comm, _KIND, name, sources, destinations)
    return start_gather(
        comm,
        _KIND,
        tensor,
        form,
        name=name,
        timeout_s=timeout_s,
        parameters=parameters(
            sources=tuple((rank, 1.0) for rank in sources),
            destinations=tuple(resolved.destinations),
        ),
        adjoint=_RETURNED,
        gate=gate,
    )


neighbor_allgather = blocking(_neighbor_allgather)
neighbor_allgather_nonblocking = nonblocking(_neighbor_allgather, CHECK_NOTE)


def _start_returned(forward: Forward, gradient: torch.Tensor) -> Handle[torch.Tensor]:
    """Return ``gx_j = sum_i rows_j(gy_i)`` over the out-neighbors ``i``.

    Each neighbor gets different rows, so each edge of the graph has its own operation.
    Calls through NCCL need all members, which then exchange the rows in one.
    """
    given, me = forward.parameters, forward.comm.rank
    assert given is not None
    sources = [member for member, _ in given.sources]
    staging = staging_of(gradient)
    if staging is not None and gathers_through_nccl(forward.comm, staging, _KIND):
        return _start_among_all(forward, gradient, sources, len(given.destinations))
    sent = [
        _start_edge(forward, piece, sender=me, receiver=source)
        for source, piece in zip(
            sources, torch.split(gradient, list(forward.rows)), strict=True
        )
    ]
    received = [
        _start_edge(forward, gradient[:0], sender=member, receiver=me)
        for member, _ in given.destinations
    ]

    def add(results: list[torch.Tensor]) -> torch.Tensor:
        total = gradient.new_zeros(tuple(forward.shape))
        for piece in results[len(sent) :]:
            total = total + piece
        # Second derivatives must also reach the edges that only send.
        for nothing in results[: len(sent)]:
            if nothing.requires_grad:
                total = total + nothing.sum()
        return total

    return MappedHandle(GroupHandle([*sent, *received]), add)


def _start_among_all(
    forward: Forward, gradient: torch.Tensor, sources: list[int], receivers: int
) -> Handle[torch.Tensor]:
    """Return the gradient by one operation in which all members take part."""
    pieces = dict(zip(sources, torch.split(gradient, list(forward.rows)), strict=True))
    ordered = [pieces[member] for member in sorted(pieces)]
    returned = alltoall_nonblocking(
        torch.cat(ordered) if ordered else gradient,
        [len(pieces.get(member, ())) for member in range(forward.comm.size)],
        forward.name,
        process_set=forward.comm,
        timeout_s=forward.timeout_s,
    )
    return MappedHandle(
        returned, lambda got: got[0].view(receivers, *forward.shape).sum(0)
    )


def _start_edge(
    forward: Forward, rows: torch.Tensor, *, sender: int, receiver: int
) -> Handle[torch.Tensor]:
    """Start an operation of two members that sends rows from one to the other."""
    is_sender = sender == forward.comm.rank
    edge = start_gather(
        forward.comm,
        _KIND,
        rows,
        name=f"{forward.name}.{sender}-{receiver}",
        timeout_s=forward.timeout_s,
        parameters=parameters(
            sources=() if is_sender else ((sender, 1.0),),
            destinations=((receiver, 1.0),) if is_sender else (),
        ),
        adjoint=_RETURNED,
    )
    return MappedHandle(edge, lambda result: result[0])


_RETURNED = Adjoint(_start_returned)
