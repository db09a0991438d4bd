"""DeMo: the largest coefficients of the ranks' momentum, in each step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from bluecomm.ops.allgather import allgather_nonblocking
from bluecomm.optim.algorithm import MOMENTUM_GROWS_OLD, no_join, wait_for
from bluecomm.optim.algorithms.gradient_averaging import GradientAveraging
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.buckets.flat import flat_empty
from bluecomm.optim.buckets.slots import Slot
from bluecomm.optim.dct_chunks import DctChunks
from bluecomm.optim.failures import Failures
from bluecomm.optim.gradient_states import GradientStates
from bluecomm.optim.registry import register_algorithm
from bluecomm.runtime import Communicator, Handle

# The largest chunk whose positions fit into 16 bits.
_LARGEST = 128
_VALUE_NBYTES, _POSITION_NBYTES = 4, 2
# The length of a message is a multiple of this number.
_ALIGNMENT_NBYTES = 32


@register_algorithm("demo")
class DeMo(GradientAveraging):
    """DeMo: sign descent on the largest DCT coefficients of a local momentum.

    The optimizer is ``torch.optim.SGD`` without momentum, with rate ``lr`` and weight
    decay ``wd``. Rank ``i`` has a momentum ``d_i`` of its own, 0 at first. A step is:

        d_i <- decay * d_i + lr * g_i(x)
        c_i  = the k largest coefficients of each chunk of DCT(d_i)
        d_i <- d_i - IDCT(c_i)
        x   <- (1 - lr * wd) * x - lr * sign(IDCT(mean_i c_i))

    The mean of a coefficient is over the ranks that have sent it. A step changes each
    parameter by ``lr``, so rates are those of sign descent or Adam. Gradients are
    clipped before they enter ``d_i``. ``DctChunks`` describes chunks.

    All ranks must start equal. They stay equal bit for bit if their processors and
    versions of torch multiply matrices alike; otherwise signs of coefficients near 0
    may differ. The method is the same in a world of one.

    Args:
        k: Number of coefficients of each chunk to send, or all if a chunk has fewer.
        chunk: Largest number of rows and of columns of a chunk, from 1 to 128.
        decay: Factor of ``d_i``, from 0 to less than 1.

    Raises:
        ValueError: An option is out of its range.

    Source:
        Peng, Quesnelle and Kingma, "DeMo: Decoupled Momentum Optimization", 2024,
        arXiv:2411.19870, and its public implementation.
    """

    works_on_devices = True
    honours = frozenset(
        {
            "backward_passes_per_step",
            "num_steps_per_communication",
            "sparse_as_dense",
        }
    )

    def __init__(self, *, k: int = 32, chunk: int = 64, decay: float = 0.999) -> None:
        if not 1 <= chunk <= _LARGEST:
            raise ValueError(f"demo: chunk must be from 1 to {_LARGEST}, got {chunk}")
        if not 1 <= k <= chunk * chunk:
            raise ValueError(
                f"demo: k must be from 1 to {chunk * chunk}, the number of "
                f"coefficients of a chunk, got {k}"
            )
        if not 0 <= decay < 1:
            raise ValueError(
                f"demo: decay must be at least 0 and less than 1, got {decay}"
            )
        super().__init__()
        self._k, self._chunk, self._decay = k, chunk, decay
        self._optimizer: torch.optim.Optimizer
        self._states: GradientStates
        self._spectra: dict[Bucket, _Spectrum] = {}
        # The momentum of each parameter, by its name.
        self._momentum: dict[str, torch.Tensor] = {}

    @classmethod
    def needed_optimizer(
        cls, parameters: Any, lr: float, warmup_steps: int
    ) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr)

    @classmethod
    def memory_in_models(cls, ranks: int, neighbors: int) -> int:
        return super().memory_in_models(ranks, neighbors) + 1  # the momentum

    def check_optimizer(
        self, optimizer: torch.optim.Optimizer, comm: Communicator
    ) -> None:
        """Refuse all optimizers but SGD without momentum.

        Raises:
            TypeError: The optimizer is of another class.
            ValueError: It has a momentum, or ``fused=True``.
        """
        if not isinstance(optimizer, torch.optim.SGD):
            raise TypeError(
                "DistributedOptimizer: demo needs the optimizer torch.optim.SGD, got "
                f"{type(optimizer).__name__}; use SGD(model.parameters(), lr=...), "
                "with a rate that suits Adam"
            )
        for group in optimizer.param_groups:
            if group["momentum"]:
                raise ValueError(
                    "DistributedOptimizer: demo has a momentum of its own, and SGD has "
                    f"momentum={group['momentum']}; make it with momentum=0"
                )
            if group.get("fused"):
                raise ValueError(
                    "DistributedOptimizer: demo changes gradients inside the step, "
                    "where SGD with fused=True would scale them once more; make it "
                    "with fused=False"
                )
        self._optimizer = optimizer

    def setup(self, buckets: Sequence[Bucket]) -> None:
        super().setup(buckets)
        self._states = GradientStates(self.context, "demo")
        self._states.check_layers(buckets)
        as_dense = self.context.options.sparse_as_dense
        for bucket in buckets:
            bucket.lay_out_gradients(sparse=None if as_dense else ())
            for slot in bucket.slots:
                if slot.name not in self._momentum:
                    zeros = slot.parameter.new_zeros(slot.shape, dtype=torch.float32)
                    self._momentum[slot.name] = zeros
        self._spectra = {
            bucket: _Spectrum(bucket, self.context.comm, self._k, self._chunk)
            for bucket in buckets
        }

    def start(self, bucket: Bucket, *, is_active: bool) -> None:
        self._states.start(bucket, f"{bucket.name}.states")

    def finish(self, *, is_active: bool) -> bool:
        self._states.finish()
        return True

    def before_update(self) -> None:
        super().before_update()
        self._states.refuse_not_finite()
        rates = {
            parameter: float(group["lr"])
            for group in self._optimizer.param_groups
            for parameter in group["params"]
        }
        with torch.no_grad():
            for spectrum in self._spectra.values():
                for slot in spectrum.slots():
                    momentum = self._momentum[slot.name].mul_(self._decay)
                    gradient = slot.parameter.grad
                    if gradient is not None:
                        momentum.add_(gradient, alpha=rates[slot.parameter])
                spectrum.start(self._momentum)
            failures = Failures()
            for spectrum in self._spectra.values():
                with failures.kept():
                    spectrum.finish()
        failures.raise_first()

    def joins_in_engine(self) -> bool:
        return False

    def obstacle_to_join(self) -> str:
        return no_join(MOMENTUM_GROWS_OLD)

    def state_dict(self) -> dict[str, Any]:
        momentum = {name: one.clone() for name, one in self._momentum.items()}
        return {"momentum": momentum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        kept: Mapping[str, torch.Tensor] = state.get("momentum", {})
        for name, one in self._momentum.items():
            if not kept:
                one.zero_()
            elif name in kept:
                one.copy_(kept[name])
            else:
                raise ValueError(
                    f"demo: the state has no momentum of the parameter {name!r}, only "
                    f"of {sorted(kept)}; load a checkpoint of the same model"
                )


class _Spectrum:
    """The exchange of the coefficients of one bucket's parameters.

    A message has the values of all parameters, float32, and then the positions in their
    chunks, 16 bits each. Parameters without a gradient on any rank leave their part as
    it is, and no rank reads it.
    """

    def __init__(self, bucket: Bucket, comm: Communicator, k: int, chunk: int) -> None:
        self._bucket = bucket
        self._comm = comm
        self._chunks = [
            DctChunks(slot.shape, chunk, bucket.staging) for slot in bucket.slots
        ]
        self._shapes = [
            (chunks.chunks, min(k, chunks.numel)) for chunks in self._chunks
        ]
        self._count = sum(chunks * kept for chunks, kept in self._shapes)
        nbytes = self._count * (_VALUE_NBYTES + _POSITION_NBYTES)
        # At least one, also if no parameter has elements.
        nbytes = (nbytes // _ALIGNMENT_NBYTES + 1) * _ALIGNMENT_NBYTES
        self._sent = flat_empty(nbytes, torch.uint8, bucket.staging).zero_()
        received = comm.size * nbytes
        self._received = flat_empty(received, torch.uint8, bucket.staging)
        self._handle: Handle[torch.Tensor] | None = None

    def slots(self) -> Iterator[Slot]:
        """Yield the parameters that have a gradient on some rank."""
        for slot, flag in zip(
            self._bucket.slots, self._bucket.gradients.flags.tolist(), strict=True
        ):
            if flag > 0:
                yield slot

    def start(self, momentum: Mapping[str, torch.Tensor]) -> None:
        """Take the largest coefficients out of the momentum, and send them."""
        active = {slot.name for slot in self.slots()}
        for slot, chunks, values, positions in self._parts(self._sent):
            if slot.name in active:
                own = momentum[slot.name]
                found = chunks.encode(own)
                kept = positions.shape[1]
                where = found.abs().topk(kept, dim=1, sorted=False).indices
                values.copy_(found.gather(1, where))
                positions.copy_(where)
                own -= chunks.decode(torch.zeros_like(found).scatter_(1, where, values))
        self._handle = allgather_nonblocking(
            self._sent,
            f"{self._bucket.name}.coefficients",
            process_set=self._comm,
            out=self._received,
        )

    def finish(self) -> None:
        """Wait for the coefficients of all ranks; make the signs the gradients."""
        handle, self._handle = self._handle, None
        assert handle is not None
        wait_for(handle)
        active = {slot.name for slot in self.slots()}
        messages = self._received.view(self._comm.size, -1)
        of_ranks = (self._parts(message) for message in messages)
        for parts in zip(*of_ranks, strict=True):
            slot, chunks = parts[0][:2]
            if slot.name not in active:
                continue
            shape = (2, chunks.chunks, chunks.numel)
            total, senders = parts[0][2].new_zeros(shape)
            for _, _, values, positions in parts:
                where = positions.long()
                total.scatter_add_(1, where, values)
                senders.scatter_add_(1, where, torch.ones_like(values))
            signs = chunks.decode(total / senders.clamp_(min=1)).sign_()
            slot.parameter.grad = signs.to(slot.parameter.dtype)

    def _parts(
        self, message: torch.Tensor
    ) -> Iterator[tuple[Slot, DctChunks, torch.Tensor, torch.Tensor]]:
        """Yield each parameter, its chunks, and views of its part of a message."""
        nbytes = _VALUE_NBYTES * self._count
        values = message[:nbytes].view(torch.float32)
        positions = message[nbytes:].view(torch.int16)
        at = 0
        for slot, chunks, shape in zip(
            self._bucket.slots, self._chunks, self._shapes, strict=True
        ):
            end = at + shape[0] * shape[1]
            yield (
                slot,
                chunks,
                values[at:end].view(shape),
                positions[at:end].view(shape),
            )
            at = end
