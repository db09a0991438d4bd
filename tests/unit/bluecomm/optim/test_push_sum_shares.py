"""How push_sum shares its mass when ranks are lost."""

from types import SimpleNamespace

import pytest

from bluecomm.optim.algorithms import one_sided
from bluecomm.optim.algorithms.one_sided import PushSum
from bluecomm.optim.options import StepSettings

NEIGHBORS = (1, 2)


def shares(monkeypatch, lost, *, survives_losses=True, **settings):
    """Return the shares of a rank with out-neighbors 1 and 2, some of them lost."""
    left = [rank for rank in NEIGHBORS if rank not in lost]
    comm = SimpleNamespace(
        topology=SimpleNamespace(weights=SimpleNamespace(dst_ranks=NEIGHBORS)),
        world=SimpleNamespace(members=SimpleNamespace(survives_losses=survives_losses)),
    )
    window = SimpleNamespace(
        comm=comm,
        native=SimpleNamespace(targets=lambda: left),
        neighbors=SimpleNamespace(out_weights=dict.fromkeys(NEIGHBORS, 1.0)),
    )
    monkeypatch.setattr(one_sided, "find", lambda *_: window)
    algorithm = PushSum()
    algorithm.context = SimpleNamespace(settings=StepSettings(**settings))
    return algorithm._shares("x")


@pytest.mark.parametrize(
    ("settings", "lost", "expected"),
    [
        ({}, [1], (0.5, {2: 0.5})),
        ({"dst_weights": [1, 2]}, [1], (0.5, {2: 0.5})),
        ({"self_weight": 0.5, "dst_weights": [1, 2]}, [1], (0.5, {2: 0.5})),
        (
            {"self_weight": 0.5, "dst_weights": {1: 0.25, 2: 0.25}},
            [1],
            (0.75, {2: 0.25}),
        ),
        # A new out-neighbor may have made no mailbox yet.
        ({"self_weight": 0.5}, [1, 2], (1.0, {})),
        ({"self_weight": 0.5, "dst_weights": [1, 2]}, [1, 2], (1.0, {})),
        (
            {"self_weight": 0.5, "dst_weights": {1: 0.25, 2: 0.25}},
            [1, 2],
            (1.0, {}),
        ),
    ],
)
def test_no_share_goes_to_a_lost_rank(monkeypatch, settings, lost, expected):
    assert shares(monkeypatch, lost, **settings) == expected


def test_shares_that_do_not_sum_to_one_are_refused(monkeypatch):
    for survives_losses in (False, True):
        with pytest.raises(ValueError, match="must sum to 1"):
            shares(
                monkeypatch,
                [],
                survives_losses=survives_losses,
                self_weight=0.5,
                dst_weights={1: 0.25},
            )
