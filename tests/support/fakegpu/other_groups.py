"""Works of torch's own process groups, such as one of Gloo, with the fake's tensors.

Such a group computes with copies on the host, and the fake waits for each call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future
from torch.utils._pytree import tree_map_only


def await_works(result: Any) -> None:
    """Wait for what a call has started."""
    for one in result if type(result) is tuple else (result,):
        if isinstance(one, torch.ScriptObject):
            dist.Work.unbox(one).wait()


def with_values(result: Any, place: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return the result of an ended call with other values of the works' futures.

    Args:
        result: The result.
        place: Returns the tensor that a copy stands for.
    """
    if type(result) is tuple:
        return tuple(with_values(one, place) for one in result)
    if not isinstance(result, torch.ScriptObject):
        return result
    try:
        value = dist.Work.unbox(result).get_future().value()
    except RuntimeError:  # a message has none, and its end cannot be waited for again
        value = []
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(tree_map_only(torch.Tensor, place, value))
    return _create_work_from_future(future).boxed()
