"""Values as flat bytes."""

import datetime
import math
import sys
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch

from bluecomm.data.stores.flat_value import decode_value, encode_value

Point = namedtuple("Point", "x y")


class Gone:
    """A class that a later version of the program does not have."""


def flat(value, **options):
    parts = encode_value(value, **options)
    return memoryview(bytearray(b"".join(bytes(part) for part in parts)))


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and (a == b).all()
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return a == b


PLAIN = [
    *(None, True, 7, -(10**30), 0.1, -math.inf, "text \u00e9\ud800", b"", b"bytes"),
    *((), [], {}, (1, [2, {"a": b"x", "": (None,)}])),
    *(torch.arange(5), torch.tensor(3.0), torch.empty(0, 3), torch.zeros(2, 0).bool()),
    torch.arange(12).view(3, 4).t(),
    torch.tensor(3.0).expand(1),  # its stride is 0
    *(torch.ones(3, dtype=dtype) for dtype in (torch.bfloat16, torch.complex64)),
    *(np.arange(6).reshape(2, 3).T, np.array(2.5, ">f4"), np.empty((0, 2), "i2")),
    *(
        np.array(["a", "bc"]),
        np.array([b"a", b"bc"]),
        np.array(["2020-01-01"], "M8[D]"),
    ),
    (torch.arange(3), np.arange(3), b"x" * 65, {"label": 3}),
]
PICKLED = [
    *({1: 2}, {1, 2}, Point(1, 2), OrderedDict(a=1), datetime.date(2020, 1, 1)),
    *(np.float32(1.5), np.array([None, 1]), np.array([(1, 2.0)], "i4,f8")),
]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_need_no_pickle(value):
    memory = flat(value, allow_pickle=False)
    assert len(memory) % 64 == 0
    assert same(decode_value(memory, allow_pickle=False), value)


@pytest.mark.parametrize("value", PICKLED, ids=repr)
def test_other_values_are_pickled_if_that_is_allowed(value):
    memory = flat((1, value))
    assert same(decode_value(memory), (1, value))
    with pytest.raises(TypeError, match="must be pickled, and the store does not all"):
        encode_value([value], allow_pickle=False)
    with pytest.raises(ValueError, match="has a pickled value, and allow_pickle is Fa"):
        decode_value(memory, allow_pickle=False)


def test_tensors_that_are_not_plain_are_pickled():
    leaf = torch.ones(2, requires_grad=True)
    decoded = decode_value(flat(leaf))
    assert decoded.requires_grad
    sparse = torch.eye(2).to_sparse()
    assert torch.equal(decode_value(flat(sparse)).to_dense(), torch.eye(2))


def test_tensors_and_arrays_share_the_memory():
    memory = flat((torch.zeros(4), np.zeros(4)))
    tensor, array = decode_value(memory)
    tensor[0] = 1
    array[0] = 2
    again = decode_value(memory)
    assert (again[0][0], again[1][0]) == (1, 2)
    assert tensor.data_ptr() % 8 == 0


def test_foreign_bytes_are_no_value(monkeypatch):
    """Another program, another version, or a class that no longer exists wrote them."""
    tensor = flat(torch.arange(3)).tobytes()
    gone = flat(Gone()).tobytes()
    monkeypatch.delattr(sys.modules[__name__], "Gone")
    for foreign, error in (
        (b"", "unpack_from requires"),
        (tensor.replace(b"torch.int64", b"torch.int00"), "KeyError: 'torch.int00'"),
        (gone, "AttributeError: .*Gone"),
    ):
        with pytest.raises(ValueError, match=f"bytes that are no value here .*{error}"):
            decode_value(memoryview(bytearray(foreign)))


def test_what_cannot_be_pickled_is_refused():
    with pytest.raises(TypeError, match="of type function cannot be pickled"):
        encode_value(lambda: None)
