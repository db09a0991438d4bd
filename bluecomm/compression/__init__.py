"""Compression of tensors on their way between ranks, by casting to a shorter type."""

from bluecomm.compression.cast import Compression, Compressor

__all__ = ["Compression", "Compressor"]
