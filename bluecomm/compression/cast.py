"""Compression by casts to a shorter type, with Horovod's names."""

from __future__ import annotations

import abc

import torch


class Compressor(abc.ABC):
    """Makes a tensor shorter before it is sent, and restores it afterwards."""

    @staticmethod
    @abc.abstractmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype | None]:
        """Return the tensor to send, and the context that ``decompress`` needs."""

    @staticmethod
    @abc.abstractmethod
    def decompress(tensor: torch.Tensor, context: torch.dtype | None) -> torch.Tensor:
        """Return the received tensor in its original type."""


class NoneCompressor(Compressor):
    """Sends tensors unchanged."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype | None]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: torch.dtype | None) -> torch.Tensor:
        return tensor


class FP16Compressor(Compressor):
    """Sends float32 and float64 tensors as float16, and other tensors unchanged."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype | None]:
        if tensor.dtype in (torch.float32, torch.float64):
            return tensor.to(torch.float16), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: torch.dtype | None) -> torch.Tensor:
        return tensor if context is None else tensor.to(context)


class Compression:
    """The compressors by name: ``Compression.none`` and ``Compression.fp16``."""

    none = NoneCompressor
    fp16 = FP16Compressor


def check_compressor(compression: object) -> type[Compressor]:
    """Return ``compression`` if it is a compressor's class.

    Raises:
        TypeError: ``compression`` is something else.
    """
    if isinstance(compression, type) and issubclass(compression, Compressor):
        return compression
    raise TypeError(
        "compression must be bluecomm.Compression.none, .fp16 or a subclass of "
        f"bluecomm.compression.Compressor, got {compression!r}"
    )
