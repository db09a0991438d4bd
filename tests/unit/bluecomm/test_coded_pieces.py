"""The pieces of an allreduce of codes, without an exchange."""

import torch

from bluecomm.compression import HalfCast
from bluecomm.ops.coded_pieces import CodedPieces


def test_ranks_without_values_have_nothing_to_add():
    """The last slice of a large tensor may have fewer values than there are ranks."""
    pieces = [CodedPieces(1, HalfCast(), 3, rank) for rank in range(3)]
    assert pieces[0].message_nbytes == [2, 0, 0]
    messages = torch.zeros(2, dtype=torch.uint8)
    assert pieces[2].encode(torch.tensor([0.5]), messages)
    results = [torch.zeros(34, dtype=torch.uint8) for _ in range(3)]
    pieces[0].combine(messages.repeat(3), 3, results[0])
    for one, result in zip(pieces[1:], results[1:], strict=True):
        one.combine(messages[:0], 3, result)
    decoded = torch.empty(1)
    pieces[1].decode(torch.cat(results), decoded)
    assert decoded.tolist() == [0.5]
    assert not pieces[1].faults_in(torch.cat(results)).any()
