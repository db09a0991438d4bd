"""Hooks on the forward passes and state dicts of an optimizer's models.

A copy of a model (``deepcopy``, pickle) is a plain model: its hooks do nothing.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from bluecomm.optim.local_parameters import is_local

# A tensor in a state dict -> the parameter or local buffer of which it has the values.
_origins = WeakTensorKeyDictionary()
_copies = contextvars.ContextVar("copies", default=True)


class Listener(Protocol):
    """Receives the events of the models."""

    def on_forward(self, model: nn.Module) -> None:
        """Called before a root model runs its forward pass."""

    def on_model_read(self) -> None:
        """Called before the values of the parameters are read."""

    def on_model_write(self) -> None:
        """Called before the values of the parameters are overwritten."""


class _Hook:
    """A hook that neither copies nor pickles its listener."""

    def __init__(self, listener: Listener | None = None) -> None:
        self._listener = listener

    def __reduce__(self) -> tuple[type[_Hook], tuple[()]]:
        return type(self), ()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Hook:
        return type(self)()


class _BeforeForward(_Hook):
    def __call__(self, module: nn.Module, args: Any) -> None:
        if self._listener is not None:
            _announce(self._listener, module)


def _announce(listener: Listener, module: nn.Module) -> None:
    """Announce a forward pass to the listener."""
    if torch.compiler.is_compiling():
        _announce_untraced(listener, module)
    else:
        listener.on_forward(module)


@torch._disable_dynamo  # type: ignore[attr-defined]
def _announce_untraced(listener: Listener, module: nn.Module) -> None:
    """Announce a forward pass outside the compiled graph, which breaks here.

    A function of its own, because calling it loads the compiler, which takes seconds.
    """
    listener.on_forward(module)


class _BeforeStateDict(_Hook):
    def __call__(self, module: nn.Module, prefix: str, keep_vars: bool) -> None:
        if self._listener is not None:
            self._listener.on_model_read()


class _BeforeLoad(_Hook):
    def __call__(self, *args: Any) -> None:
        if self._listener is not None:
            self._listener.on_model_write()


@contextlib.contextmanager
def without_copies() -> Iterator[None]:
    """Let state dicts have views of the parameters' memory, in this thread.

    The views lose their meaning with the next round, so read them before it, or ask
    ``origin_of`` for the parameters.
    """
    token = _copies.set(False)
    try:
        yield
    finally:
        _copies.reset(token)


class _AfterStateDict(_Hook):
    """Copies a module's own parameters, since saving a view saves its whole bucket.

    Remembers the parameters, and the buffers that are local.
    """

    def __call__(
        self, module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any
    ) -> None:
        if self._listener is None:
            return
        for name, parameter in module._parameters.items():
            value = state.get(prefix + name)
            if (
                parameter is not None
                and isinstance(value, torch.Tensor)
                and not isinstance(value, nn.Parameter)
                and value.data_ptr() == parameter.data_ptr()
            ):
                if _copies.get():
                    value = state[prefix + name] = value.detach().clone()
                _origins[value] = parameter
        for name, buffer in module._buffers.items():
            value = state.get(prefix + name)
            if buffer is not None and is_local(buffer) and value is not None:
                _origins[value] = buffer


def origin_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor of a model whose values a state dict has, or the tensor."""
    origin: torch.Tensor = _origins.get(tensor, tensor)  # type: ignore[no-untyped-call]
    return origin


def attach(models: Sequence[nn.Module], listener: Listener) -> list[RemovableHandle]:
    """Announce the events of models to a listener; return handles that remove it."""
    handles = []
    # torch has no annotations for the hooks of state dicts.
    modules: dict[Any, None] = {}
    for model in models:
        handles.append(
            model.register_forward_pre_hook(_BeforeForward(listener), prepend=True)
        )
        modules.update(dict.fromkeys(model.modules()))
    for module in modules:
        handles += [
            module.register_state_dict_pre_hook(_BeforeStateDict(listener)),
            module._register_state_dict_hook(_AfterStateDict(listener)),
            module._register_load_state_dict_pre_hook(_BeforeLoad(listener)),
        ]
    return handles
