"""Arguments of Lightning's former ``BaguaStrategy``."""

import pytest

import bluecomm as bf

pytest.importorskip("lightning")

from bluecomm.lightning.bagua import read_arguments


@pytest.mark.parametrize(
    ("algorithm", "options", "expected"),
    [
        ("extra", {"order": "atc"}, ("extra", {"order": "atc"})),
        ("gradient_allreduce", {"flatten": True}, ("gradient_allreduce", {})),
        (
            "gradient_allreduce",
            {"hierarchical": True, "average": False, "bucket_bytes": 9},
            ("gradient_allreduce", {"op": bf.Sum, "bucket_bytes": 9}),
        ),
        (
            "bytegrad",
            {"hierarchical": True, "average": False},
            ("bytegrad", {"op": bf.Sum, "hierarchical": True}),
        ),
        ("qadam", {"hierarchical": True}, ("qadam", {"hierarchical": True})),
        ("decentralized", {}, ("decentralized", {})),
        (
            "async",
            {"peer_selection_mode": "all", "flatten": True, "sync_interval_ms": 5},
            ("async", {"sync_interval_ms": 5}),
        ),
        ("async", {"warmup_steps": 3}, ("async", {"warmup_steps": 3})),
        (
            "low_precision_decentralized",
            {"hierarchical": True, "communication_interval": 2},
            (
                "low_precision_decentralized",
                {"hierarchical": True, "num_steps_per_communication": 2},
            ),
        ),
        (
            "decentralized",
            {"peer_selection_mode": "shift_one", "communication_interval": 4},
            (
                "decentralized",
                {"peer_selection_mode": "shift_one", "num_steps_per_communication": 4},
            ),
        ),
        (
            "decentralized",
            {"hierarchical": False, "flatten": False},
            ("decentralized", {"hierarchical": False}),
        ),
    ],
)
def test_known_arguments(algorithm, options, expected):
    assert read_arguments(algorithm, options) == expected


@pytest.mark.parametrize(
    ("algorithm", "options", "said"),
    [
        ("async", {"peer_selection_mode": "one"}, "must be 'all', got 'one'"),
        ("decentralized", {"track_peer_weights": True}, "nothing"),
        ("extra", {"average": True}, "average are arguments of Bagua's"),
        (
            "gradient_allreduce",
            {"communication_interval": 2},
            "communication_interval are arguments of Bagua's",
        ),
    ],
)
def test_the_rest_is_refused_with_the_remedy(algorithm, options, said):
    with pytest.raises(ValueError, match=said):
        read_arguments(algorithm, options)
