"""Buckets: parameters of one dtype and device that are sent together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import torch

from bluecomm.device.staging import Staging
from bluecomm.device.staging_table import staging_of
from bluecomm.optim.buckets.flat import flat_empty
from bluecomm.optim.buckets.gradient_views import GradientViews
from bluecomm.optim.buckets.parameter_views import ParameterViews
from bluecomm.optim.buckets.slots import Slot

# The first bucket is small, so that the first message leaves early. The next ones grow,
# so that the network always has something to send.
FIRST_BUCKET_NBYTES = 1 << 20


class Bucket:
    """Some parameters of one dtype on one device, which are sent as one tensor.

    Attributes:
        name: Name of the bucket's operations, equal on all ranks.
        slots: The parameters and their offsets.
        dtype: Element type of the parameters.
        staging: Copies from their device to the host; ``None`` if they are on the host.
        numel: Number of elements, padding included.
        parameters: Flat values, if the algorithm has ``flat_parameters``.
        gradients: Flat gradients, if the algorithm has ``flat_gradients``.
    """

    def __init__(self, name: str, slots: Sequence[Slot], numel: int) -> None:
        self.name = name
        self.slots = tuple(slots)
        self.dtype = self.slots[0].parameter.dtype
        self.staging = staging_of(self.slots[0].parameter)
        self.numel = numel
        self._parameters: ParameterViews | None = None
        self._gradients: GradientViews | None = None

    @property
    def parameters(self) -> ParameterViews:
        """Flat values; only for algorithms with ``flat_parameters``."""
        assert self._parameters is not None
        return self._parameters

    @property
    def gradients(self) -> GradientViews:
        """Flat gradients; only for algorithms with ``flat_gradients``."""
        assert self._gradients is not None
        return self._gradients

    def empty(self, tensors: int = 1, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return uninitialized flat memory where the parameters are.

        Args:
            tensors: Number of tensors of the bucket's size that follow one another.
            dtype: Element type. Default: that of the parameters.
        """
        return flat_empty(tensors * self.numel, dtype or self.dtype, self.staging)

    def lay_out_parameters(self, halves: int = 2) -> None:
        """Move the values into flat memory and make ``p.data`` views of it."""
        flats = [self.empty().zero_() for _ in range(halves)]
        self._parameters = ParameterViews(self.slots, flats)

    def lay_out_gradients(
        self, counters: int = 0, sparse: Iterable[int] | None = None, halves: int = 1
    ) -> None:
        """Allocate flat memory for gradients.

        Args:
            counters: Number of counters behind the flags.
            sparse: Positions of the parameters whose gradients are sparse, which take
                no flat memory; ``None`` to make sparse gradients dense.
            halves: 2 to have memory for a result beside that of the gradients.
        """
        self._gradients = GradientViews(
            self.slots, counters, sparse, halves, self.staging
        )

    def __repr__(self) -> str:
        return f"<Bucket {self.name!r}: {len(self.slots)} parameters, {self.dtype}>"


def build_buckets(
    named: Sequence[tuple[str, torch.Tensor]],
    *,
    prefix: str,
    bucket_nbytes: int,
    group_of: Mapping[int, int] | None = None,
) -> list[Bucket]:
    """Return buckets for parameters, in the order in which gradients become ready.

    That is the reverse of the order of ``named``. A bucket has parameters of one dtype
    and one device. A bucket is closed when the next
    parameter would exceed its limit: 1 MiB for the first bucket, then 2, 4, ... MiB up
    to ``bucket_nbytes``. A parameter above the limit has a bucket of its own. Each
    group given by the user is one bucket, however large.

    Args:
        named: Names and parameters, each once, the same on all ranks.
        prefix: Bucket ``k`` is named ``<prefix>.<k>``.
        bucket_nbytes: The largest limit in bytes.
        group_of: Maps the ``id`` of a parameter to the number of its group.

    Returns:
        New buckets without memory.
    """
    limit = min(FIRST_BUCKET_NBYTES, bucket_nbytes)
    open_buckets: dict[tuple[torch.dtype, Staging | None, int | None], _Plan] = {}
    plans: list[_Plan] = []
    for name, parameter in reversed(named):
        group = (group_of or {}).get(id(parameter))
        kind = (parameter.dtype, staging_of(parameter), group)
        plan = open_buckets.get(kind)
        nbytes = parameter.numel() * parameter.element_size()
        if plan is None or (group is None and plan.nbytes + nbytes > limit):
            if plan is not None:
                limit = min(2 * limit, bucket_nbytes)
            plan = open_buckets[kind] = _Plan()
            plans.append(plan)
        plan.add(name, parameter)
    return [
        Bucket(f"{prefix}.{number}", plan.slots, plan.numel)
        for number, plan in enumerate(plans)
    ]


@dataclasses.dataclass
class _Plan:
    """A bucket that is being filled."""

    slots: list[Slot] = dataclasses.field(default_factory=list)
    numel: int = 0
    nbytes: int = 0

    def add(self, name: str, parameter: torch.Tensor) -> None:
        self.slots.append(Slot.of(name, parameter, self.numel))
        self.numel = self.slots[-1].end
        self.nbytes = self.numel * parameter.element_size()
