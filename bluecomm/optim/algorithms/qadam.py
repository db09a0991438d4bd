"""Averaging of Adam's momentum, sent as one byte per value, as in Bagua."""

from __future__ import annotations

from bluecomm.compression import MinMaxUInt8
from bluecomm.optim.algorithms.momentum_averaging import MomentumAveraging
from bluecomm.optim.registry import register_algorithm


@register_algorithm("qadam")
class QAdamAveraging(MomentumAveraging):
    """Adam whose momentum is averaged in 8 bits once its second moment is frozen.

    The optimizer is ``bluecomm.optim.QAdam``. In its warm-up gradients are averaged
    exactly, and the ranks step as with ``torch.optim.Adam``. Afterwards::

        m <- Q(mean_j Q(beta1 m + (1 - beta1) g_j(x)))

    and the optimizer steps with ``m``, which has the same bits on all ranks. ``Q``
    rounds as ``MinMaxUInt8`` does, in chunks of 65536 values or less. Rounding errors
    are not carried over to later steps.

    Args:
        hierarchical: As in ``bytegrad``, for the momentum.

    Source:
        Gan et al., "BAGUA: Scaling up Distributed Learning with System Relaxations",
        VLDB 2021, arXiv:2107.01499. Tang et al., "1-bit Adam", ICML 2021,
        arXiv:2102.02888.
    """

    works_on_devices = True
    codec_class = MinMaxUInt8
