"""The names of ``horovod.torch.elastic``; docs/elastic.md says what differs."""

from bluecomm.elastic import (
    ElasticSampler,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    ObjectState,
    State,
    TorchState,
    members,
    run,
)

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TorchState",
    "members",
    "run",
]
