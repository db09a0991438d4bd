"""Passes calls on to torch's backends, if these serve the device of the tensors.

A group such as ``"cpu:bluecomm,cuda:nccl"`` has a backend for each type of device, but
torch asks one written in Python for all devices.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from bluecomm.device.staging_table import staging_of
from bluecomm.torch_backend.compat import (
    group_of_backends,
    serve_calls_without_tensors,
    shut_down,
)
from bluecomm_autoload import NAME


class Owner(Protocol):
    """The attributes of a group that its other backends need."""

    bound_device_id: torch.device | None
    group_name: Any
    group_desc: str
    _store: c10d.Store
    _device_limit_s: float

    def rank(self) -> int:
        """Return the number of this rank in the group."""

    def size(self) -> int:
        """Return the number of ranks in the group."""


# Names of methods in versions of torch that do not have the newer ones.
_OLD_NAMES = {
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
}


class OtherBackends:
    """The backends of torch that serve the other devices of a group of bluecomm.

    Args:
        group: The group, which owns this object.
    """

    def __init__(self, group: object) -> None:
        self._owner = weakref.ref(group)
        # Backends by type of device; None until torch has registered the group.
        self._names: dict[str, str] | None = None
        # A group of torch that is made of these backends.
        self._group: c10d.ProcessGroup | None = None
        self._made: set[str] = set()
        # Keeps the keys of former members apart in the store.
        self._prefix = ""

    def inherit(self, parent: OtherBackends) -> None:
        """Take the backends of the group from which this one is split."""
        self._names = parent.names

    @property
    def names(self) -> dict[str, str]:
        """Names of the other backends, by type of device."""
        if self._names is not None:
            return self._names
        owner: Any = self._owner()
        configured = dist.distributed_c10d._world.pg_backend_config.get(owner)
        if configured is None:
            return {}
        pairs = dict(pair.split(":") for pair in configured.split(",") if ":" in pair)
        self._names = {device: name for device, name in pairs.items() if name != NAME}
        return self._names

    def method_for(self, name: str, tensors: Any) -> Callable[..., Any] | None:
        """Return the method of torch's group for a call; None if bluecomm serves it.

        Args:
            name: Name of the method of the group.
            tensors: Tensors of the call, in lists or not.

        Raises:
            RuntimeError: This torch does not have the backend.
        """
        first = _first(tensors)
        if first is None:
            return None
        # Tests use a fake GPU, whose tensors torch takes for tensors of the CPU.
        staging = staging_of(first)
        device = str(first.device) if staging is None else staging.name
        found = self.group_for(device.partition(":")[0])
        if found is None:
            return None
        method: Callable[..., Any] = getattr(
            found, name if hasattr(found, name) else _OLD_NAMES[name]
        )
        return method

    def group_for(self, device: str) -> c10d.ProcessGroup | None:
        """Return torch's group for a type of device; None if bluecomm serves it.

        Raises:
            RuntimeError: This torch does not have the backend.
        """
        name = self.names.get(device)
        if name is None:
            return None
        owner: Any = self._owner()
        if self._group is None:
            self._group = group_of_backends(
                owner._store, owner.rank(), owner.size(), name
            )
            self._group.bound_device_id = owner.bound_device_id
        if device not in self._made:
            self._register(self._group, device, name, owner)
            self._made.add(device)
        return self._group

    def _register(
        self,
        group: c10d.ProcessGroup,
        device: str,
        name: str,
        owner: Owner,
    ) -> None:
        kinds = {"nccl": "ProcessGroupNCCL", "gloo": "ProcessGroupGloo"}
        make = getattr(c10d, kinds.get(name, ""), None)
        if make is None:
            raise RuntimeError(
                f"process group {owner.group_name!r}: this torch "
                f"({torch.__version__}) has no backend {name!r} for {device} tensors; "
                f"make the group with init_process_group({NAME!r}), whose {device} "
                "tensors travel through the host, or install a torch with it"
            )
        store = c10d.PrefixStore(f"{device}/{self._prefix}", owner._store)
        limit = timedelta(seconds=owner._device_limit_s)
        backend: c10d.Backend
        if name == "gloo":
            backend = make(store, owner.rank(), owner.size(), limit)
        else:
            options = make.Options()
            options._timeout = limit
            backend = make(store, owner.rank(), owner.size(), options)
        kind = getattr(c10d.ProcessGroup.BackendType, name.upper())
        group._register_backend(torch.device(device), kind, backend)
        serve_calls_without_tensors(group, kind)
        named: Any = f"{owner.group_name}:{device}"
        group._set_group_name(named)
        group._set_group_desc(owner.group_desc)

    def restart(self, number: int) -> None:
        """End torch's group; the next call makes one of the present members.

        Args:
            number: The same on all members, and another one each time.
        """
        self.shutdown()
        self._prefix = f"{number}/"

    def shutdown(self) -> None:
        """End torch's group, if there is one."""
        if self._group is not None:
            shut_down(self._group, self._made)
            self._group = None
            self._made.clear()


def _first(tensors: Any) -> torch.Tensor | None:
    """Return the first tensor of nested lists; None if there is none."""
    if isinstance(tensors, (list, tuple)):
        found = (_first(one) for one in tensors)
        return next((one for one in found if one is not None), None)
    return tensors if isinstance(tensors, torch.Tensor) else None
