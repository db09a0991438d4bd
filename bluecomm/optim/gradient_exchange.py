"""One exchange of a bucket's flat gradients by allreduce: on the host, or through NCCL.

docs/optimizer.md describes the states of a bucket on a device.
"""

from __future__ import annotations

import abc

import torch

from bluecomm.ops.allreduce import allreduce_parts_nonblocking
from bluecomm.optim.algorithm import Context
from bluecomm.optim.buckets.gradient_message import message_of
from bluecomm.optim.buckets.gradient_views import GradientViews
from bluecomm.optim.split_allreduce import SplitAllreduce, splits_allreduce
from bluecomm.runtime import Handle


class GradientExchange(abc.ABC):
    """An exchange that has been started.

    Wait for ``handle`` and pass its result to ``take``, or ``abandon`` the exchange.

    Attributes:
        handle: Handle of the result.
    """

    handle: Handle[torch.Tensor]

    @abc.abstractmethod
    def take(self, result: torch.Tensor) -> None:
        """Make the result the gradients and the tail.

        Raises:
            BluecommError: A part of the exchange failed.
        """

    @abc.abstractmethod
    def abandon(self) -> None:
        """End what still runs, because the wait has failed."""


class HostExchange(GradientExchange):
    """An exchange of one message of the host: the gradients, then the tail.

    Args:
        context: The optimizer.
        gradients: Gradients that ``GradientViews.fill`` has collected.
        name: Name of the operation.
        keeps_input: Whether the exchange may have to be repeated.
    """

    def __init__(
        self,
        context: Context,
        gradients: GradientViews,
        name: str,
        *,
        keeps_input: bool,
    ) -> None:
        options = context.options
        self._message = message_of(
            gradients, options.compression, keeps_input=keeps_input
        )
        self.handle = allreduce_parts_nonblocking(
            self._message.sent.values,
            gradients.lengths,
            op=options.op,
            divisor=options.gradient_predivide_factor,
            name=name,
            process_set=context.comm,
            output=self._message.output,
            algorithm=options.allreduce_algorithm,
            gate=self._message.sent.gate,
        )

    def take(self, result: torch.Tensor) -> None:
        self._message.take(result)

    def abandon(self) -> None:
        pass


class SplitExchange(GradientExchange):
    """An exchange of the gradients through NCCL, and of the tail on the host.

    A compressor works on the device. The current stream waits for all streams that have
    written gradients.

    Args:
        context: The optimizer.
        gradients: As in ``HostExchange``, on a device.
        name: Name of the operation on the gradients.
    """

    def __init__(self, context: Context, gradients: GradientViews, name: str) -> None:
        options = context.options
        self._gradients, self._compression = gradients, options.compression
        gradients.follow_streams()
        values, self._kept = options.compression.compress(gradients.values)
        self._both = SplitAllreduce(
            context.comm,
            values,
            gradients.tail,
            op=options.op,
            lengths=gradients.lengths,
            divisor=options.gradient_predivide_factor,
            name=name,
        )
        self.handle = self._both.values

    def take(self, result: torch.Tensor) -> None:
        self._both.wait_for_tail()
        values, staging = self._gradients.values, self._gradients.staging
        if result is values:
            return
        with torch.no_grad():
            values.copy_(self._compression.decompress(result, self._kept))
        assert staging is not None
        staging.keep_for_stream(result)  # the stream of the hook has allocated it

    def abandon(self) -> None:
        self._both.abandon()


def start_exchange(
    context: Context, gradients: GradientViews, name: str, *, keeps_input: bool
) -> GradientExchange:
    """Start an exchange of gradients that ``GradientViews.fill`` has collected.

    Args:
        context: The optimizer.
        gradients: The gradients.
        name: Name of its first operation.
        keeps_input: Whether the exchange may have to be repeated.
    """
    if is_split(context, gradients):
        return SplitExchange(context, gradients, name)
    return HostExchange(context, gradients, name, keeps_input=keeps_input)


def is_split(context: Context, gradients: GradientViews) -> bool:
    """Return whether ``start_exchange`` uses NCCL; see ``splits_allreduce``."""
    return splits_allreduce(
        context.comm,
        gradients.staging,
        gradients.values.dtype,
        context.options.op,
    )
