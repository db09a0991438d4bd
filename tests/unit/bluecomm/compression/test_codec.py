"""Properties that all codecs share."""

import pytest
import torch

from bluecomm.compression import ChunkedTopK, MinMaxUInt8, RandomK, ScaledSign, TopK

CODECS = [MinMaxUInt8(), ScaledSign(), TopK(3), ChunkedTopK(3), RandomK(3, 7)]
VALUES = torch.linspace(-1, 2, 11)


def bytes_of(codec):
    encoded = torch.empty(codec.encoded_nbytes(11, torch.float32), dtype=torch.uint8)
    codec.encode(VALUES, encoded)
    return encoded


@pytest.fixture
def restore_default_dtype():
    default = torch.get_default_dtype()
    yield
    torch.set_default_dtype(default)


@pytest.mark.usefixtures("restore_default_dtype")
@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_bytes_do_not_depend_on_the_default_dtype(codec, default):
    wanted = bytes_of(codec)
    torch.set_default_dtype(default)
    assert torch.equal(bytes_of(codec), wanted)
