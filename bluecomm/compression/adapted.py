"""Codecs for the compressors of Horovod."""

from __future__ import annotations

import torch

from bluecomm.compression.cast import Compression, Compressor
from bluecomm.compression.codec import Codec
from bluecomm.compression.half_cast import HalfCast


def codec_of(given: Codec | type[Compressor]) -> Codec:
    """Return a codec itself, or the codec of one of Horovod's compressors.

    Args:
        given: A codec; or ``Compression.fp16``, whose codec is ``HalfCast``. Both round
            float32 to the same float16; ``HalfCast`` decodes infinities as NaN.

    Raises:
        TypeError: ``given`` is neither.
    """
    if isinstance(given, Codec):
        return given
    if given is Compression.fp16:
        return HalfCast(torch.float16)
    raise TypeError(
        "codec must be a codec, such as bluecomm.compression.MinMaxUInt8(), or "
        f"bluecomm.Compression.fp16, got {given!r}; values that are sent as they are "
        "need no codec: use allreduce"
    )
