"""Hooks: a program's functions before and after each call of a group, as in torch 2.14.

torch calls hooks in its C++ dispatcher, which calls of a group written in Python do not
pass. So the group calls them itself. A group without hooks pays nothing: the first hook
puts wrapped methods into the group object, and the last removes them. The wrapped
methods do not keep the group alive, so that it is freed with its last reference.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import logging
import os
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch._C import _distributed_c10d as c10d

from bluecomm.errors import BluecommError
from bluecomm.torch_backend.calls import GroupCalls
from bluecomm.torch_backend.flight_record import Entry
from bluecomm.torch_backend.work import GroupWork

_log = logging.getLogger("bluecomm")

# torch's names of the calls; older versions have none.
_NAMES = getattr(c10d, "HookOpName", None)
# Number of the hook that TORCH_DIST_NAN_CHECK asks for.
_NAN_CHECK = -1


@dataclasses.dataclass(frozen=True)
class PreHookArgs:
    """Argument of a hook before a call, with the fields of torch's class of this name.

    Attributes:
        name: Member of torch's ``HookOpName``; its name if torch has no such class.
        async_op: Whether the caller gets a Work.
        input_tensors: Tensors that the call reads.
        output_tensors: Tensors that the call writes.
        root: Root of the call, or the peer of a send or receive, in the group; or -1.
        op_id: Number of the call, which the hooks after it get, too.
    """

    name: Any
    async_op: bool
    input_tensors: list[torch.Tensor]
    output_tensors: list[torch.Tensor]
    root: int
    op_id: int


@dataclasses.dataclass(frozen=True)
class PostHookArgs:
    """Argument of a hook after a call, with the fields of torch's class of this name.

    Attributes:
        name: As in ``PreHookArgs``.
        async_op: As in ``PreHookArgs``.
        work: The Work that the caller gets; None after a synchronous call.
        op_id: As in ``PreHookArgs``.
    """

    name: Any
    async_op: bool
    work: GroupWork | None
    op_id: int


PreHook = Callable[[PreHookArgs], object]
PostHook = Callable[[PostHookArgs], object]
AbortHook = Callable[[], object]


class _Method(NamedTuple):
    """Name of a method's calls in torch, and the engine's kind of its operations."""

    name: str
    kind: str | None = None


_METHODS = {
    "allreduce": _Method("ALLREDUCE", "allreduce"),
    "allreduce_coalesced": _Method("ALLREDUCE_COALESCED", "allreduce"),
    "reduce": _Method("REDUCE", "reduce"),
    "broadcast": _Method("BROADCAST", "broadcast"),
    "allgather": _Method("ALLGATHER", "allgather"),
    "all_gather_single": _Method("ALLGATHER_BASE", "allgather"),
    "_allgather_base": _Method("ALLGATHER_BASE", "allgather"),
    "allgather_coalesced": _Method("ALLGATHER_COALESCED", "allgather"),
    "all_gather_single_coalesced": _Method(
        "ALLGATHER_INTO_TENSOR_COALESCED", "allgather"
    ),
    "allgather_into_tensor_coalesced": _Method(
        "ALLGATHER_INTO_TENSOR_COALESCED", "allgather"
    ),
    "gather": _Method("GATHER", "gather"),
    "scatter": _Method("SCATTER", "scatter"),
    "reduce_scatter": _Method("REDUCE_SCATTER", "reducescatter"),
    "reduce_scatter_single": _Method("REDUCE_SCATTER_BASE", "reducescatter"),
    "_reduce_scatter_base": _Method("REDUCE_SCATTER_BASE", "reducescatter"),
    "reduce_scatter_single_coalesced": _Method(
        "REDUCE_SCATTER_TENSOR_COALESCED", "reducescatter"
    ),
    "reduce_scatter_tensor_coalesced": _Method(
        "REDUCE_SCATTER_TENSOR_COALESCED", "reducescatter"
    ),
    "alltoall": _Method("ALLTOALL", "alltoall"),
    "all_to_all_single": _Method("ALLTOALL_BASE", "alltoall"),
    "alltoall_base": _Method("ALLTOALL_BASE", "alltoall"),
    "barrier": _Method("BARRIER", "barrier"),
    "send": _Method("SEND"),
    "recv": _Method("RECV"),
    "recv_anysource": _Method("RECV"),
}


class Hooks(GroupCalls):
    """Methods that register hooks. Call them between calls, with numbers of your own.

    Hooks are called in ascending order of their numbers, on the thread of the call. If
    one that comes before a collective raises, the collective fails on all ranks with
    its error. Abort hooks are called when the program learns that a call has failed,
    and before ``abort``; they may be called several times. If one of them raises, its
    error is logged, and the call keeps its own error.
    """

    supports_abort_hooks = True
    _hooks: CallHooks | None = None

    def register_pre_hook(self, hook_id: int, hook: PreHook) -> None:
        """Call ``hook`` before each call of the group."""
        self._call_hooks().pre[hook_id] = hook

    def unregister_pre_hook(self, hook_id: int) -> None:
        """Forget a hook."""
        self._forget_hook("pre", hook_id)

    def register_post_hook(self, hook_id: int, hook: PostHook) -> None:
        """Call ``hook`` after each call of the group, which may still be running."""
        self._call_hooks().post[hook_id] = hook

    def unregister_post_hook(self, hook_id: int) -> None:
        """Forget a hook."""
        self._forget_hook("post", hook_id)

    def register_abort_hook(self, hook_id: int, hook: AbortHook) -> None:
        """Call ``hook`` when a call has failed, to capture what led to it."""
        self._call_hooks().abort[hook_id] = hook

    def unregister_abort_hook(self, hook_id: int) -> None:
        """Forget a hook."""
        self._forget_hook("abort", hook_id)

    def check_nan_if_asked(self) -> None:
        """Register torch's check of all inputs if TORCH_DIST_NAN_CHECK is 1."""
        if os.environ.get("TORCH_DIST_NAN_CHECK") == "1":
            group_of = weakref.ref(self)

            def check(args: PreHookArgs) -> None:
                group = group_of()
                assert group is not None
                _check_nan(args, group._comm.rank)

            self.register_pre_hook(_NAN_CHECK, check)

    def _call_hooks(self) -> CallHooks:
        if self._hooks is None:
            self._hooks = CallHooks(self)
        return self._hooks

    def _forget_hook(self, when: str, hook_id: int) -> None:
        hooks = self._hooks
        if hooks is None:
            return
        getattr(hooks, when).pop(hook_id, None)
        if not (hooks.pre or hooks.post or hooks.abort):
            hooks.remove()
            self._hooks = None


