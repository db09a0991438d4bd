"""Batch normalization with the statistics of all ranks' batches."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from bluecomm.nn.joint_moments import Moments, joint_moments
from bluecomm.ops.refusal import refusing
from bluecomm.runtime import Communicator, current_communicator

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(_BatchNorm):
    """``BatchNorm`` over the joined batch of all ranks.

    In training mode, with the mean ``m`` and variance ``v`` over dimension 0, the
    dimensions behind the channel, and all ranks::

        y = (x - m) / sqrt(v + eps) * weight + bias

    Outputs, gradients of inputs and running statistics equal those of
    ``torch.nn.BatchNorm1d``, ``2d`` and ``3d`` on one process with all ranks' batches.
    The gradients of ``weight`` and ``bias`` are this rank's contributions to theirs; a
    distributed optimizer averages them. In evaluation mode nothing is communicated.

    The ranks' batches may differ in size, but all ranks run the same number of forward
    and backward passes: a rank without data passes an empty batch, and uses
    ``output.sum()`` as its loss. Values of 16 bits are accumulated in float32.

    Args:
        num_features: Number of channels ``C`` of inputs of shape ``(N, C, ...)``.
        eps: Number that is added to the variance.
        momentum: Weight of a batch in the running statistics. ``None`` stands for the
            average over all batches.
        affine: Whether the module has ``weight`` and ``bias``.
        track_running_stats: Whether the module has running statistics.
        process_set: Ranks whose batches are joined. Default: all.
        device: Device of the parameters.
        dtype: Type of the parameters.

    Raises:
        ValueError: The input does not have ``num_features`` channels, or the joined
            batch has fewer than two values per channel.

    Source:
        Ioffe, Szegedy, "Batch Normalization", ICML 2015, arXiv:1502.03167.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: Communicator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype
        )
        self.process_set = process_set

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the normalized input."""
        if not self.training:
            self._check_input_dim(input)
            return super().forward(input)
        comm = current_communicator(self.process_set)
        with refusing(comm, "allgather", None, ("allgather", "")):
            self._check_input_dim(input)
        is_short = input.dtype in (torch.float16, torch.bfloat16)
        batch = input.float() if is_short else input
        moments = joint_moments(comm, batch)
        if moments.values < 2:
            raise ValueError(
                "SyncBatchNorm: expected more than one value per channel in the joined "
                f"batch when training, got {moments.values} (input of shape "
                f"{tuple(input.shape)} on rank {comm.world.rank})"
            )
        if self.track_running_stats:
            self._track(moments)
        return self._normalized(batch, moments).to(input.dtype)

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2 or input.shape[1] != self.num_features:
            raise ValueError(
                f"SyncBatchNorm: expected an input of shape (N, {self.num_features}, "
                f"...), got {tuple(input.shape)}"
            )

    @torch.no_grad()
    def _track(self, moments: Moments) -> None:
        """Add a batch to the running statistics."""
        mean, variance, count = self.running_mean, self.running_var, moments.values
        batches = self.num_batches_tracked
        assert mean is not None
        assert variance is not None
        assert batches is not None
        batches.add_(1)
        weight = 1 / int(batches) if self.momentum is None else self.momentum
        unbiased = moments.variance * (count / (count - 1))
        mean.lerp_(moments.mean.to(mean.dtype), weight)
        variance.lerp_(unbiased.to(variance.dtype), weight)

    def _normalized(self, batch: torch.Tensor, moments: Moments) -> torch.Tensor:
        shape = (1, -1, *(1,) * (batch.dim() - 2))
        scale = (moments.variance + self.eps).rsqrt()
        if self.affine:
            scale = scale * self.weight.to(scale.dtype)
        output = (batch - moments.mean.view(shape)) * scale.view(shape)
        if self.affine:
            output = output + self.bias.to(scale.dtype).view(shape)
        return output

    @classmethod
    def convert_sync_batchnorm(
        cls, module: nn.Module, process_set: Communicator | None = None
    ) -> nn.Module:
        """Return the module with ``SyncBatchNorm`` in place of each ``BatchNorm``.

        The new modules have the parameters and buffers of the old ones, so an optimizer
        may exist already. Other modules are changed in place.

        Args:
            module: A module, which may be a ``BatchNorm`` itself.
            process_set: Ranks whose batches are joined. Default: all.

        Raises:
            ValueError: A lazy ``BatchNorm`` has not seen an input yet.
        """
        converted: dict[nn.Module, nn.Module] = {}

        def convert(one: nn.Module) -> nn.Module:
            if one not in converted:
                converted[one] = one
                if isinstance(one, _BatchNorm) and not isinstance(one, cls):
                    converted[one] = cls._like(one, process_set)
                for name, child in one._modules.items():
                    if child is not None:
                        converted[one]._modules[name] = convert(child)
            return converted[one]

        return convert(module)

    @classmethod
    def _like(
        cls, module: _BatchNorm, process_set: Communicator | None
    ) -> SyncBatchNorm:
        """Return a module with the parameters and buffers of a ``BatchNorm``."""
        tensors = {**module._parameters, **module._buffers}
        if any(is_lazy(tensor) for tensor in tensors.values() if tensor is not None):
            raise ValueError(
                "convert_sync_batchnorm: a lazy BatchNorm does not know its number of "
                "features yet; run a forward pass first"
            )
        sync = cls(
            module.num_features,
            module.eps,
            module.momentum,
            module.affine,
            module.track_running_stats,
            process_set,
            device="meta",
        )
        sync._parameters.update(module._parameters)
        sync._buffers.update(module._buffers)
        sync.training = module.training
        return sync
