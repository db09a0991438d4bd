"""Error feedback: what a codec has lost of a tensor is added to the next one."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from bluecomm.compression.codec import Codec
from bluecomm.device.staging import Staging
from bluecomm.device.staging_table import staging_of
from bluecomm.device.values import values_beside

# Shape, type and device.
_Kind = tuple[torch.Size, torch.dtype, Staging | None]


class ErrorFeedback:
    """Keeps a residual for each tensor, and adds it before the tensor is encoded.

    With the residual ``r`` of a tensor, 0 at first, a call computes::

        e = x + decay * r
        r = e - decode(encode(e))

    So what a codec leaves out is sent later, and the sum of all that is decoded stays
    near the sum of all values (Seide et al. 2014; Karimireddy et al., arXiv 1901.09847,
    with ``decay`` 1; SparseLoCo, arXiv 2508.15706, with 0.95). It knows no optimizer
    and no operation: any tensor with a name will do, and each call may use another
    codec. Residuals are float32, or float64 for values of float64, and each rank has
    its own. Calls from several threads are not safe.

    Args:
        decay: Factor of the residual, from 0 to 1.

    Raises:
        ValueError: ``decay`` is out of its range.
    """

    def __init__(self, decay: float = 1.0) -> None:
        if not 0 <= decay <= 1:
            raise ValueError(f"ErrorFeedback: decay must be from 0 to 1, got {decay}")
        self.decay = decay
        self._residuals: dict[str, torch.Tensor] = {}
        # Memory for the next residual of a tensor. To allocate it anew each time would
        # take longer than to fill it.
        self._spare: dict[_Kind, torch.Tensor] = {}

    def encode(
        self, codec: Codec, name: str, values: torch.Tensor, into: torch.Tensor
    ) -> bool:
        """Encode values and what was lost of the same tensor before.

        Args:
            codec: Encodes and decodes the sum.
            name: Name of the tensor; it selects the residual.
            values: The values; shape ``(count,)``. They are not changed.
            into: Where the bytes go; shape ``(encoded_nbytes(count, dtype),)``,
                ``torch.uint8``.

        Returns:
            What ``codec.encode`` returns. If it is False, the residual stays as it was,
            so that infinities and NaN do not last. A sum that the type of the values
            cannot hold, in float16 from 65520, counts as infinite.

        Raises:
            TypeError: The codec does not encode this type.
            ValueError: The codec refuses the tensors, or the shape of the tensor with
                this name has changed.
        """
        residual, total = self._total(name, values)
        sent = total.to(values.dtype)
        if not codec.encode(sent, into):
            self._spare[_kind_of(total, total.dtype)] = total
            return False
        if sent is total:
            codec.add(into, total, alpha=-1.0)
        else:
            decoded = torch.empty_like(sent)
            codec.decode(into, decoded)
            total -= decoded
        self._residuals[name] = total
        if residual is not None:
            self._spare[_kind_of(residual, residual.dtype)] = residual
        return True

    def start_encode(
        self, codec: Codec, name: str, values: torch.Tensor, into: torch.Tensor
    ) -> torch.Tensor:
        """Encode as ``encode`` does, and do not wait for a GPU if that is possible.

        On a device, a tensor without a residual has the residual 0 afterwards, if
        ``encode`` would have returned False.

        Returns:
            What ``codec.start_encode`` returns.

        Raises:
            TypeError: As ``encode`` does.
            ValueError: As ``encode`` does.
        """
        if staging_of(values) is None:
            return torch.tensor(self.encode(codec, name, values, into))
        residual, total = self._total(name, values)
        sent = total.to(values.dtype)
        well = codec.start_encode(sent, into)
        decoded = torch.empty_like(sent)
        codec.start_decode(into, decoded)
        if residual is None:
            residual = torch.zeros_like(total)
        # In the memory that it has. Perhaps another stream has allocated that, which
        # torch would let write there while this one still reads.
        torch.where(well, total - decoded, residual, out=residual)
        self._residuals[name] = residual
        return well

    def _total(
        self, name: str, values: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Return the residual of a tensor, if it has one, and its sum with the values.

        Raises:
            ValueError: The shape of the tensor with this name has changed.
        """
        kept = torch.promote_types(values.dtype, torch.float32)
        residual = self._residuals.get(name)
        if residual is None:
            return None, values.detach().to(kept, copy=True)
        if residual.shape != values.shape:
            raise ValueError(
                f"ErrorFeedback.encode: tensor {name!r} had the shape "
                f"{tuple(residual.shape)} before, got {tuple(values.shape)}; use "
                "another name for another tensor"
            )
        if staging_of(residual) is not staging_of(values):
            # It comes from a checkpoint, or another device encoded the last values.
            residual = values_beside(values, residual.cpu())
        total = self._take_memory(values, kept)
        torch.add(values.detach(), residual, alpha=self.decay, out=total)
        return residual, total

    def _take_memory(self, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return memory for a residual of ``values``."""
        spare = self._spare.pop(_kind_of(values, dtype), None)
        if spare is None:
            return torch.empty_like(values, dtype=dtype, requires_grad=False)
        return spare

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return copies of the residuals by name, for a checkpoint of this rank."""
        state = {}
        for name, residual in self._residuals.items():
            state[name] = residual.clone()
            if (staging := staging_of(residual)) is not None:
                # Another stream may have allocated the residual.
                staging.keep_for_stream(residual)
        return state

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Replace all residuals by copies of ``state``, which may be empty."""
        self._residuals = {name: one.clone() for name, one in state.items()}
        self._spare.clear()


def _kind_of(tensor: torch.Tensor, dtype: torch.dtype) -> _Kind:
    """Return what two tensors have in common if one may have the other's memory."""
    return tensor.shape, dtype, staging_of(tensor)
