"""The collectives of torch.distributed and the forms in which programs call them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from bluecomm.bench.operations import OPERATIONS, Case
from bluecomm.bench.own import Bluecomm
from bluecomm.bench.timing import Call, Turn, timed

Allocate = Callable[..., torch.Tensor]
"""Makes a tensor, as torch.empty does."""

Start = Callable[..., Any]
"""Starts a collective; takes async_op, and returns work if it is true."""

# The newer names where torch has them, because it warns of the older ones.
_gather: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_scatter: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def _all_reduce(empty: Allocate, case: Case, group: dist.ProcessGroup) -> Start:
    tensor = empty(case.count, dtype=case.dtype).fill_(0)
    return lambda async_op: dist.all_reduce(tensor, group=group, async_op=async_op)


def _all_gather(empty: Allocate, case: Case, group: dist.ProcessGroup) -> Start:
    output = empty(case.count, dtype=case.dtype).fill_(0)
    block = empty(case.count // group.size(), dtype=case.dtype).fill_(0)
    return lambda async_op: _gather(output, block, group=group, async_op=async_op)


def _reduce_scatter(empty: Allocate, case: Case, group: dist.ProcessGroup) -> Start:
    tensor = empty(case.count, dtype=case.dtype).fill_(0)
    block = empty(case.count // group.size(), dtype=case.dtype).fill_(0)
    return lambda async_op: _scatter(block, tensor, group=group, async_op=async_op)


def _all_to_all(empty: Allocate, case: Case, group: dist.ProcessGroup) -> Start:
    output = empty(case.count, dtype=case.dtype).fill_(0)
    tensor = empty(case.count, dtype=case.dtype).fill_(0)
    return lambda async_op: dist.all_to_all_single(
        output, tensor, group=group, async_op=async_op
    )


# The operation of bluecomm that does the same work, which names the rule for sizes and
# bandwidth, and how the collective is called.
_COLLECTIVES: dict[str, tuple[str, Callable[..., Start]]] = {
    "all_reduce": ("allreduce_", _all_reduce),
    "all_gather": ("allgather", _all_gather),
    "reduce_scatter": ("allgather", _reduce_scatter),
    "all_to_all": ("alltoall", _all_to_all),
}


def _in_future(start: Start) -> Call:
    return lambda: start(async_op=True).get_future().wait()


_FORMS: dict[str, Callable[[Start], Call]] = {
    "sync": lambda start: lambda: start(async_op=False),
    "async": lambda start: lambda: start(async_op=True).wait(),
    "future": _in_future,
}

COLLECTIVES = tuple(_COLLECTIVES)
FORMS = tuple(_FORMS)


def like(collective: str) -> str:
    """Return the operation of ``OPERATIONS`` whose sizes a collective has."""
    return _COLLECTIVES[collective][0]


@dataclasses.dataclass(frozen=True)
class Through:
    """Collectives through a process group, on tensors of one kind.

    Attributes:
        name: The name in the results.
        group: The group.
        empty: Makes the tensors.
    """

    name: str
    group: dist.ProcessGroup
    empty: Allocate

    def prepare(self, collective: str, form: str, case: Case) -> Turn | None:
        """Return the turn that measures a collective in a form; collective.

        Returns ``None``, on all ranks, if the backend does not have the form.
        """
        _, make = _COLLECTIVES[collective]
        start = make(self.empty, case, self.group)
        if form == "future" and not _has_futures(start):
            return None
        return timed(_FORMS[form](start))


def _has_futures(start: Start) -> bool:
    """Return whether the work of a collective has a future; collective."""
    work = start(async_op=True)
    try:
        work.get_future()
    except RuntimeError:  # reduce_scatter of gloo
        return False
    finally:
        work.wait()
    return True


@dataclasses.dataclass(frozen=True)
class Native:
    """``bf.allreduce_``, without torch.distributed.

    Attributes:
        name: The name in the results.
        shared: Whether the tensors are in shared memory.
    """

    name: str
    shared: bool

    def prepare(self, collective: str, form: str, case: Case) -> Turn | None:
        """Return the turn that measures the operation; None but for a sync one."""
        if collective != "all_reduce" or form != "sync":
            return None
        assert case.operation is OPERATIONS["allreduce_"]
        return Bluecomm(shared=self.shared).prepare(case)
