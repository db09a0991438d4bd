"""Tells from the calling code whether torch would make a tensor on the device."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import bluecomm
from tests.support.fakegpu.tensors import DeviceMemory

_TESTS = str(Path(__file__).parents[2])
_SUPPORT = str(Path(__file__).parent)
# Tests write programs to this folder, in which the project may lie, too.
_WRITTEN = tempfile.gettempdir()
_INSTALLED = tuple(
    str(Path(file).parents[1]) for file in (bluecomm.__file__, torch.__file__)
)
# The file through which each call of torch goes.
_MODE = str(Path(__file__).with_name("mode.py"))
_MODULES = str(Path(bluecomm.__file__).parent / "nn")
# Files whose calls of C++ code reach the reducer of DistributedDataParallel, which
# makes buckets.
_ABOVE_REDUCER = ("torch/nn/parallel/distributed.py", "torch/autograd/graph.py")
# The file that calls the C++ code which makes the results of functional collectives.
_ABOVE_COLLECTIVES = "torch/_ops.py"
_OF_FSDP = "/torch/distributed/fsdp/"
# Hooks, joins and pipelines of torch make tensors on the device of others, which to it
# is the CPU.
_BESIDE_OTHERS = (
    "/torch/distributed/algorithms/",
    "/torch/distributed/pipelining/",
)
# Operations that make tensors of which torch says the device; the last one is a part of
# ``torch.tensor``. What ``randn`` makes there is meant for the host.
MAKERS = {
    "aten::empty",
    "aten::empty_strided",
    "aten::zeros",
    "aten::ones",
    "aten::lift_fresh",
}
# Functions that make tensors on the default device.
FACTORIES = {
    *(torch.arange, torch.empty, torch.eye, torch.full, torch.linspace, torch.ones),
    *(
        torch.rand,
        torch.randint,
        torch.randn,
        torch.randperm,
        torch.sparse_coo_tensor,
        torch.tensor,
        torch.zeros,
    ),
}
# Functions that take values of the host to the default device.
TAKING = {torch.as_tensor, torch.from_numpy}


def is_made_on_device(
    function: Any, made: torch.Tensor, memory: DeviceMemory, is_composing: bool
) -> bool:
    """Return whether torch would have made a tensor on the device.

    Args:
        function: The operation, one of ``MAKERS``.
        made: The tensor.
        memory: Memory of the device.
        is_composing: Whether an operation runs that consists of others.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_SUPPORT):
        frame = frame.f_back
    if frame is None or made.device.type != "cpu":
        return False
    caller = frame.f_code.co_filename
    if memory.has_ddp and any(one in caller for one in _BESIDE_OTHERS):
        return frame.f_code.co_name != "<module>"
    if function._schema.name != "aten::empty":
        return False
    if memory.has_ddp and caller.endswith(_ABOVE_REDUCER):
        return made.is_floating_point()  # others are indices
    if memory.has_fsdp and _OF_FSDP in caller:
        return True
    return is_composing and caller.endswith(_ABOVE_COLLECTIVES)


def is_factory_of_tests(
    function: Callable[..., Any],
    kwargs: Mapping[str, Any],
    factories: Collection[Callable[..., Any]] = FACTORIES,
) -> bool:
    """Return whether a test, and not this folder, makes a tensor without a device.

    ``__torch_function__`` calls it.
    """
    if function not in factories or "device" in kwargs:
        return False
    frame: FrameType | None = sys._getframe(2)  # the caller of __torch_function__
    while frame is not None and _makes_module(frame):
        frame = frame.f_back
    return is_test(frame)


def _makes_module(frame: FrameType) -> bool:
    """Return whether a frame is torch's, or makes a module of bluecomm.nn."""
    code = frame.f_code
    return "/torch/" in code.co_filename or (
        code.co_name == "__init__" and code.co_filename.startswith(_MODULES)
    )


def is_test(frame: FrameType | None) -> bool:
    """Return whether a test calls, directly or through torch and the mode."""
    while frame is not None:
        file = frame.f_code.co_filename
        if "/torch/" not in file and file != _MODE:
            if file.startswith(_TESTS):
                return not file.startswith(_SUPPORT)
            return file.startswith(_WRITTEN) and not file.startswith(_INSTALLED)
        frame = frame.f_back
    return False
