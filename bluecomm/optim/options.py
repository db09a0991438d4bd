"""Options of a distributed optimizer, and settings that may change at any step."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterable, Mapping

from bluecomm.compression import Compression, Compressor, check_compressor
from bluecomm.ops.reduce_op import Adasum, Average, ReduceOp, Sum
from bluecomm.topology.graph import check_integer


class CommunicationType(enum.Enum):
    """The operation of a parameter-averaging optimizer, by BlueFog's names."""

    neighbor_allreduce = "neighbor_allreduce"
    hierarchical_neighbor_allreduce = "hierarchical_neighbor_allreduce"
    allreduce = "allreduce"
    empty = "empty"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """The options of ``DistributedOptimizer`` that do not belong to one algorithm.

    Attributes:
        allreduce_algorithm: The engine's algorithm for gradients, ``auto`` unless
            autotuning has found a faster one.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: A value is out of its range.
    """

    compression: type[Compressor] = Compression.none
    op: ReduceOp = Average
    backward_passes_per_step: int = 1
    num_steps_per_communication: int = 1
    gradient_predivide_factor: float = 1.0
    sparse_as_dense: bool = False
    bucket_bytes: int
    allreduce_algorithm: str = "auto"

    def __post_init__(self) -> None:
        for name in (
            "backward_passes_per_step",
            "num_steps_per_communication",
            "bucket_bytes",
        ):
            check_integer(getattr(self, name), name, minimum=1)
        if self.op not in (Average, Sum, Adasum):
            raise ValueError(
                f"op must be bluecomm.Average, Sum or Adasum, got {self.op!r}"
            )
        if not 0.0 < self.gradient_predivide_factor < math.inf:
            raise ValueError(
                "gradient_predivide_factor must be above 0 and finite, got "
                f"{self.gradient_predivide_factor}"
            )
        if self.gradient_predivide_factor != 1.0 and self.op is not Average:
            raise ValueError(
                "gradient_predivide_factor needs op=bluecomm.Average, got "
                f"op={self.op!r}"
            )
        if not isinstance(self.sparse_as_dense, bool):
            raise TypeError(
                f"sparse_as_dense must be True or False, got {self.sparse_as_dense!r}"
            )
        check_compressor(self.compression)


@dataclasses.dataclass
class StepSettings:
    """Attributes of the optimizer that may be set before each step, as in BlueFog.

    With ``None`` the topology in force decides. The first three weights are arguments
    of ``neighbor_allreduce``, the machine weights of
    ``hierarchical_neighbor_allreduce``.
    """

    self_weight: float | None = None
    src_weights: Mapping[int, float] | None = None
    dst_weights: Mapping[int, float] | Iterable[int] | None = None
    src_machine_weights: Mapping[int, float] | None = None
    dst_machine_weights: Mapping[int, float] | Iterable[int] | None = None
    enable_topo_check: bool = False
    communication_type: CommunicationType = CommunicationType.empty

    @classmethod
    def names(cls) -> frozenset[str]:
        """Return the names of all settings."""
        return frozenset(field.name for field in dataclasses.fields(cls))

    def has_weights(self) -> bool:
        """Return whether any weight is set."""
        return any(
            getattr(self, name) is not None
            for name in self.names() - {"enable_topo_check", "communication_type"}
        )