class CallHooks:
    """The hooks of one group. While it lives, they are called.

    Args:
        group: The group.
    """

    def __init__(self, group: GroupCalls) -> None:
        self.pre: dict[int, PreHook] = {}
        self.post: dict[int, PostHook] = {}
        self.abort: dict[int, AbortHook] = {}
        self._group_of = weakref.ref(group)
        self._numbers = itertools.count()
        for method, about in _METHODS.items():
            signature = inspect.signature(getattr(group, method))
            plain = getattr(type(group), method)
            setattr(group, method, self._around(plain, signature, about))

    def remove(self) -> None:
        """Let the group's calls pass without hooks."""
        group = self._group_of()
        for method in _METHODS:
            delattr(group, method)

    def fire_abort(self) -> None:
        """Call all abort hooks, and log their errors."""
        for number, hook in sorted(self.abort.items()):
            try:
                hook()
            except Exception as error:
                _log.warning(
                    "abort hook %d of a process group raised %s: %s",
                    number,
                    type(error).__name__,
                    error,
                    exc_info=True,
                )

    def _around(
        self,
        plain: Callable[..., Any],
        signature: inspect.Signature,
        about: _Method,
    ) -> Callable[..., GroupWork | None]:
        name = about.name if _NAMES is None else getattr(_NAMES, about.name)

        @functools.wraps(plain)
        def call(*args: Any, **kwargs: Any) -> GroupWork | None:
            group = self._group_of()
            assert group is not None
            given = signature.bind(*args, **kwargs).arguments
            number = next(self._numbers)
            # Sends, receives and the short forms have no options, and return a Work.
            async_op = bool(getattr(given.get("opts"), "asyncOp", True))
            before = PreHookArgs(
                name, async_op, _inputs(given), _outputs(given), _root(given), number
            )
            try:
                for _, pre in sorted(self.pre.items()):
                    pre(before)
            except Exception as error:
                if about.kind is not None:
                    group._refuse(about.kind, error)
                raise
            try:
                work: GroupWork | None = plain(group, *args, **kwargs)
            except BluecommError:
                self.fire_abort()
                raise
            if work is not None and self.abort:
                work.record(cast(Entry, _AbortWatch(self)))
            for _, post in sorted(self.post.items()):
                post(PostHookArgs(name, async_op, work, number))
            return work

        return call


class _AbortWatch:
    """Calls the abort hooks when a Work fails, in place of an entry of the record."""

    def __init__(self, hooks: CallHooks) -> None:
        self._hooks: CallHooks | None = hooks

    def end(self, error: BaseException | None) -> None:
        """Learn how the Work has ended."""
        hooks, self._hooks = self._hooks, None
        if error is not None and hooks is not None:
            hooks.fire_abort()


def _inputs(given: dict[str, Any]) -> list[torch.Tensor]:
    is_received = "src" in given or ("tag" in given and "dst" not in given)
    return [] if is_received else _tensors(given, "tensors", "inputs", "source")


def _outputs(given: dict[str, Any]) -> list[torch.Tensor]:
    return [] if "dst" in given else _tensors(given, "tensors", "outputs", "output")


def _tensors(given: dict[str, Any], *names: str) -> list[torch.Tensor]:
    for name in names:
        if name in given:
            return _flat(given[name])
    return []


def _flat(tensors: Any) -> list[torch.Tensor]:
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return [tensor for part in tensors or [] for tensor in _flat(part)]


def _root(given: dict[str, Any]) -> int:
    for name in ("dst", "src"):
        if name in given:
            return int(given[name])
    options = given.get("opts")
    return options if isinstance(options, int) else getattr(options, "rootRank", -1)


def _check_nan(args: PreHookArgs, rank: int) -> None:
    """Raise if an input of a call has an element that is not a number.

    Raises:
        RuntimeError: An input has one.
    """
    word = getattr(args.name, "name", args.name)
    if word == "BROADCAST" and args.root != rank:
        return
    for tensor in args.input_tensors:
        if _has_nan(tensor):
            raise RuntimeError(
                f"{word.lower()}: an input of shape {tuple(tensor.shape)} on rank "
                f"{rank} of the group has NaN, which TORCH_DIST_NAN_CHECK=1 forbids"
            )


def _has_nan(tensor: torch.Tensor) -> bool:
    if tensor.is_sparse:
        tensor = tensor.detach()._values()
    return bool(tensor.isnan().any())
