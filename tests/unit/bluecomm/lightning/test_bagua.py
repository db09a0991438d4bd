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
            ("bytegrad", {"op": bf.Sum}),
        ),
        ("decentralized", {}, ("allreduce", {})),
        (
            "decentralized",
            {"peer_selection_mode": "shift_one", "communication_interval": 4},
            (
                "hierarchical_neighbor_allreduce",
                {"topology": "one_peer", "num_steps_per_communication": 4},
            ),
        ),
        (
            "decentralized",
            {"peer_selection_mode": "shift_one", "hierarchical": False},
            ("neighbor_allreduce", {"topology": "one_peer"}),
        ),
    ],
)
def test_known_arguments(algorithm, options, expected):
    assert read_arguments(algorithm, options) == expected


@pytest.mark.parametrize(
    ("algorithm", "options", "said"),
    [
        ("qadam", {}, "no equivalent of Bagua's 'qadam'; use 'bytegrad' with AdamW"),
        ("async", {"sync_interval_ms": 5}, "use 'win_put' or 'push_sum'"),
        ("low_precision_decentralized", {}, "use 'neighbor_allreduce'"),
        ("decentralized", {"track_peer_weights": True}, "nothing"),
        ("decentralized", {"peer_selection_mode": "one"}, "'all' or 'shift_one', got"),
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
