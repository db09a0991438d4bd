"""DeepSpeed's allreduce as a peer: a module that stands for it is told of the world."""

from __future__ import annotations

import os
import sys
import types
from unittest import mock

import pytest
import torch

from bluecomm.bench.operations import OPERATIONS, case_of
from bluecomm.bench.process_groups import deepspeed


def test_it_is_told_that_all_ranks_are_here_and_reduces_float32_in_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, summed = mock.Mock(), mock.Mock()
    builder = mock.Mock(load=mock.Mock(return_value=module))
    cpu = types.SimpleNamespace(ShareMemCommBuilder=lambda: builder)
    monkeypatch.setitem(sys.modules, "deepspeed.ops.op_builder.cpu", cpu)
    operations = types.SimpleNamespace(inference_all_reduce_=summed)
    monkeypatch.setattr(torch.ops, "deepspeed", operations, raising=False)
    monkeypatch.setenv("LOCAL_SIZE", "")
    monkeypatch.setattr(deepspeed, "rank", lambda: 1)
    monkeypatch.setattr(deepspeed, "size", lambda: 2)
    monkeypatch.setattr(deepspeed, "barrier", lambda: module.after_rank_0())
    monkeypatch.setattr(deepspeed, "timed", lambda call: call)

    peer = deepspeed.DeepSpeed()
    assert module.mock_calls == [mock.call.after_rank_0(), mock.call.initialize(2, 1)]
    assert os.environ["LOCAL_SIZE"] == "2"
    case = case_of(OPERATIONS["allreduce_"], torch.float32, 64, 2)
    turn = peer.prepare("all_reduce", "sync", case)
    assert turn is not None
    turn()  # type: ignore[call-arg]
    (tensor,) = summed.call_args.args
    assert (tensor.dtype, tensor.shape) == (torch.float32, (16,))
    for collective, form in (("all_reduce", "async"), ("all_gather", "sync")):
        assert peer.prepare(collective, form, case) is None
