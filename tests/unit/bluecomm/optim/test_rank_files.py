"""Files that ranks save beside a common checkpoint."""

import functools
import logging
from pathlib import Path

import pytest
import torch

import bluecomm as bf
from bluecomm.optim.rank_files import (
    agreed_part,
    digests_of,
    part_of,
    path_of_rank,
    without_rank_state,
)

pytestmark = pytest.mark.usefixtures("world")

MODEL = {
    "weight": torch.arange(6.0).reshape(2, 3).t(),
    "half": torch.ones(2, dtype=torch.bfloat16),
    "count": torch.tensor(3),
    "expanded": torch.tensor(3.0).expand(1),  # its stride is 0
    "more": "words",
}


def saved(tmp_path, model):
    """Return a function that loads what was saved with a model."""
    path = path_of_rank(tmp_path / "a.ckpt")
    torch.save(part_of(digests_of({"a": model, "b": model}), {"x": 1}), path)
    return functools.partial(torch.load, path, weights_only=True)


def test_each_rank_has_a_path_of_its_own(tmp_path):
    assert path_of_rank(tmp_path / "a.ckpt") == f"{tmp_path}/a.ckpt.rank-0-of-1"


def test_what_was_saved_with_the_checkpoint_is_returned(tmp_path):
    load = saved(tmp_path, MODEL)
    assert agreed_part("a.ckpt", digests_of({"a": {**MODEL}}), load) == {"x": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"weight": torch.arange(6.0).reshape(2, 3)},
        {"weight": torch.arange(6.0).reshape(2, 3).t() + 1},
        {"half": torch.ones(2, dtype=torch.float16)},
        {"new": torch.ones(2)},
    ],
)
def test_what_was_saved_with_another_checkpoint_counts_as_missing(
    tmp_path, change, caplog
):
    load = saved(tmp_path, MODEL)
    with caplog.at_level(logging.WARNING, "bluecomm"):
        assert (
            agreed_part("a.ckpt", digests_of({"a": {**MODEL, **change}}), load) is None
        )
    assert "a.ckpt: not every rank has its own file of this checkpoint" in caplog.text


def test_a_file_that_ends_too_early_counts_as_missing(tmp_path):
    load = saved(tmp_path, MODEL)
    path = Path(path_of_rank(tmp_path / "a.ckpt"))
    whole = path.read_bytes()
    for length in (0, 10, len(whole) - 20):
        path.write_bytes(whole[:length])
        assert agreed_part("a.ckpt", digests_of({"a": MODEL}), load) is None
    assert agreed_part("a.ckpt", digests_of({"a": MODEL}), None) is None


@pytest.mark.parametrize(
    ("algorithm", "warns"), [("exact_diffusion", True), ("neighbor_allreduce", False)]
)
def test_the_state_of_another_rank_is_noticed(caplog, algorithm, warns):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = bf.DistributedOptimizer(optimizer, model, algorithm=algorithm)
    state = optimizer.state_dict()
    with caplog.at_level(logging.WARNING, "bluecomm"):
        optimizer.load_state_dict(state)
        assert not caplog.text
        state["bluecomm"]["rank"] = 3
        optimizer.load_state_dict(state)
    said = "rank 0 loads a state of ExactDiffusion that rank 3 saved"
    assert (said in caplog.text) == warns
    optimizer.synchronize()


def test_a_common_checkpoint_has_no_state_of_the_algorithm():
    assert without_rank_state({"state": {}, "bluecomm": {}}) == {"state": {}}
