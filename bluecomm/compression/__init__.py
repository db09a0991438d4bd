"""Compression of tensors on their way between ranks, by casting to a shorter type."""

from bluecomm.compression.cast import Compression, Compressor, check_compressor

__all__ = ["Compression", "Compressor", "check_compressor"]
