"""The interface of codecs: flat tensors in, a known number of bytes out."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import NamedTuple

import torch


class Pieces(NamedTuple):
    """Where the codes of several pieces lie in flat memory.

    Attributes:
        share: Number of values of a piece, at least 1; the last one has what is left.
        stride: Bytes from the beginning of a piece to that of the next one.
        offset: Bytes before the code of each piece.
    """

    share: int
    stride: int
    offset: int = 0


class Codec(abc.ABC):
    """Encodes the values of a flat tensor in fewer bytes, and decodes them.

    The number of bytes depends only on the number of values and their type, so ranks
    need not tell each other how much they send. Values with equal bits give
    equal bytes, and equal bytes give equal values, on all ranks. A codec has no state.

    Attributes:
        name: Its name, as in a message.
        dtypes: The types of values that it encodes.
        devices: The types of devices whose tensors it takes, ``"cpu"`` and perhaps
            ``"cuda"``.
    """

    name: str
    dtypes: tuple[torch.dtype, ...]
    devices: tuple[str, ...] = ("cpu",)

    @abc.abstractmethod
    def encoded_nbytes(self, count: int, dtype: torch.dtype) -> int:
        """Return the number of bytes that ``count`` values of a type need."""

    def at_round(self, number: int) -> Codec:
        """Return the codec for a round; most are the same in all rounds."""
        return self

    @abc.abstractmethod
    def encode(self, values: torch.Tensor, into: torch.Tensor) -> bool:
        """Encode the values of a contiguous flat tensor.

        Args:
            values: The values; shape ``(count,)``. No other thread may change them
                meanwhile.
            into: Where the bytes go; shape ``(encoded_nbytes(count, dtype),)``,
                ``torch.uint8``.

        Returns:
            Whether all values can be decoded. If not, some are infinite, not a number
            or too large, and all ranks decode these and perhaps others as NaN; the
            class says which.

        Raises:
            TypeError: The codec does not encode this type.
            ValueError: A tensor has another shape, is not contiguous, or is on a device
                that the codec or the other tensor does not have.
        """

    def start_encode(self, values: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
        """Encode values, and do not wait for a GPU if the codec can do without.

        Args:
            values: As for ``encode``.
            into: As for ``encode``.

        Returns:
            What ``encode`` returns, on the device of the values; shape ``()``,
            ``torch.bool``.

        Raises:
            TypeError: As ``encode`` does.
            ValueError: As ``encode`` does.
        """
        return values.new_full((), self.encode(values, into), dtype=torch.bool)

    @abc.abstractmethod
    def decode(self, encoded: torch.Tensor, into: torch.Tensor) -> None:
        """Decode what ``encode`` has written.

        Args:
            encoded: The bytes; shape ``(encoded_nbytes(count, dtype),)``.
            into: Where the values go; shape ``(count,)``, of the type that was
                encoded.

        Raises:
            TypeError: The codec does not encode this type.
            ValueError: A tensor has another shape, is not contiguous, or is on a device
                that the codec or the other tensor does not have; or the codec finds
                that the bytes are damaged, in which case the contents of ``into`` are
                undefined.
        """

    def start_decode(self, encoded: torch.Tensor, into: torch.Tensor) -> None:
        """Decode as ``decode`` does, and do not wait for a GPU if that is possible.

        If the bytes are damaged, there may be no error, and the contents of ``into``
        are undefined.
        """
        self.decode(encoded, into)

    def add(
        self, encoded: torch.Tensor, into: torch.Tensor, alpha: float = 1.0
    ) -> None:
        """Add what ``encode`` has written, times ``alpha``, to values.

        On a GPU damaged bytes may be no error; see ``start_decode``.

        Args:
            encoded: The bytes; shape ``(encoded_nbytes(count, dtype),)``.
            into: The values to add to; shape ``(count,)``, of the type that was
                encoded.
            alpha: Factor of what is decoded.

        Raises:
            TypeError: As ``decode`` does.
            ValueError: As ``decode`` does.
        """
        decoded = torch.empty_like(into)
        self.start_decode(encoded, decoded)
        into.detach().add_(decoded, alpha=alpha)

    def add_mean(
        self, encoded: torch.Tensor, into: torch.Tensor, alpha: float = 1.0
    ) -> None:
        """Add the mean of several codes, times ``alpha``, to values.

        The sum of the codes is formed in order of the rows, from 0, in the type of the
        values.

        Args:
            encoded: The bytes of each code in a row; shape
                ``(codes, encoded_nbytes(count, dtype))``, with at least one row, each
                of them contiguous.
            into: As for ``add``.
            alpha: Factor of the mean.

        Raises:
            TypeError: As ``decode`` does.
            ValueError: As ``decode`` does.
        """
        total = torch.zeros_like(into)
        for one in encoded:
            self.add(one, total)
        into.detach().add_(_divided(total, len(encoded)).mul_(alpha))

    def encode_pieces(
        self, values: torch.Tensor, into: torch.Tensor, layout: Pieces
    ) -> bool:
        """Encode the pieces of values one by one; see ``encode``.

        Codecs may do it in one call, which takes less time.

        Args:
            values: The values of all pieces; shape ``(count,)``.
            into: Where the bytes go.
            layout: The pieces.
        """
        return bool(self.start_encode_pieces(values, into, layout))

    def start_encode_pieces(
        self, values: torch.Tensor, into: torch.Tensor, layout: Pieces
    ) -> torch.Tensor:
        """Encode pieces as ``start_encode`` does, and return what it returns."""
        well = values.new_ones((), dtype=torch.bool)
        for piece, code in self._pieces(values, into, layout):
            well &= self.start_encode(piece, code)
        return well

    def decode_pieces(
        self, encoded: torch.Tensor, into: torch.Tensor, layout: Pieces
    ) -> None:
        """Decode what ``encode_pieces`` has written; see ``start_decode``."""
        for piece, code in self._pieces(into, encoded, layout):
            self.start_decode(code, piece)

    def combine(
        self,
        encoded: torch.Tensor,
        count: int,
        divisor: int,
        into: torch.Tensor,
        layout: Pieces,
    ) -> bool:
        """Encode the sum of several codes, divided by a number; see ``sum_of``.

        Args:
            encoded: As for ``sum_of``.
            count: As for ``sum_of``.
            divisor: As for ``sum_of``.
            into: Where the bytes go; shape
                ``(encoded_nbytes(count, torch.float32),)``.
            layout: As for ``sum_of``.

        Returns:
            What ``encode`` returns.
        """
        return bool(self.start_combine(encoded, count, divisor, into, layout))

    def start_combine(
        self,
        encoded: torch.Tensor,
        count: int,
        divisor: int,
        into: torch.Tensor,
        layout: Pieces,
    ) -> torch.Tensor:
        """Do what ``combine`` does, and return what ``start_encode`` returns."""
        return self.start_encode(self.sum_of(encoded, count, divisor, layout), into)

    def sum_of(
        self, encoded: torch.Tensor, count: int, divisor: int, layout: Pieces
    ) -> torch.Tensor:
        """Return the sum of several codes, divided by a number.

        The sum is formed in float32, in the order of the codes. Damaged bytes are
        treated as in ``start_decode``.

        Args:
            encoded: The codes of ``count`` values each, one per stride of the layout.
            count: Number of values, at least 1.
            divisor: Number by which the sum is divided.
            layout: Where the codes lie.
        """
        total = encoded.new_empty(count, dtype=torch.float32)
        nbytes = self.encoded_nbytes(count, torch.float32)
        for number, message in enumerate(encoded.view(-1, layout.stride)):
            code = message[layout.offset : layout.offset + nbytes]
            if number:
                self.add(code, total)
            else:
                self.start_decode(code, total)
        return total if divisor == 1 else _divided(total, divisor)

    def _pieces(
        self, values: torch.Tensor, codes: torch.Tensor, layout: Pieces
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Return the values and the code of each piece."""
        for number, piece in enumerate(torch.split(values, layout.share)):
            start = number * layout.stride + layout.offset
            nbytes = self.encoded_nbytes(piece.numel(), values.dtype)
            if piece.numel():
                yield piece, codes[start : start + nbytes]

    def __repr__(self) -> str:
        given = ", ".join(
            f"{name}={value!r}"
            for name, value in vars(self).items()
            if not name.startswith("_") and name != "name"
        )
        return f"{type(self).__name__}({given})"

    def _check(self, operation: str, values: torch.Tensor, data: torch.Tensor) -> None:
        if values.dtype not in self.dtypes:
            names = ", ".join(str(one).removeprefix("torch.") for one in self.dtypes)
            raise TypeError(
                f"{self.name}.{operation} takes values of type {names}, got "
                f"{values.dtype}; convert them first"
            )
        nbytes = self.encoded_nbytes(values.numel(), values.dtype)
        for what, tensor, dtype, count in (
            ("values", values, values.dtype, values.numel()),
            ("bytes", data, torch.uint8, nbytes),
        ):
            if tensor.dtype != dtype or tensor.shape != (count,):
                raise ValueError(
                    f"{self.name}.{operation} expects the {what} as a flat tensor of "
                    f"{count} x {dtype}, got {tuple(tensor.shape)} x {tensor.dtype}"
                )
            if not tensor.is_contiguous():
                raise ValueError(
                    f"{self.name}.{operation} expects contiguous {what}; call "
                    "contiguous() first"
                )
        for what, tensor in (("values", values), ("bytes", data)):
            if tensor.device.type not in self.devices:
                places = "CPUs and CUDA GPUs" if "cuda" in self.devices else "the CPU"
                raise ValueError(
                    f"{self.name}.{operation} works on {places} only, got {what} on "
                    f"{tensor.device}; call cpu() first"
                )
        if values.device != data.device:
            raise ValueError(
                f"{self.name}.{operation} expects values and bytes on one device, got "
                f"{values.device} and {data.device}; move one of them with to()"
            )


def _divided(total: torch.Tensor, divisor: int) -> torch.Tensor:
    """Divide a tensor in place, with the same bits on all devices; return it."""
    # On a GPU torch multiplies by the reciprocal of a number.
    return total.div_(total.new_full((), divisor))
