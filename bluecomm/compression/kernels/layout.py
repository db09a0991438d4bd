"""Where the values and bytes of a chunk lie: a head, then the codes."""

# Bytes of a head. The codes of a chunk are filled up to a multiple of it.
HEAD = 32


def stride_of(count: int) -> int:
    """Return the bytes of a chunk of ``count`` values with a code of one byte each."""
    return HEAD + (count + HEAD - 1) // HEAD * HEAD


def least(one: int, other: int) -> int:
    """Return the smaller of two numbers; Numba cannot compile ``min`` for CUDA."""
    return one if one < other else other


def greatest(one: int, other: int) -> int:
    """Return the larger of two numbers, as ``least`` does the smaller one."""
    return one if one > other else other
