"""Operations over one shared mapping, built from ``native/bench``.

For benchmarks to compare the engine with; no part of the engine.
"""

from collections.abc import Sequence

class _PybindType(type):
    """The metaclass of all classes that pybind11 makes."""

class RawMemory(metaclass=_PybindType):
    """Operations on one array per rank, in a mapping that all ranks of a machine share.

    All ranks map one zeroed file of `file_nbytes` and call the same operation at the
    same time. Each operation runs `repeats` times and returns the seconds per call. It
    raises RuntimeError if a rank does not reach a barrier within `timeout_s`.
    """

    def __init__(
        self, fd: int, rank: int, world_size: int, array_nbytes: int
    ) -> None: ...
    @staticmethod
    def file_nbytes(world_size: int, array_nbytes: int) -> int: ...
    @property
    def array_address(self) -> int: ...
    def allreduce(
        self, nbytes: int, dtype: str, *, repeats: int = 1, timeout_s: float = 60.0
    ) -> float:
        """Replace the first `nbytes` of each array by the sum over all ranks."""

    def combine(
        self,
        output_address: int,
        output_nbytes: int,
        sources: Sequence[tuple[int, float]],  # rank, weight; ascending rank
        dtype: str,
        *,
        repeats: int = 1,
        timeout_s: float = 60.0,
    ) -> float:
        """Write the weighted sum of the sources' arrays to the output."""

    def gather(
        self,
        output_address: int,
        output_nbytes: int,
        pieces: Sequence[tuple[int, int, int]],  # rank, offset, nbytes
        published: int,  # bytes of this rank's array that other ranks read
        largest: int,  # the most that any rank publishes
        *,
        repeats: int = 1,
        timeout_s: float = 60.0,
    ) -> float:
        """Write the pieces to the output, one after the other."""
