"""Jobs that go on without lost ranks, and states from which training goes on.

``bfrun --on-failure continue`` lets the other ranks train on when one fails;
docs/survival.md lists the algorithms that can. With the names of
``horovod.torch.elastic`` a script adapts to such changes, starts again from its last
commit, and stops before the job is ended; docs/elastic.md describes them.
"""

from __future__ import annotations

from bluecomm.elastic.events import events, members
from bluecomm.elastic.notice import should_stop
from bluecomm.elastic.restart import run
from bluecomm.elastic.sampler import ElasticSampler
from bluecomm.elastic.saving import lineage, may_save, save
from bluecomm.elastic.state import HostsUpdatedInterrupt, ObjectState, State
from bluecomm.elastic.torch_state import TorchState
from bluecomm.errors import HorovodInternalError
from bluecomm.runtime.members import MemberEvent

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "MemberEvent",
    "ObjectState",
    "State",
    "TorchState",
    "events",
    "lineage",
    "may_save",
    "members",
    "run",
    "save",
    "should_stop",
]
