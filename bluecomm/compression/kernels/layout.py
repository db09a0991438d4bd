"""Where the bytes of a chunk lie: a head, then the codes."""

# Bytes of a head. The codes of a chunk are filled up to a multiple of it.
HEAD = 32


def stride_of(count: int) -> int:
    """Return the bytes of a chunk of ``count`` values with a code of one byte each."""
    return HEAD + (count + HEAD - 1) // HEAD * HEAD
