"""Compression of tensors that are sent between ranks.

``Compression`` has Horovod's casts to a shorter type. Codecs turn flat tensors into
bytes.
"""

from bluecomm.compression.adapted import codec_of
from bluecomm.compression.cast import Compression, Compressor, check_compressor
from bluecomm.compression.chunked_top_k import ChunkedTopK
from bluecomm.compression.codec import Codec
from bluecomm.compression.e3m0 import E3M0
from bluecomm.compression.error_feedback import ErrorFeedback
from bluecomm.compression.half_cast import HalfCast
from bluecomm.compression.min_max_uint8 import MinMaxUInt8
from bluecomm.compression.quantized_top_k import QuantizedTopK
from bluecomm.compression.random_k import RandomK
from bluecomm.compression.scaled_sign import ScaledSign
from bluecomm.compression.top_k import TopK

__all__ = [
    "E3M0",
    "ChunkedTopK",
    "Codec",
    "Compression",
    "Compressor",
    "ErrorFeedback",
    "HalfCast",
    "MinMaxUInt8",
    "QuantizedTopK",
    "RandomK",
    "ScaledSign",
    "TopK",
    "check_compressor",
    "codec_of",
]
