"""The examples warn once when a training diverges."""

import math

import pytest

import bluecomm as bf
from bluecomm.runtime import current_process
from loss_watch import LossWatch


@pytest.mark.parametrize(
    ("losses", "texts"),
    [
        ([3.0, 2.0, 2.5, 2.4, 2.6], []),
        ([3.0, 0.01, 0.02, 0.03], []),
        ([3.0, 2.0, 2.5, 2.6, 2.7, 2.8], ["has grown for 2 epochs, to 2.6 in epoch 4"]),
        ([math.nan, math.nan], ["is nan in epoch 1. Lower it."]),
        ([3.0, math.inf, math.nan], ["is inf in epoch 2. Lower it."]),
    ],
)
def test_warns_once(losses, texts, capsys):
    bf.init()
    try:
        watch = LossWatch("Lower it.")
        for loss in losses:
            watch.see(loss)
    finally:
        current_process().leave()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(texts)
    for line, text in zip(lines, texts, strict=True):
        assert line.startswith("warning: the training loss ")
        assert text in line
