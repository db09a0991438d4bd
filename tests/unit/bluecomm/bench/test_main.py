"""The command line: subcommands, and the default one."""

from __future__ import annotations

import pytest
import torch

from bluecomm.bench.__main__ import SUBCOMMANDS, main
from bluecomm.runtime import current_process


def test_each_subcommand_has_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    for module in SUBCOMMANDS:
        assert module.__name__.rpartition(".")[2] in shown


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--sizes", "4T"], "size must be like 4, 64K or 0.25M, got '4T'"),
        (["--operations", "sorting"], "invalid choice: 'sorting'"),
        (["ops", "--libraries", "nccl"], "invalid choice: 'nccl'"),
        (["races"], "invalid choice: 'races'"),
        (["ops", "--rounds", "0"], "must be a whole number of at least 1, got '0'"),
        (["ops", "--round-s", "x"], "must be a number above 0, got 'x'"),
        (["launch", "--ranks", "0"], "must be a whole number of at least 1, got '0'"),
    ],
)
def test_wrong_command_lines(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert text in capsys.readouterr().err


def test_launch_refuses_to_run_inside_a_job(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLUECOMM_AGENT_SOCKET", "/tmp/socket")
    assert main(["launch"]) == 2
    assert "start it without bfrun" in capsys.readouterr().err


def test_a_world_of_one_has_nothing_to_measure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    try:
        assert main([]) == 2
    finally:
        current_process().leave()
    assert "nothing to measure in a world of one" in capsys.readouterr().out
