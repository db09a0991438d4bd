"""Timelines show the work of devices, on the clock of the host."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import pytest
import torch

import bluecomm as bf
from bluecomm.device import staging_table
from tests.support.deadlines import DEADLINE_S
from tests.support.fakegpu.ranks import run_ranks_on_gpus
from tests.support.traces import check_timeline, slices_of

pytestmark = pytest.mark.mp
RANKS = 2
ROUNDS = 5


def call_and_read(x: torch.Tensor) -> list[list[float]]:
    """Return sums of ``x``, each between two marks in the timeline."""
    found = []
    for _ in range(ROUNDS):
        for operation in (
            lambda y: bf.allreduce(y, op=bf.Sum),
            lambda y: bf.reducescatter(y, op=bf.Sum),
            lambda y: bf.allreduce(y[:0], op=bf.Sum),
        ):
            with bf.timeline_context("program", "CALL"):
                found.append(operation(x * 1).tolist())  # which waits for the device
    return found


@pytest.mark.parametrize(
    ("path", "expected", "count"),
    [
        (
            "nccl",
            {"NCCL_ALLREDUCE": "NCCL", "NCCL_REDUCESCATTER": "NCCL"},
            2 * ROUNDS,
        ),
        (
            "staged",
            {
                "COPY_TO_HOST": "copies to the host",
                "COPY_TO_DEVICE": "copies to the device",
            },
            4 * ROUNDS,
        ),
    ],
)
def test_copies_and_calls_of_nccl_lie_within_the_programs_calls(
    path, expected, count, tmp_path
):
    prefix = str(tmp_path / "t")
    environment = {"BLUECOMM_DEVICE_TRANSPORT": path, "BLUECOMM_TIMELINE": prefix}
    x = torch.arange(6.0)
    found = run_ranks_on_gpus(RANKS, call_and_read, x, environment=environment)
    for rank in range(RANKS):
        half = [2 * i for i in range(3 * rank, 3 * rank + 3)]
        assert found[rank] == [[2 * i for i in range(6)], half, []] * ROUNDS
        timeline = json.loads(Path(f"{prefix}{rank}.json").read_text())
        check_timeline(timeline)
        rows = {
            (event["pid"], event["tid"]): event["args"]["name"]
            for event in timeline["traceEvents"]
            if event["name"] == "thread_name"
        }
        work = slices_of(timeline, rank, "device")
        assert {each["name"] for each in work} == {*expected}
        assert len(work) == count
        calls = [
            each
            for each in slices_of(timeline, rank, "activity")
            if each["name"] == "CALL"
        ]
        assert len(calls) == 3 * ROUNDS
        for each in work:
            row = f"CUDA device {rank}, {expected[each['name']]}"
            assert rows[rank, each["tid"]] == row
            # No tolerance but for rounding: a device is never ahead of the host, and
            # the program has read the result before its call ends.
            assert any(
                call["ts"] - 0.01 <= each["ts"]
                and each["ts"] + each["dur"] <= call["ts"] + call["dur"] + 0.01
                for call in calls
            ), each


def call_and_stop(x: torch.Tensor, target: str) -> None:
    bf.start_timeline(target)
    for _ in range(ROUNDS):
        bf.allreduce(x)
    with mock.patch.object(staging_table, "_TRACE_S", DEADLINE_S):
        bf.stop_timeline()  # the device may not have finished


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("nccl", {"NCCL_ALLREDUCE"}),
        ("staged", {"COPY_TO_HOST", "COPY_TO_DEVICE"}),
    ],
)
def test_a_stopped_timeline_has_all_work_of_the_device(path, expected, tmp_path):
    target = tmp_path / "t.json"
    environment = {
        "BLUECOMM_DEVICE_TRANSPORT": path,
        "BLUECOMM_TIMELINE": "DYNAMIC",
        "FAKEGPU_DELAY_US": "20000",
    }
    run_ranks_on_gpus(
        *(RANKS, call_and_stop, torch.ones(6), str(target)), environment=environment
    )
    timeline = json.loads(target.read_text())
    check_timeline(timeline)
    found = [each["name"] for each in slices_of(timeline, 0, "device")]
    assert sorted(found) == sorted(ROUNDS * [*expected])
