"""Machines of a cluster cache in one process: each has a memory, a server, a store."""

import functools
import threading

from bluecomm.data.stores.cluster.cluster_store import ClusterStore
from bluecomm.data.stores.cluster.messages import Kind
from bluecomm.data.stores.cluster.route import CacheRoute
from bluecomm.data.stores.cluster.server import CacheServer
from bluecomm.data.stores.memory.memory_store import MemoryStore
from bluecomm.data.world import DataWorld
from tests.support.deadlines import DEADLINE_S

BUDGET = 16 << 20
LENGTH = 1000


class FakeRoute(CacheRoute):
    """Passes messages on within the process; a rank that is cut off gets none."""

    def __init__(self, network, rank):
        self.network, self.rank = network, rank

    def open(self, inbox):
        self.network.inboxes[self.rank] = inbox

    def send(self, rank, message, value=None):
        network = self.network
        if value is not None:
            # A copy, as over the engine.
            values = network.values
            values[self.key(self.rank, rank, message)] = bytes(value)
        if not {rank, self.rank} & network.cut:
            network.sent.append((self.rank, rank, message.kind))
            network.post(rank, lambda inbox: inbox.on_message(self.rank, message))

    def receive(self, rank, message, memory, then):
        value = self.network.values.pop(self.key(rank, self.rank, message), None)
        is_here = value is not None and rank not in self.network.cut
        if is_here:
            memoryview(memory)[:] = value
        self.network.post(self.rank, lambda _: then(is_here))

    def close(self):
        self.network.inboxes.pop(self.rank, None)

    @staticmethod
    def key(sender, receiver, message):
        return sender, receiver, message.number, message.kind is Kind.FOUND


class Network:
    """Machines with one rank each.

    Attributes:
        stores: The store of each machine.
        cut: Ranks whose messages are dropped.
        sent: Sender, receiver and kind of all messages that have arrived.
    """

    def __init__(self, machines=2, **options):
        self.inboxes, self.values, self.cut, self.sent = {}, {}, set(), []
        self.servers, self.stores = [], []
        for rank in range(machines):
            self._add({one: one for one in range(machines)}, rank, options)
        for server in self.servers:
            server.start()
        for rank, server in enumerate(self.servers):
            # Its route is open once it answers.
            self.settle(rank, server)

    def _add(self, machine_of, rank, options, *introduction):
        memory = MemoryStore(BUDGET)
        memory.open(DataWorld(0, 1), LENGTH, "")
        route = FakeRoute(self, rank)
        server = CacheServer(rank, machine_of, memory, route, *introduction)
        store = ClusterStore(BUDGET, **options)
        store._memory = memory
        store._server = server
        store._reset(server.address)
        self.servers.append(server)
        self.stores.append(store)

    def join(self, machine, has_joined=lambda: True):
        """Start the server of a newcomer, which meets the others."""
        rank = len(self.servers)
        self._add({rank: machine}, rank, {}, range(rank), has_joined)
        self.servers[rank].start()

    def settle(self, rank, server=None):
        """Wait until a server has handled what has been posted to it."""
        done = threading.Event()
        (server or self.servers[rank]).post(done.set)
        assert done.wait(DEADLINE_S)

    def post(self, rank, call):
        inbox = self.inboxes.get(rank)
        if inbox is not None:
            inbox.post(functools.partial(call, inbox))

    def lose(self, rank):
        """Let a rank die, and the others learn of it."""
        self.cut.add(rank)
        for other in list(self.inboxes):
            if other != rank:
                self.post(other, lambda inbox: inbox.on_lost(rank))

    def keys_of(self, rank, count=20):
        """Return some keys of a machine."""
        machines = self.servers[rank]._machines
        owned = [key for key in range(LENGTH) if machines.owner_of(key) == machines.own]
        return owned[:count]

    def close(self):
        for store in self.stores:
            store.close()
