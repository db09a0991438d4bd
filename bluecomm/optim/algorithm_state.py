"""An algorithm's part of a checkpoint, and whose it is."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from bluecomm.optim.algorithm import Algorithm

_log = logging.getLogger("bluecomm")


def state_of_algorithm(algorithm: Algorithm) -> dict[str, Any]:
    """Return the state of an algorithm, and the rank that it belongs to."""
    return {
        "algorithm": algorithm.state_dict(),
        "rank": algorithm.context.comm.rank,
    }


def load_algorithm_state(
    algorithm: Algorithm, state: Mapping[str, Any], where: str
) -> None:
    """Go on from a state that ``state_of_algorithm`` returned.

    Logs a warning if another rank has saved it, and each rank has a state of its own.

    Args:
        algorithm: The algorithm, set up.
        state: The state.
        where: Says what to drop from the checkpoint to begin anew.

    Raises:
        ValueError: No algorithm has saved it.
    """
    if "algorithm" not in state:
        raise ValueError(
            f"{algorithm.context.name}: expected a state with the key 'algorithm', got "
            f"{sorted(state)}; load what state_dict returned after a backward pass, or "
            f"drop {where}"
        )
    saved_by, rank = state.get("rank"), algorithm.context.comm.rank
    is_own = algorithm.hands_over_state or saved_by in (None, rank)
    if state["algorithm"] and not is_own:
        _log.warning(
            "%s: rank %d loads a state of %s that rank %d saved, but each rank has "
            "tensors of its own there. Load what this rank saved, or drop %s, and the "
            "algorithm starts anew",
            *(algorithm.context.name, rank, type(algorithm).__name__, saved_by, where),
        )
    algorithm.load_state_dict(state["algorithm"])
