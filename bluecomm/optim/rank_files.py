"""Files that each rank saves beside a common checkpoint, to continue exactly.

A common checkpoint has the average of the ranks' models, and the plain optimizer's
state. From these alone training continues correctly, but not exactly: each rank has a
model and a state of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import torch

from bluecomm.ops.allreduce import allreduce
from bluecomm.ops.reduce_op import Min
from bluecomm.optim.wrapper import STATE_KEY
from bluecomm.runtime import current_communicator

_log = logging.getLogger("bluecomm")


def path_of_rank(path: object) -> str:
    """Return the path of this rank's file beside the checkpoint at ``path``."""
    comm = current_communicator()
    return f"{path}.rank-{comm.rank}-of-{comm.size}"


def digests_of(states: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return a digest of each model's state, for ``part_of`` and ``agreed_part``.

    Args:
        states: The state dicts of the models in the common checkpoint, by name.
    """
    return {name: _digest(state) for name, state in states.items()}


def _digest(state: Mapping[str, Any]) -> str:
    """Return a digest of the names, shapes, types and values of tensors."""
    digest = hashlib.blake2b()
    for name, value in sorted(state.items()):
        if isinstance(value, torch.Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            # A contiguous tensor of one element may have any stride.
            flat = value.detach().contiguous().as_strided((value.numel(),), (1,))
            values = flat.view(torch.uint8)
            digest.update(values.numpy().data)
    return digest.hexdigest()


def part_of(digests: dict[str, str], own: dict[str, Any]) -> dict[str, Any]:
    """Return what this rank's file is to contain.

    Args:
        digests: Digests of all models in the common checkpoint.
        own: This rank's state.
    """
    return {"checkpoint": digests, "own": own}


def agreed_part(
    path: object,
    digests: Mapping[str, str],
    load: Callable[[], dict[str, Any]] | None,
) -> dict[str, Any] | None:
    """Return what this rank saved beside a checkpoint, unless a rank lacks its file.

    A file counts as missing if it was saved with another checkpoint, such as an earlier
    one of the same name, or if its rank died while it wrote it. Collective; logs a
    warning before it returns None.

    Args:
        path: The common checkpoint.
        digests: Digests of the models that were loaded from it: all, or only some.
        load: Returns the contents of this rank's file; None if it does not exist.
    """
    found = None
    if load is not None:
        with contextlib.suppress(EOFError, RuntimeError, pickle.UnpicklingError):
            found = load()
    fits = found is not None and digests.items() <= found["checkpoint"].items()
    everyone = allreduce(torch.tensor(int(fits)), op=Min, name="optim.rank_files")
    if found is not None and everyone:
        own: dict[str, Any] = found["own"]
        return own
    _log.warning(
        "%s: not every rank has its own file of this checkpoint beside it, so all "
        "ranks continue with the average of the models, and the algorithm starts anew",
        path,
    )
    return None


def without_rank_state(state: dict[str, Any]) -> dict[str, Any]:
    """Return an optimizer's state without what differs between ranks by design.

    An algorithm's own tensors belong to one rank. Loaded on all, they would be wrong,
    and an algorithm starts correctly without them.
    """
    return {key: value for key, value in state.items() if key != STATE_KEY}
