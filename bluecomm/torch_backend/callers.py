"""Tells which function of torch calls a group.

The reducer of DistributedDataParallel is written in C++, and does not tell a group that
it is the caller. Its calls are recognized by the Python function that has entered it.
"""

from __future__ import annotations

import sys
from types import FrameType

_DDP = "torch.nn.parallel.distributed"
_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
# Modules whose functions only pass calls on.
_PASSING_ON = ("torch.distributed.distributed_c10d", "torch.distributed.c10d_logger")
_PACKAGE = __name__.rpartition(".")[0]

# The function below which the reducer reduces buckets.
_BACKWARD = ("torch.autograd.graph", "_engine_run_backward")
# Functions that sum tensors which they have divided by the size of the group, because
# they want the mean.
_MEANS = {
    _BACKWARD,
    (_DDP, "_match_all_reduce_for_bwd_pass"),
    (_DDP, "_delayed_all_reduce_hook"),
    (_HOOKS, "_allreduce_fut"),
    (_HOOKS, "_compress_hook"),
}
# Functions that broadcast the first rank's values although those of any rank would do:
# buffers in each forward pass, and the order of the buckets after the first step.
_AGREEING = {
    (_DDP, "_distributed_broadcast_coalesced"),
    (_DDP, "_pre_forward"),
    (_DDP, "main_hook"),
}

Caller = tuple[str, str]


def torch_caller() -> Caller:
    """Return module and name of the function that calls a group; empty if none does.

    Functions of this package, and those of torch that only pass calls on, are left out.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module not in _PASSING_ON and not module.startswith(_PACKAGE):
            return module, frame.f_code.co_name
        frame = frame.f_back
    return "", ""  # a thread of C++


def is_backward(caller: Caller) -> bool:
    """Return whether DDP's reducer makes the call, in a backward pass."""
    return caller == _BACKWARD


def wants_mean(caller: Caller) -> bool:
    """Return whether a sum is a mean, as its inputs are divided by the group's size."""
    return caller in _MEANS


def takes_any_root(caller: Caller) -> bool:
    """Return whether a broadcast may come from another rank if its root is lost."""
    return caller in _AGREEING


def caller_of(depth: int) -> FrameType | None:
    """Return the frame that called, ``depth`` levels up; None if there is none."""
    try:
        return sys._getframe(depth + 1)
    except ValueError:  # a thread of C++
        return None
