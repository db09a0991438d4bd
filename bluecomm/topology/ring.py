"""Ring: each rank sends to the next rank, to the previous one, or to both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bluecomm.topology.graph import check_integer, circulant_graph

if TYPE_CHECKING:
    import networkx as nx


_OFFSETS = {0: (0, -1, 1), 1: (0, -1), 2: (0, 1)}


def RingGraph(size: int, connect_style: int = 0) -> nx.DiGraph[int]:  # noqa: N802
    """Return the ring.

    Rank ``i`` sends to ``i - 1`` and ``i + 1 (mod n)``, or to one of the two, and to
    itself. All weights are equal, so the mixing matrix is doubly stochastic.

    Args:
        size: Number of ranks ``n``, at least 1.
        connect_style: 0 sends both ways, 1 to the left (``i - 1``), 2 to the right
            (``i + 1``).

    Returns:
        New graph. With two ranks all weights are 1/2, whatever the style.

    Raises:
        TypeError: An argument is not an integer.
        ValueError: ``size < 1``, or ``connect_style`` is not 0, 1 or 2.
    """
    size = check_integer(size, "size", minimum=1)
    style = check_integer(connect_style, "connect_style", minimum=0)
    if style not in _OFFSETS:
        raise ValueError(f"connect_style must be 0, 1 or 2, got {style}")
    return circulant_graph(size, _OFFSETS[style])
