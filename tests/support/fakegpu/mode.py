"""Torch operations on the fake's tensors, as kernels on the current stream.

An operation waits for the current stream only, computes on the host from what the
stream sees, and writes its results late, by a task of that stream. So a program that
forgets to order this stream after another one reads what the other one has not written.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
)

from tests.support.fakegpu.callers import (
    FACTORIES,
    MAKERS,
    TAKING,
    is_factory_of_tests,
    is_made_on_device,
    is_test,
)
from tests.support.fakegpu.other_groups import await_works, with_values
from tests.support.fakegpu.tensors import PLACED, DeviceMemory, is_composed
from tests.support.fakegpu.torch_calls import (
    check_copy,
    checked_for_sparse,
    move_gradients,
)

_SPARSE_OF_PARTS = "aten::_sparse_coo_tensor_with_dims_and_tensors"
# These share their argument's memory, although their schemas do not say so, or read
# none.
_VIEWS = {
    *("aten::_unsafe_view", "aten::lift", "aten::set_", _SPARSE_OF_PARTS),
    *("aten::_coalesced_", "aten::_nnz", "aten::dense_dim", "aten::is_coalesced"),
    "aten::sparse_dim",
}
# These return what depends on values of the device, so torch waits for it.
_READS = {
    *("aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero"),
    *("aten::masked_select", "aten::nonzero", "aten::_coalesce", "aten::_to_sparse"),
}
# These take tensors of the host beside those of the device; two of them as indices.
_COPIES = {
    *("aten::copy_", "aten::_foreach_copy_"),
    *("aten::index", "aten::index_put_"),
}
_UNINITIALIZED = {"aten::empty_like", "aten::new_empty", "aten::new_empty_strided"}
# Operations of these libraries call other operations and process groups, both of which
# get the device's tensors.
_COMPOSED = ("_c10d_functional::", "_c10d_functional_autograd::", "fsdp::")
# Operations of torch's own groups. They work on after they return, and their schemas do
# not say what they write.
_OF_GROUPS = "c10d::"
_ON_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


class _Kernels(TorchDispatchMode):
    """Runs operations that have an argument in device memory."""

    def __init__(self, memory: DeviceMemory, runs_host_tests: bool) -> None:
        super().__init__()
        self._memory = memory
        self._runs_host_tests = runs_host_tests
        self._is_composing = False

    def run(
        self,
        function: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if any(one.__name__ == "FakeTensor" for one in types):
            return function(*args, **kwargs)  # DTensor asks for a result's shape
        if any(is_composed(one) for one in types):
            return NotImplemented
        if function._schema.name.startswith(_COMPOSED):
            return self._run_parts(function, args, kwargs)
        if _is_composite(function):
            # Autograd takes it apart before, except for inference tensors.
            with self:
                return function.decompose(*args, **kwargs)
        memory = self._memory
        label = str(function)
        copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

        for tensor in _tensors((args, kwargs)):
            if memory.holds(tensor):
                copies[id(tensor)] = (tensor, tensor)
        if function._schema.name in MAKERS and not copies:
            made = function(*args, **kwargs)
            if not is_made_on_device(function, made, memory, self._is_composing):
                return made
            if function._schema.name.startswith("aten::empty"):
                return memory.empty(made.shape, made.dtype, made.stride())
            return memory.upload(made)
        if function._schema.name == _SPARSE_OF_PARTS and len(copies) == 1:
            args = _mapped(self._sparse_part, args)
        if not copies or _is_view(function):
            return function(*args, **kwargs)
        self._note_wait(function, label, args, kwargs)
        if function._schema.name == "aten::copy_":
            check_copy(*args[:2])
        for key, (tensor, _) in copies.items():
            copies[key] = (tensor, memory.read(tensor, label))
        if function._schema.name in _READS:
            memory.synchronize()

        def copy_of(tensor: torch.Tensor) -> torch.Tensor:
            return copies[id(tensor)][1] if id(tensor) in copies else tensor

        own_args, own_kwargs = _mapped(copy_of, (args, kwargs))
        result = function(*own_args, **own_kwargs)
        of_group = function._schema.name.startswith(_OF_GROUPS)
        if of_group:
            await_works(result)
        for tensor in _written(function, args, kwargs):
            if id(tensor) in copies:
                memory.write(tensor, copies[id(tensor)][1], label)
        originals = {id(copy): tensor for tensor, copy in copies.values()}
        given = {id(tensor) for tensor in _tensors((args, kwargs))}

        def place(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) in originals:
                return originals[id(tensor)]
            if id(tensor) in given or tensor.layout not in PLACED:
                return tensor
            if function._schema.name in _UNINITIALIZED:
                return memory.empty(tensor.shape, tensor.dtype, tensor.stride())
            return memory.upload(tensor)

        if of_group:
            result = with_values(result, place)
        return _mapped(place, result)

    def _run_parts(
        self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run an operation that consists of others, with this mode for the others."""
        before, self._is_composing = self._is_composing, True
        try:
            with self:
                return function.redispatch(_ON_CPU, *args, **kwargs)
        finally:
            self._is_composing = before

    def _sparse_part(self, part: torch.Tensor) -> torch.Tensor:
        """Return a part of a sparse tensor whose other part is on the device.

        Raises:
            RuntimeError: It is on the host. Torch's C++ code makes empty ones there.
        """
        if part.numel() and not self._memory.holds(part):
            raise RuntimeError("device of indices must match device of values")
        return self._memory.upload(part)

    def _note_wait(
        self, function: Any, label: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Note what torch would wait for on the host.

        Raises:
            RuntimeError: Torch would refuse to compute with tensors of the host.
        """
        name = function._schema.name
        others = [
            tensor
            for tensor in _tensors((args, kwargs))
            if tensor.layout in PLACED
            and tensor.dim()
            and tensor.numel()
            and not self._memory.holds(tensor)
        ]
        is_of_test = self._runs_host_tests and is_test(sys._getframe())
        if others and name not in _COPIES and not is_of_test:
            raise RuntimeError(
                f"{label}: expected all tensors to be on the same device, but found "
                f"the host and {self._memory.ordinal}"
            )
        if others or name in _READS:
            self._memory.host_waits.append(label)


# Torch imports its compiler, which takes seconds, for a method in the class's body.
_Kernels.__torch_dispatch__ = _Kernels.run  # type: ignore[method-assign]


class _ProgramCalls(TorchFunctionMode):
    """Methods that torch does not dispatch, and tensors that tests make.

    Factories that files of ``tests`` call without ``device`` make tensors there,
    as if it were the default. Factories that bluecomm calls make tensors of the host.
    """

    def __init__(
        self, memory: DeviceMemory, makes_tensors: bool, runs_host_tests: bool
    ) -> None:
        super().__init__()
        self._memory = memory
        self._makes_tensors = makes_tensors or runs_host_tests
        self._runs_host_tests = runs_host_tests
        self._factories = FACTORIES | (TAKING if runs_host_tests else set())

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        first = args[0] if args else None
        if (
            self._runs_host_tests
            and function is torch.Tensor.to
            and sys._getframe(1).f_code.co_filename.endswith("torch/optim/optimizer.py")
        ):
            # Loads a state, to the device of its parameter.
            kwargs.pop("device", None)
            return self._memory.upload(function(first, *args[1:], **kwargs))
        if isinstance(first, torch.Tensor) and self._memory.holds(first):
            if function is torch.Tensor.tolist:
                return self._memory.download(first).tolist()
            # torch 2.4 shows the arguments of each collective that raises.
            if function is torch.Tensor.__repr__:
                return repr(self._memory.download(first))
            if function is torch.Tensor.cpu or _is_move_to_host(
                function, args[1:], kwargs
            ):
                return self._memory.download(first)
            if function is torch.Tensor.__deepcopy__:
                copy = first.detach().clone().requires_grad_(first.requires_grad)
                return args[1].setdefault(id(first), copy)
            if function in (torch.Tensor.numpy, torch.Tensor.__array__):
                if self._runs_host_tests:
                    return function(self._memory.download(first), *args[1:], **kwargs)
                raise TypeError(
                    "can't convert a tensor of the fake device to numpy; use "
                    "Tensor.cpu() first"
                )
        if function is torch.sparse_coo_tensor:
            args, kwargs = (), checked_for_sparse(self._memory, args, kwargs)
        result = function(*args, **kwargs)
        if function is torch.Tensor.copy_ and result.requires_grad:
            move_gradients(self._memory, result, args[1])
        if self._runs_host_tests and kwargs.get("device", "") is None:
            del kwargs["device"]  # as modules of torch.nn give it
        if self._makes_tensors and is_factory_of_tests(
            function, kwargs, self._factories
        ):
            wants_grad = result.requires_grad
            return self._memory.upload(result).requires_grad_(wants_grad)
        return result


@contextlib.contextmanager
def kernels(
    memory: DeviceMemory, *, makes_tensors: bool = False, runs_host_tests: bool = False
) -> Iterator[None]:
    """Run torch operations of this thread on tensors in ``memory``.

    Args:
        memory: The device.
        makes_tensors: Whether factories such as ``torch.zeros`` that tests call make
            tensors of the device.
        runs_host_tests: Whether the tests are written for the host: modules of torch
            are made on the device, too, arrays of NumPy become tensors there, and
            ``numpy()`` copies to the host, as no tensor of CUDA does.
    """
    with (
        _ProgramCalls(memory, makes_tensors, runs_host_tests),
        _Kernels(memory, runs_host_tests),
    ):
        yield


def are_kernels() -> bool:
    """Return whether torch operations of this thread run under ``kernels``."""
    return _get_current_dispatch_mode() is not None


@functools.cache
def _is_composite(function: Any) -> bool:
    return bool(
        torch._C._dispatch_has_kernel_for_dispatch_key(
            function.name(), "CompositeImplicitAutograd"
        )
    )


def _is_view(function: Any) -> bool:
    schema = function._schema
    if schema.name in _VIEWS:
        return True
    aliases = [one.alias_info for one in schema.returns if one.alias_info is not None]
    return bool(aliases) and not any(alias.is_write for alias in aliases)


def _written(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Yield the arguments that an operation writes."""
    if function._schema.name.startswith(_OF_GROUPS):
        # Inputs come last, and may have the memory of outputs.
        yield from reversed(_tensors((args, kwargs)))
    for position, argument in enumerate(function._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        if position < len(args):
            yield from _tensors(args[position])
        elif argument.name in kwargs:
            yield from _tensors(kwargs[argument.name])


def _tensors(tree: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    _mapped(note, tree)
    return found


def _mapped(change: Callable[[torch.Tensor], torch.Tensor], tree: Any) -> Any:
    """Return arguments or results of an operation with each tensor changed.

    Torch's ``tree_map`` knows more kinds of trees, but took half of the time of an
    operation.
    """
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {key: _mapped(change, one) for key, one in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_mapped(change, one) for one in tree)
    return tree


def _is_move_to_host(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    if function is not torch.Tensor.to:
        return False
    wanted = [*args, *kwargs.values()]
    return any(
        (isinstance(one, str) and one == "cpu")
        or (isinstance(one, torch.device) and one.type == "cpu")
        for one in wanted
    )
