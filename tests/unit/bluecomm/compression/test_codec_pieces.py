"""Codecs that encode, decode or combine all pieces of a tensor in one call."""

import pytest
import torch

from bluecomm.compression import MinMaxUInt8
from bluecomm.compression.codec import Codec, Pieces

CODEC = MinMaxUInt8(chunk=96)


def layout_of(count, ranks, head=0):
    share = max(1, -(-count // ranks))
    return Pieces(share, head + CODEC.encoded_nbytes(share, torch.float32), head)


@pytest.mark.parametrize(
    ("count", "ranks", "infinite"),
    [
        (1000, 8, False),
        (1000, 8, True),
        (5, 4, False),
        (193, 2, True),
        (1, 4, False),
        (0, 2, False),
    ],
)
def test_one_call_has_the_bits_of_a_call_for_each_piece(count, ranks, infinite):
    values = torch.randn(count, generator=torch.Generator().manual_seed(count))
    if infinite:
        values[count // 2] = torch.inf
    for head in (0, 32):
        layout = layout_of(count, ranks, head)
        codes, expected = torch.zeros(2, ranks * layout.stride, dtype=torch.uint8)
        assert CODEC.encode_pieces(values, codes, layout) is not infinite
        assert Codec.encode_pieces(CODEC, values, expected, layout) is not infinite
        assert torch.equal(codes, expected)
        decoded, expected = torch.zeros(2, count)
        CODEC.decode_pieces(codes, decoded, layout)
        Codec.decode_pieces(CODEC, codes, expected, layout)
        assert torch.equal(decoded.view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize("infinite", [False, True])
@pytest.mark.parametrize("divisor", [1, 3])
def test_codes_are_combined_in_their_order(divisor, infinite):
    count, ranks = 250, 3
    layout = layout_of(ranks * count, ranks, 32)
    values = torch.randn(
        ranks * count, generator=torch.Generator().manual_seed(divisor)
    )
    if infinite:
        values[count + 7] = -torch.inf
    codes = torch.zeros(ranks * layout.stride, dtype=torch.uint8)
    CODEC.encode_pieces(values, codes, layout)
    nbytes = CODEC.encoded_nbytes(count, torch.float32)
    result, expected = torch.zeros(2, nbytes, dtype=torch.uint8)
    assert CODEC.combine(codes, count, divisor, result, layout) is not infinite
    is_well = Codec.start_combine(CODEC, codes, count, divisor, expected, layout)
    assert bool(is_well) is not infinite
    assert torch.equal(result, expected)
