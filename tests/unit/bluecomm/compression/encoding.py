"""Calls of codecs with memory of their own, for tests."""

import torch


def encoded(codec, values):
    """Return the bytes of values, and whether all of them are finite."""
    nbytes = codec.encoded_nbytes(values.numel(), values.dtype)
    code = torch.full((nbytes,), 77, dtype=torch.uint8)
    return code, codec.encode(values, code)


def decoded(codec, code, count, dtype=torch.float32):
    """Return the values of bytes."""
    values = torch.full((count,), 77.0, dtype=dtype)
    codec.decode(code, values)
    return values
