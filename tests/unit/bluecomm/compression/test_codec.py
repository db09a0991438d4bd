"""Properties that all codecs share."""

import pytest
import torch

from bluecomm.compression import (
    E3M0,
    ChunkedTopK,
    HalfCast,
    MinMaxUInt8,
    QuantizedTopK,
    RandomK,
    ScaledSign,
    TopK,
)
from tests.unit.bluecomm.compression.encoding import check_threads

CODECS = [
    *(MinMaxUInt8(), ScaledSign(), TopK(3), RandomK(3, 7)),
    *(ChunkedTopK(3), QuantizedTopK(3), HalfCast(), E3M0()),
]
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


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_adding_a_code_adds_what_it_stands_for(codec):
    for dtype in codec.dtypes:
        values = torch.linspace(-3, 5, 9000).to(dtype)
        code = torch.empty(codec.encoded_nbytes(9000, dtype), dtype=torch.uint8)
        codec.encode(values, code)
        decoded = torch.empty(9000, dtype=dtype)
        codec.decode(code, decoded)
        sums = torch.linspace(1, 2, 9000).to(dtype).requires_grad_()
        for alpha in (1.0, -1.0, 0.25):
            expected = sums.detach() + alpha * decoded
            codec.add(code, sums, alpha)
            torch.testing.assert_close(sums.detach(), expected)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_the_mean_of_codes_is_their_sum_in_order_divided_and_scaled(codec):
    generator = torch.Generator().manual_seed(5)
    for dtype in codec.dtypes:
        nbytes = codec.encoded_nbytes(9000, dtype)
        # Rows that do not follow each other at once, as those of messages with heads.
        codes = torch.zeros(3, nbytes + 5, dtype=torch.uint8)[:, 5:]
        total = torch.zeros(9000, dtype=dtype)
        for code in codes:
            codec.encode(torch.randn(9000, generator=generator).to(dtype), code)
            codec.add(code, total)
        values = torch.randn(9000, generator=generator).to(dtype)
        expected = values + total / 3 * -0.7
        into = values.clone().requires_grad_()
        codec.add_mean(codes, into, -0.7)
        assert torch.equal(into.detach(), expected)


@pytest.mark.parametrize("codec", [ChunkedTopK(3), QuantizedTopK(3)], ids=str)
def test_the_mean_with_a_chunk_that_is_not_finite_is_nan_there(codec):
    nbytes = codec.encoded_nbytes(3 * 4096, torch.float32)
    codes = torch.empty(2, nbytes, dtype=torch.uint8)
    values = torch.ones(3 * 4096)
    codec.encode(values, codes[1])
    values[5000] = torch.inf
    codec.encode(values, codes[0])
    mean = torch.zeros(3 * 4096)
    codec.add_mean(codes, mean)
    assert mean.isnan().view(3, 4096).all(1).tolist() == [False, True, False]
    assert mean.isnan().sum() == 4096


# -- codecs with chunks ----------------------------------------------------------------


@pytest.mark.parametrize(
    "codec",
    [MinMaxUInt8(64), ScaledSign(64), E3M0(64), ChunkedTopK(), QuantizedTopK()],
    ids=str,
)
def test_several_threads_give_the_same_bytes(codec):
    torch.manual_seed(2)
    check_threads(codec, torch.randn(9 * 4096 + 5))


@pytest.mark.parametrize(
    ("codec", "values", "expected"),
    [
        (ScaledSign(), [1.0, -1.0, 4.0], [2.0, -2.0, 2.0]),
        (E3M0(), [1.0, -2.0, 0.3], [1.0, -2.0, 0.25]),
        (ChunkedTopK(2), [1.0, -1.0, 0.5], [1.0, -1.0, 0.0]),
        (QuantizedTopK(2), [1.0, -1.0, 0.5], [1.0, -1.0, 0.0]),
    ],
    ids=str,
)
def test_bytes_may_begin_anywhere_and_values_may_require_gradients(
    codec, values, expected
):
    nbytes = codec.encoded_nbytes(3, torch.float32)
    memory = torch.zeros(nbytes + 2, dtype=torch.uint8)
    assert codec.encode(torch.tensor(values, requires_grad=True), memory[1:-1])
    near = torch.empty(3, requires_grad=True)
    codec.decode(memory[1:-1], near)
    assert near.tolist() == expected
    assert memory[[0, -1]].tolist() == [0, 0]


@pytest.mark.parametrize(
    "codec", [ScaledSign(), E3M0(), ChunkedTopK(), QuantizedTopK()], ids=str
)
def test_float64_is_refused(codec):
    with pytest.raises(TypeError, match=rf"{codec.name}\.encode takes .*float64"):
        codec.encode(torch.ones(4, dtype=torch.float64), torch.empty(0))
