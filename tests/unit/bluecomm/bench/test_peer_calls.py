"""Writing of inputs before calls."""

from __future__ import annotations

import dataclasses

import torch

from bluecomm.bench.operations import OPERATIONS, case_of
from bluecomm.bench.peer_calls import PeerCalls, Prepared
from bluecomm.bench.timing import Call


class Notes(PeerCalls):
    """Records how often its input had been written at each call."""

    def __init__(self) -> None:
        super().__init__(0, 2)
        self.input = torch.ones(4)
        self.versions: list[int] = []

    def _exchange(self, tensor: torch.Tensor, *rest: object) -> Call:
        return lambda: self.versions.append(tensor._version)

    def _allreduce(self, case: object) -> Prepared:
        return self.input, self._exchange(self.input)


def test_inputs_are_written_before_each_call_if_asked() -> None:
    notes = Notes()
    case = case_of(OPERATIONS["allreduce_"], torch.float32, 16, 2)
    as_it_is = notes.call_for(case)
    written = notes.call_for(dataclasses.replace(case, is_written=True))
    before = notes.input._version
    for call in (as_it_is, written, as_it_is, written):
        call()
    assert notes.versions == [before, before + 1, before + 1, before + 2]
    assert notes.input.tolist() == [1, 1, 1, 1]
