"""Models that a program drops before all ranks have ended their training."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

import bluecomm as bf
from tests.support.training import backward, make_model


def check_dropped_models(wrap: Callable[[nn.Module], Any]) -> None:
    """Drop a model that has ended and, on rank 0 only, one that has not.

    Args:
        wrap: Returns a distributed optimizer whose ranks end together.
    """
    held: list[Any] = []
    dropped: list[weakref.ref[Any]] = []
    for has_ended in (True, False):
        model = make_model("mlp", 0)
        optimizer = wrap(model)
        backward(model, bf.rank(), 0)
        optimizer.step()
        if has_ended:
            optimizer.abort()
        dropped.append(weakref.ref(model[0].weight))
        if not has_ended and bf.rank() == 1:
            held += [model, optimizer]
    del model, optimizer
    gc.collect()
    assert [weight() is not None for weight in dropped] == [False, True]
    bf.shutdown()
    gc.collect()
    assert (dropped[1]() is not None) == bool(held)
