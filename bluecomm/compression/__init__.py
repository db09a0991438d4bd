"""Compression of tensors that are sent between ranks, by casts to a shorter type."""

from bluecomm.compression.cast import Compression, Compressor, check_compressor

__all__ = ["Compression", "Compressor", "check_compressor"]
