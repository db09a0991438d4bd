"""The same operations with torch's gloo, and what it lacks made of its messages."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from bfrun.probe import interface_addresses
from bluecomm import broadcast_object, rank, size
from bluecomm.bench.operations import (
    Case,
    Layout,
    Neighborhood,
    exchange_of,
    weighted_sum,
)
from bluecomm.bench.peer_calls import PeerCalls, Prepared, zeros
from bluecomm.bench.results import GLOO
from bluecomm.bench.timing import Call, Turn, timed
from bluecomm.runtime import current_communicator


def interface_of(address: str, interfaces: Sequence[Sequence[str]]) -> str | None:
    """Return the name of the network interface that has an address.

    Args:
        address: An address of this host.
        interfaces: Interface and address of each address but loopback ones.

    Returns:
        ``None`` if no interface has the address.
    """
    if ipaddress.ip_address(address).is_loopback:
        return "lo"
    for interface, known in interfaces:
        if known == address:
            return interface
    return None


def join_gloo() -> None:
    """Create torch's default process group of all ranks; collective.

    The ranks meet in a store that rank 0 runs, because not every launcher sets
    ``MASTER_ADDR``, as torch expects. Unless ``GLOO_SOCKET_IFNAME`` is set, gloo is
    given the interface of this rank's address; by itself it resolves the host's name
    and falls back to loopback.
    """
    address = current_communicator().world.assignment.addresses[0]
    interface = interface_of(address, interface_addresses())
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    store = None
    if rank() == 0:
        store = TCPStore(address, 0, size(), is_master=True, wait_for_workers=False)
    host, port = broadcast_object((address, store.port if store else 0))
    if store is None:
        store = TCPStore(host, port, size(), is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank(), world_size=size())


class Gloo(PeerCalls):
    """The gloo backend of torch.distributed, on ordinary tensors."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(rank(), len(layout))
        self._machine = layout[self._rank]
        self._machines = max(layout) + 1
        join_gloo()
        members = [
            [one for one, where in enumerate(layout) if where == machine]
            for machine in range(self._machines)
        ]
        # Every rank makes every group.
        groups = [dist.new_group(ranks) for ranks in members]
        self._local = groups[self._machine]
        self._leaders = [ranks[0] for ranks in members]

    name = GLOO

    def close(self) -> None:
        """End the process group."""
        dist.destroy_process_group()

    def prepare(self, case: Case) -> Turn | None:
        """Return the turn that measures a case; see ``Implementation``."""
        if case.operation.is_one_sided:
            return None
        return timed(self.call_for(case))

    def _allreduce(self, case: Case) -> Prepared:
        tensor = zeros(case)
        if case.operation.in_place:
            return tensor, lambda: dist.all_reduce(tensor)
        output = zeros(case)

        def call() -> None:
            output.copy_(tensor)
            dist.all_reduce(output)

        return tensor, call

    # The peer sends values as they are.
    _compressed_allreduce = _allreduce

    def _exchange(
        self, tensor: torch.Tensor, exchange: Neighborhood, output: torch.Tensor
    ) -> Call:
        received = [torch.empty_like(tensor).fill_(0) for _ in exchange.sources]

        def call() -> None:
            messages = [
                dist.P2POp(dist.isend, tensor, to) for to in exchange.destinations
            ]
            for memory, source in zip(received, exchange.sources, strict=True):
                messages.append(dist.P2POp(dist.irecv, memory, source))
            for work in dist.batch_isend_irecv(messages):
                work.wait()
            weighted_sum(tensor, received, exchange, output)

        return call

    def _hierarchical_neighbor_allreduce(self, case: Case) -> Prepared:
        tensor, output = zeros(case), zeros(case)
        leader = self._leaders[self._machine]
        local_size = dist.get_world_size(self._local)
        part = exchange_of("neighbor_allreduce", self._machine, self._machines)
        assert part is not None
        between = self._exchange(output, self._of_leaders(part), output)

        def call() -> None:
            output.copy_(tensor)
            dist.all_reduce(output, group=self._local)
            if self._rank == leader:
                output.div_(local_size)
                between()
            dist.broadcast(output, leader, group=self._local)

        return tensor, call

    def _of_leaders(self, part: Neighborhood) -> Neighborhood:
        """Return an exchange between machines as one between their first ranks."""
        return Neighborhood(
            part.self_weight,
            {self._leaders[machine]: w for machine, w in part.sources.items()},
            tuple(self._leaders[machine] for machine in part.destinations),
        )

    def _allgather(self, case: Case) -> Prepared:
        tensor, output = zeros(case, self._size), zeros(case)
        return tensor, lambda: dist.all_gather_into_tensor(output, tensor)

    def _broadcast(self, case: Case) -> Prepared:
        tensor = zeros(case)
        return tensor, lambda: dist.broadcast(tensor, 0)

    def _alltoall(self, case: Case) -> Prepared:
        tensor, output = zeros(case), zeros(case)
        return tensor, lambda: dist.all_to_all_single(output, tensor)
